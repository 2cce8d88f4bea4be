// Goes over to two numbers for each log-sum-exp when one can't hold it.
#include "layers/schedules/log_sum_exps.h"

namespace tsprun::detail {

LogSumExps::LogSumExps(Rank& rank, Category category, DType sums, const std::array<std::size_t, 3>& sizes, std::string_view what)
    : memory_(std::make_shared<Memory>(Memory{
          rank, category, std::string(what), category == Category::activations, rank.tensor(category, sums, sizes, what), {}})),
      count_(sizes[1]) {}

LogSumExps LogSumExps::heads(std::size_t first, std::size_t count) const {
  LogSumExps part = *this;
  part.first_ += first;
  part.count_ = count;
  return part;
}

Tensor LogSumExps::view() const {
  const OwnedTensor& all = memory_->two.exists() ? memory_->two : memory_->one;
  return all->slice(1, first_, count_);
}

void LogSumExps::take(double scale, const ConstTensor& numbers, const ConstTensor& o) const {
  ComputeStream& compute = memory_->rank.compute();
  if (!memory_->two.exists()) {
    compute.round_lse(scale, view(), numbers);
    if (!widen_if_lost(view(), o)) return;
  }
  compute.convert(view(), numbers);
}

bool LogSumExps::widen_if_lost(const ConstTensor& written, const ConstTensor& o) const {
  auto& [rank, category, what, read, one, two] = *memory_;
  if (!read || two.exists() || !rank.compute().has_lost_lse(written, o)) return false;
  two = rank.tensor(category, one->dtype(), {one->size(0), one->size(1), one->size(2), 2}, what + " in two numbers");
  rank.compute().fill_zero(two);
  rank.compute().convert(two->slice(3, 0, 1), one->split(2, 1));
  one.reset();
  return true;
}

}  // namespace tsprun::detail
