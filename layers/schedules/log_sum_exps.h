// Log-sum-exps of a layer's attention, from its forward to its backward pass.
#pragma once

#include "core/rank/rank.h"

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tsprun::detail {

/// Handle of the log-sum-exps of some heads, in the type of sums: one number each, or two (core/kernels/flash.h) from the first
/// on that a backward pass will read and that one number can't hold, which takes scaled scores beyond 2¹⁵ in f32. Forecasts count
/// one. Copies share the memory.
class LogSumExps {
 public:
  LogSumExps() = default;
  /// Allocates one number each, for heads and tokens `sizes` = {B, n, S}. `rank` must outlive the memory.
  LogSumExps(Rank& rank, Category category, DType sums, const std::array<std::size_t, 3>& sizes, std::string_view what);

  bool exists() const { return memory_ != nullptr; }
  /// Says that a backward pass will read them. It is so from the start where they are saved activations.
  void will_be_read() const { memory_->read = true; }
  /// Returns those of `count` heads from `first` on.
  LogSumExps heads(std::size_t first, std::size_t count) const;
  /// Returns [B, n, S] or [B, n, S, 2].
  Tensor view() const;

  /// Calls attend(view of `count` tokens from `first` on), which computes their o; once more if that has lost what will be read.
  template <class Attend>
  void write(std::size_t first, std::size_t count, const ConstTensor& o, const Attend& attend) const {
    attend(view().slice(2, first, count));
    if (widen_if_lost(view().slice(2, first, count), o)) attend(view().slice(2, first, count));
  }
  /// Takes them from `numbers` [B, n, S, 2], rounded to one number each if that can hold them. `o`: the attention's output.
  void take(double scale, const ConstTensor& numbers, const ConstTensor& o) const;

 private:
  struct Memory {
    Rank& rank;
    Category category;
    std::string what;
    bool read;
    OwnedTensor one;
    OwnedTensor two;  // exists once one number wasn't enough
  };
  bool widen_if_lost(const ConstTensor& written, const ConstTensor& o) const;

  std::shared_ptr<Memory> memory_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace tsprun::detail
