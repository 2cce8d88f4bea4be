// A tensor that owns its memory: a block of the rank's heap and the view on it.
#pragma once

#include "core/memory/heap.h"
#include "core/tensor/tensor.h"

#include <span>
#include <utility>

namespace tsprun {

class OwnedTensor {
 public:
  /// No dims, no memory.
  OwnedTensor() = default;
  /// `block` holds at least as many bytes as the contiguous view.
  OwnedTensor(HeapBlock block, DType dtype, std::span<const std::size_t> sizes)
      : block_(std::move(block)), view_(block_.bytes().data(), dtype, sizes) {}
  OwnedTensor(OwnedTensor&& other) noexcept : block_(std::move(other.block_)), view_(std::exchange(other.view_, {})) {}
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    block_ = std::move(other.block_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }
  operator ConstTensor() const { return view_; }
  const Tensor* operator->() const { return &view_; }
  /// True if it was allocated, if only for zero elements.
  bool exists() const { return view_.dims() != 0; }
  /// Gives the memory back.
  void reset() {
    view_ = {};
    block_.reset();
  }

 private:
  HeapBlock block_;
  Tensor view_;
};

/// A contiguous tensor as communicators take it.
inline Buffer buffer_of(const Tensor& tensor) { return {tensor.data(), tensor.elements(), tensor.dtype()}; }
inline ConstBuffer buffer_of(const ConstTensor& tensor) { return {tensor.data(), tensor.elements(), tensor.dtype()}; }

}  // namespace tsprun
