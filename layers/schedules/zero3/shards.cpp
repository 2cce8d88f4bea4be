#include "layers/schedules/zero3/shards.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Returns the number of elements of each rank's rows.
std::vector<std::size_t> elements_of(const Chunks& rows, int ranks, std::size_t width) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(rows.count(r) * width);
  return counts;
}

}  // namespace

PackPlan cut_pack(const PackPlan& whole, std::size_t first, std::size_t count) {
  PackPlan cut = whole;
  std::size_t row = 0;
  for (PartPlan& part : cut.parts) {
    const std::size_t rows = part.rows();
    const std::size_t from = std::clamp(first, row, row + rows) - row;
    const std::size_t to = std::clamp(first + count, row, row + rows) - row;
    if (part.transposed) {
      part.block.first_column += from;
      part.block.columns = to - from;
    } else {
      part.block.first_row += from;
      part.block.rows = to - from;
    }
    row += rows;
  }
  return cut;
}

std::size_t pack_rows(const PackPlan& plan) {
  std::size_t rows = 0;
  for (const PartPlan& part : plan.parts) rows += part.rows();
  return rows;
}

void GatheredPack::fetch(Rank& rank, Communicator& axis, const Tensor& own, const Chunks& rows) {
  if (axis.size() == 1) {
    whole_ = own;
    return;
  }
  memory_ = rank.tensor(Category::communication, own.dtype(), {rows.total(), own.size(1)}, "weights of a sublayer");
  whole_ = memory_;
  work_ = axis.post_all_gather_v(buffer_of(ConstTensor(own)), buffer_of(whole_), elements_of(rows, axis.size(), own.size(1)),
                                 {.stream = Stream::weights, .purpose = Purpose::weights});
}

const Tensor& GatheredPack::wait(Rank& rank) {
  rank.wait(work_);
  return whole_;
}

Tensor ScatteredGradients::begin(Rank& rank, Communicator& axis, const Tensor& own, const Chunks& rows) {
  settle();
  rank_ = &rank;
  axis_ = &axis;
  own_ = own;
  if (axis.size() == 1) return own;
  counts_ = elements_of(rows, axis.size(), own.size(1));
  memory_ = rank.tensor(Category::communication, own.dtype(), {rows.total(), own.size(1)}, "weight gradients of a sublayer");
  return memory_;
}

void ScatteredGradients::scatter() {
  if (axis_->size() == 1) return;
  work_ = axis_->post_reduce_scatter_v(buffer_of(ConstTensor(memory_.view())), buffer_of(own_), counts_, Reduction::sum,
                                       {.stream = Stream::gradients, .purpose = Purpose::gradients});
}

void ScatteredGradients::settle() {
  if (!memory_.exists()) return;
  rank_->wait(work_);
  memory_.reset();
}

}  // namespace tsprun::detail
