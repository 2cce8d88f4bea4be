// A tensor that owns its memory: a block of the rank's heap and a view of it.
#pragma once

#include "core/memory/heap.h"
#include "core/tensor/tensor.h"

#include <span>
#include <utility>

namespace tsprun::detail {

/// A contiguous tensor in the rank's heap, whose memory it gives back when destroyed. Movable, not copyable.
class OwnedTensor {
 public:
  /// Makes a tensor without dims and memory.
  OwnedTensor() = default;
  /// Takes `block` as the memory of a contiguous tensor of these sizes. It must be large enough for it.
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
  /// Returns true if the tensor was allocated, even with zero elements.
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

/// Returns the elements of a tensor, which must be contiguous (this isn't checked), as a communicator's buffer.
inline Buffer buffer_of(const Tensor& tensor) { return {tensor.data(), tensor.elements(), tensor.dtype()}; }
inline ConstBuffer buffer_of(const ConstTensor& tensor) { return {tensor.data(), tensor.elements(), tensor.dtype()}; }

}  // namespace tsprun::detail
