// Views of tensors: address, element type, and up to four dims with strides, as in PyTorch. A view owns no memory (OwnedTensor
// does). Kernels take Tensor for outputs and ConstTensor for inputs; slices, head splits and transposes are views of the same
// memory.
#pragma once

#include "tsprun/types.h"

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

namespace tsprun::detail {

/// Returns true for the types of tensors that kernels and models compute with; the others are only moved and reduced.
constexpr bool computes(DType dtype) { return dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64; }

/// Largest number of dims of a tensor.
inline constexpr std::size_t kMaxDims = 4;

/// A view of a tensor whose elements are writable (Byte = std::byte) or read-only (const std::byte). Sizes and strides are in
/// elements. Functions throw std::invalid_argument with the view's description if their arguments don't fit it: a dim or slice
/// out of range, another element type, a shape with another number of elements.
template <class Byte>
class BasicTensor {
 public:
  template <class T>
  using Qualified = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  /// Makes a view without dims and elements.
  BasicTensor() = default;
  /// Views contiguous memory at `data`, in row-major order, as a tensor of these sizes.
  BasicTensor(Byte* data, DType dtype, std::span<const std::size_t> sizes);
  BasicTensor(Byte* data, DType dtype, std::initializer_list<std::size_t> sizes)
      : BasicTensor(data, dtype, std::span(sizes.begin(), sizes.size())) {}
  /// Views `elements` as a contiguous tensor; their number must be the product of the sizes.
  template <Element T>
  BasicTensor(std::span<T> elements, std::initializer_list<std::size_t> sizes)
      : BasicTensor(reinterpret_cast<Byte*>(elements.data()), dtype_of<std::remove_const_t<T>>(), sizes) {
    check_count(elements.size());
  }
  /// Converts a writable view to a read-only one.
  template <class Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>) BasicTensor(const BasicTensor<Other>& other)
      : data_(other.data()), dtype_(other.dtype()), dims_(other.dims()) {
    for (std::size_t i = 0; i < dims_; ++i) {
      sizes_[i] = other.size(i);
      strides_[i] = other.stride(i);
    }
  }

  Byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  std::size_t dims() const { return dims_; }
  std::size_t size(std::size_t dim) const { return sizes_[checked(dim)]; }
  std::size_t stride(std::size_t dim) const { return strides_[checked(dim)]; }
  /// Returns the product of all sizes; 0 for a view without dims.
  std::size_t elements() const;
  std::size_t bytes() const { return elements() * size_of(dtype_); }
  bool empty() const { return elements() == 0; }
  /// Returns true if the elements lie one after another in row-major order. Strides of dims of size 1 don't matter; an empty
  /// tensor is contiguous.
  bool contiguous() const;

  /// Returns the address of the first element. Throws if T isn't the element type.
  template <Element T>
  Qualified<T>* as() const {
    check_dtype(dtype_of<T>());
    return reinterpret_cast<Qualified<T>*>(data_);
  }
  /// Returns all elements in row-major order. Throws if the tensor isn't contiguous or T isn't the element type.
  template <Element T>
  std::span<Qualified<T>> span() const {
    check_contiguous();
    return {as<T>(), elements()};
  }

  /// Returns the view of indices [first, first + count) of a dim.
  BasicTensor slice(std::size_t dim, std::size_t first, std::size_t count) const;
  /// Returns the view of one index of a dim, without that dim.
  BasicTensor select(std::size_t dim, std::size_t index) const;
  /// Returns the view with two dims swapped.
  BasicTensor transposed(std::size_t a, std::size_t b) const;
  /// Splits a dim into two, the second of size `inner`: [S, n·d] → [S, n, d].
  BasicTensor split(std::size_t dim, std::size_t inner) const;
  /// Merges a dim with the next: [B, S, h] → [B·S, h]. Throws if the elements of the two aren't evenly spaced.
  BasicTensor merged(std::size_t dim) const;
  /// Returns a contiguous tensor with another shape of as many elements. Throws if this view isn't contiguous.
  BasicTensor reshaped(std::initializer_list<std::size_t> sizes) const;

  /// Returns element type and shape: "f32 [2, 3, 64]".
  std::string describe() const;

 private:
  std::size_t checked(std::size_t dim) const;
  void check_count(std::size_t count) const;
  void check_dtype(DType dtype) const;
  void check_contiguous() const;
  [[noreturn]] void fail(const std::string& what) const;

  Byte* data_ = nullptr;
  DType dtype_ = DType::byte;
  std::size_t dims_ = 0;
  std::array<std::size_t, kMaxDims> sizes_{};
  std::array<std::size_t, kMaxDims> strides_{};
};

extern template class BasicTensor<std::byte>;
extern template class BasicTensor<const std::byte>;

/// A writable view of a tensor.
using Tensor = BasicTensor<std::byte>;
/// A read-only view of a tensor.
using ConstTensor = BasicTensor<const std::byte>;

/// Returns true if both tensors have the same number of dims and the same sizes. Ignores element type and strides.
bool same_shape(const ConstTensor& a, const ConstTensor& b);

}  // namespace tsprun::detail
