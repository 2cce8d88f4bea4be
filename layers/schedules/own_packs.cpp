// Gathers packs over the data ranks, and scatters their gradients.
#include "layers/schedules/own_packs.h"

#include "layers/schedules/all_reduce.h"

#include <utility>

namespace tsprun::detail {

PackRanks PackRanks::of(Mesh& mesh, PackKind pack) {
  const SummedOver sums = summed_over(mesh.layout(), pack);
  const std::vector<AxisKind> copies = sums.at_owners ? std::vector<AxisKind>() : sums.replica.front();
  std::vector<AxisKind> of_part = sums.data;
  of_part.insert(of_part.end(), copies.begin(), copies.end());
  return {.sharers = &mesh.group(sums.sharers), .copies = &mesh.group(copies), .copies_of_part = &mesh.group(of_part)};
}

OwnPacks::OwnPacks(Rank& rank, const PackRanks& ranks, const ParameterStore& store, const MicroBatch& of,
                   BeforeScatter before_scatter)
    : rank_(rank), ranks_(ranks), store_(store), micro_batch_(of), before_scatter_(std::move(before_scatter)) {}

/// Returns the row with which a part begins.
std::size_t OwnPacks::row_of(std::size_t pack, std::size_t part) const {
  std::size_t row = 0;
  for (std::size_t i = 0; i < part; ++i) row += store_.plan(pack).parts[i].rows();
  return row;
}

/// Allocates all rows of a pack.
OwnedTensor OwnPacks::whole(std::size_t pack, DType dtype, std::string_view what) const {
  const PackPlan& plan = store_.plan(pack);
  return rank_.tensor(Category::communication, dtype, {pack_rows(plan), plan.parts.front().width()}, what);
}

// --- weights -------------------------------------------------------------------------------------------------------------------

void OwnPacks::fetch(std::size_t pack) {
  if (!is_cut(pack) || gathered_.contains(pack)) return;
  const Tensor own = store_.held_values(pack);
  Transfer transfer{.tensor = whole(pack, own.dtype(), "weights of a pack"), .work = {}};
  transfer.work = ranks_.sharers->post_all_gather_v(buffer_of(ConstTensor(own)), buffer_of(transfer.tensor.view()),
                                                    store_.states_cut(pack).counts(ranks_.sharers->size()),
                                                    {.stream = Stream::weights, .purpose = Purpose::weights});
  gathered_.emplace(pack, std::move(transfer));
}

Tensor OwnPacks::values(std::size_t pack, std::size_t first, std::size_t count) const {
  if (!is_cut(pack)) return store_.values(pack, first, count);
  const std::size_t row = row_of(pack, first);
  return gathered_.at(pack).tensor->slice(0, row, row_of(pack, first + count) - row);
}

Work OwnPacks::arrival(std::size_t pack) const { return is_cut(pack) ? gathered_.at(pack).work : Work(); }

// --- gradients -----------------------------------------------------------------------------------------------------------------

MicroBatchGradient OwnPacks::gradient(std::size_t pack, std::size_t first, std::size_t count, Category category,
                                      std::string_view what) {
  if (!is_cut(pack)) return {rank_, micro_batch_, store_.gradients(pack, first, count), category, what};
  OwnedTensor& all = gradients_[pack];
  if (!all.exists()) {
    settle();
    all = whole(pack, store_.held_gradients(pack).dtype(), "weight gradients of a pack");
  }
  const std::size_t row = row_of(pack, first);
  // Every micro-batch's is written whole, and added when it has been scattered.
  return {rank_, MicroBatch{}, all->slice(0, row, row_of(pack, first + count) - row), category, what};
}

void OwnPacks::complete(std::size_t pack, Purpose purpose) {
  const auto at = gradients_.find(pack);
  if (at == gradients_.end()) return;
  Scattered& sum = scattered_.emplace_back();
  sum.pack = pack;
  sum.purpose = purpose;
  sum.whole = std::move(at->second);
  gradients_.erase(at);
  if (before_scatter_) before_scatter_(pack, sum.whole);
  const Tensor own = store_.held_gradients(pack);
  sum.own = {rank_, micro_batch_, own.reshaped({1, own.elements()}), Category::communication,
             "part of the weight gradients of a micro-batch"};
  sum.work = ranks_.sharers->post_reduce_scatter_v(buffer_of(ConstTensor(sum.whole.view())), buffer_of(sum.own.rows()),
                                                   store_.states_cut(pack).counts(ranks_.sharers->size()), Reduction::sum,
                                                   {.stream = Stream::gradients, .purpose = purpose});
}

/// Waits for the sums that are under way, and adds them to those of earlier micro-batches.
void OwnPacks::settle() {
  for (; !scattered_.empty(); scattered_.pop_front()) {
    Scattered& sum = scattered_.front();
    rank_.wait(sum.work);
    sum.whole.reset();
    sum.own.add();
    const Tensor own = store_.held_gradients(sum.pack);
    if (ranks_.copies_of_part->size() == 1 || !micro_batch_.last() || own.elements() == 0) continue;
    summing_copies_.push_back(post_sum(*ranks_.copies_of_part, own, {.stream = Stream::gradients, .purpose = sum.purpose}));
  }
}

void OwnPacks::end() {
  settle();
  for (const Work& work : summing_copies_) rank_.wait(work);
  summing_copies_.clear();
}

}  // namespace tsprun::detail
