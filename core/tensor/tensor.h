// Views of tensors: address, element type, up to four dims with strides. A view owns nothing; the memory is its arena's. Kernels
// take Tensor for what they write and ConstTensor for what they read; slices, head splits and transposes are views of the same
// memory.
#pragma once

#include "core/tensor/dtype.h"

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

namespace tsprun {

inline constexpr std::size_t kMaxDims = 4;

/// A view whose bytes are writable (Byte = std::byte) or not (const std::byte). Sizes and strides count elements. A program that
/// asks for what the shape doesn't have (a dim, a slice, an element type) gets std::invalid_argument with the view's description.
template <class Byte>
class BasicTensor {
 public:
  template <class T>
  using Qualified = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  /// No dims, no elements.
  BasicTensor() = default;
  /// A contiguous tensor at `data`.
  BasicTensor(Byte* data, DType dtype, std::span<const std::size_t> sizes);
  BasicTensor(Byte* data, DType dtype, std::initializer_list<std::size_t> sizes)
      : BasicTensor(data, dtype, std::span(sizes.begin(), sizes.size())) {}
  /// A contiguous tensor over `elements`, which must be as many as the sizes say.
  template <Element T>
  BasicTensor(std::span<T> elements, std::initializer_list<std::size_t> sizes)
      : BasicTensor(reinterpret_cast<Byte*>(elements.data()), dtype_of<std::remove_const_t<T>>(), sizes) {
    check_count(elements.size());
  }
  /// A writable view can be read.
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
  std::size_t elements() const;  ///< 0 for a view without dims
  std::size_t bytes() const { return elements() * size_of(dtype_); }
  bool empty() const { return elements() == 0; }
  /// Elements lie one after another in row-major order. Dims of size 1 don't matter; an empty tensor is contiguous.
  bool contiguous() const;

  /// The address of the first element, as its type.
  template <Element T>
  Qualified<T>* as() const {
    check_dtype(dtype_of<T>());
    return reinterpret_cast<Qualified<T>*>(data_);
  }
  /// The elements of a contiguous tensor.
  template <Element T>
  std::span<Qualified<T>> span() const {
    check_contiguous();
    return {as<T>(), elements()};
  }

  /// `count` indices of a dim, from `first` on.
  BasicTensor slice(std::size_t dim, std::size_t first, std::size_t count) const;
  /// One index of a dim; the dim goes away.
  BasicTensor select(std::size_t dim, std::size_t index) const;
  /// Two dims swapped.
  BasicTensor transposed(std::size_t a, std::size_t b) const;
  /// One dim as two, the second of size `inner`: [S, n·d] → [S, n, d].
  BasicTensor split(std::size_t dim, std::size_t inner) const;
  /// A dim and the next as one: [B, S, h] → [B·S, h]. Their elements must be evenly spaced.
  BasicTensor merged(std::size_t dim) const;
  /// Another shape of a contiguous tensor with as many elements.
  BasicTensor reshaped(std::initializer_list<std::size_t> sizes) const;

  /// "f32 [2, 3, 64]"
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

/// A view to write through.
using Tensor = BasicTensor<std::byte>;
/// A view to read.
using ConstTensor = BasicTensor<const std::byte>;

/// True if both have the same dims with the same sizes.
bool same_shape(const ConstTensor& a, const ConstTensor& b);

}  // namespace tsprun
