// Arithmetic of shapes and strides.
#include "core/tensor/tensor.h"

#include <stdexcept>

namespace tsprun::detail {

template <class Byte>
BasicTensor<Byte>::BasicTensor(Byte* data, DType dtype, std::span<const std::size_t> sizes)
    : data_(data), dtype_(dtype), dims_(sizes.size()) {
  if (sizes.size() > kMaxDims) throw std::invalid_argument("a tensor has at most 4 dims, not " + std::to_string(sizes.size()));
  std::size_t stride = 1;
  for (std::size_t i = dims_; i-- > 0;) {
    sizes_[i] = sizes[i];
    strides_[i] = stride;
    stride *= sizes[i];
  }
}

template <class Byte>
std::size_t BasicTensor<Byte>::elements() const {
  if (dims_ == 0) return 0;
  std::size_t count = 1;
  for (std::size_t i = 0; i < dims_; ++i) count *= sizes_[i];
  return count;
}

template <class Byte>
bool BasicTensor<Byte>::contiguous() const {
  if (empty()) return true;
  std::size_t stride = 1;
  for (std::size_t i = dims_; i-- > 0;) {
    if (sizes_[i] != 1 && strides_[i] != stride) return false;
    stride *= sizes_[i];
  }
  return true;
}

template <class Byte>
BasicTensor<Byte> BasicTensor<Byte>::slice(std::size_t dim, std::size_t first, std::size_t count) const {
  const std::size_t size = sizes_[checked(dim)];
  if (first > size || count > size - first) {
    fail("has no elements [" + std::to_string(first) + ", " + std::to_string(first) + " + " + std::to_string(count) +
         ") in dim " + std::to_string(dim));
  }
  BasicTensor result = *this;
  if (data_ != nullptr) result.data_ += first * strides_[dim] * size_of(dtype_);
  result.sizes_[dim] = count;
  return result;
}

template <class Byte>
BasicTensor<Byte> BasicTensor<Byte>::select(std::size_t dim, std::size_t index) const {
  BasicTensor result = slice(dim, index, 1);
  for (std::size_t i = dim; i + 1 < dims_; ++i) {
    result.sizes_[i] = sizes_[i + 1];
    result.strides_[i] = strides_[i + 1];
  }
  --result.dims_;
  return result;
}

template <class Byte>
BasicTensor<Byte> BasicTensor<Byte>::transposed(std::size_t a, std::size_t b) const {
  BasicTensor result = *this;
  std::swap(result.sizes_[checked(a)], result.sizes_[checked(b)]);
  std::swap(result.strides_[a], result.strides_[b]);
  return result;
}

template <class Byte>
BasicTensor<Byte> BasicTensor<Byte>::split(std::size_t dim, std::size_t inner) const {
  const std::size_t size = sizes_[checked(dim)];
  if (inner == 0 || size % inner != 0)
    fail("can't split dim " + std::to_string(dim) + " into pieces of " + std::to_string(inner));
  if (dims_ == kMaxDims) fail("has no room for one more dim");
  BasicTensor result = *this;
  for (std::size_t i = dims_; i > dim + 1; --i) {
    result.sizes_[i] = sizes_[i - 1];
    result.strides_[i] = strides_[i - 1];
  }
  result.sizes_[dim] = size / inner;
  result.strides_[dim] = strides_[dim] * inner;
  result.sizes_[dim + 1] = inner;
  result.strides_[dim + 1] = strides_[dim];
  ++result.dims_;
  return result;
}

template <class Byte>
BasicTensor<Byte> BasicTensor<Byte>::merged(std::size_t dim) const {
  checked(dim + 1);
  const std::size_t inner = sizes_[dim + 1];
  const bool even = sizes_[dim] <= 1 || inner == 0 || (inner == 1 ? true : strides_[dim] == inner * strides_[dim + 1]);
  if (!even) fail("has gaps: can't merge dims " + std::to_string(dim) + " and " + std::to_string(dim + 1));
  BasicTensor result = *this;
  result.sizes_[dim] = sizes_[dim] * inner;
  result.strides_[dim] = inner == 1 ? strides_[dim] : strides_[dim + 1];
  for (std::size_t i = dim + 1; i + 1 < dims_; ++i) {
    result.sizes_[i] = sizes_[i + 1];
    result.strides_[i] = strides_[i + 1];
  }
  --result.dims_;
  return result;
}

template <class Byte>
BasicTensor<Byte> BasicTensor<Byte>::reshaped(std::initializer_list<std::size_t> sizes) const {
  check_contiguous();
  const BasicTensor result(data_, dtype_, sizes);
  if (result.elements() != elements()) fail("doesn't fit the shape " + result.describe());
  return result;
}

template <class Byte>
std::string BasicTensor<Byte>::describe() const {
  std::string text(name(dtype_));
  text += " [";
  for (std::size_t i = 0; i < dims_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(sizes_[i]);
  }
  return text + "]";
}

template <class Byte>
std::size_t BasicTensor<Byte>::checked(std::size_t dim) const {
  if (dim >= dims_) fail("has no dim " + std::to_string(dim));
  return dim;
}

template <class Byte>
void BasicTensor<Byte>::check_count(std::size_t count) const {
  if (count != elements()) fail("doesn't fit memory of " + std::to_string(count) + " elements");
}

template <class Byte>
void BasicTensor<Byte>::check_dtype(DType dtype) const {
  if (dtype != dtype_) fail("isn't " + std::string(name(dtype)));
}

template <class Byte>
void BasicTensor<Byte>::check_contiguous() const {
  if (!contiguous()) fail("isn't contiguous");
}

template <class Byte>
void BasicTensor<Byte>::fail(const std::string& what) const {
  throw std::invalid_argument("tensor " + describe() + " " + what);
}

template class BasicTensor<std::byte>;
template class BasicTensor<const std::byte>;

bool same_shape(const ConstTensor& a, const ConstTensor& b) {
  if (a.dims() != b.dims()) return false;
  for (std::size_t i = 0; i < a.dims(); ++i) {
    if (a.size(i) != b.size(i)) return false;
  }
  return true;
}

}  // namespace tsprun::detail
