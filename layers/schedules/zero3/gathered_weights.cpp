// Fetches a sublayer's weights one sublayer ahead, and reduce-scatters gradients one behind.
#include "layers/schedules/zero3/gathered_weights.h"

#include "layers/schedules/packs.h"

#include <utility>

namespace tsprun::detail {

namespace {

static_assert(attention_pack_number(0) % 2 == 0 && mlp_pack_number(0) % 2 == 1, "as sublayers_ lie");

}  // namespace

GatheredWeights::GatheredWeights(Rank& rank, Communicator& axis, const ModelConfig& config)
    : SublayerWeights(rank),
      axis_(axis),
      sublayers_{{{Chunks::balanced(axis.size(),
                                    pack_rows(attention_pack_plan(config, 0, {0, config.query_heads}, {0, config.kv_heads}))),
                   {}},
                  {Chunks::balanced(axis.size(), pack_rows(mlp_pack_plan(config, 0, 0, config.intermediate))), {}}}} {}

PackPlan GatheredWeights::stored(PackPlan whole) const {
  const Chunks rows = Chunks::balanced(axis_.size(), pack_rows(whole));
  return cut_pack(std::move(whole), rows.offset(axis_.rank()), rows.count(axis_.rank()));
}

// --- weights -------------------------------------------------------------------------------------------------------------------

/// Begins to gather the pack of a visit, if there is one.
void GatheredWeights::fetch(const Visit* next) {
  if (next == nullptr || axis_.size() == 1) return;
  const std::size_t pack = pack_number(*next);
  const Tensor own = store().values(pack);
  auto& [rows, gathered] = sublayer(pack);
  gathered.tensor = rank().tensor(Category::communication, own.dtype(), {rows.total(), own.size(1)}, "weights of a sublayer");
  gathered.work =
      axis_.post_all_gather_v(buffer_of(ConstTensor(own)), buffer_of(gathered.tensor.view()),
                              rows.counts(axis_.size(), own.size(1)), {.stream = Stream::weights, .purpose = Purpose::weights});
}

void GatheredWeights::begin_forward(const ParameterStore& store, const Visits& visits) {
  SublayerWeights::begin_forward(store, visits);
  fetch(visits.upcoming(1));
}

void GatheredWeights::begin_backward(const MicroBatch& of) {
  SublayerWeights::begin_backward(of);
  fetch(visits().upcoming(1));
}

Tensor GatheredWeights::visit(std::size_t pack) {
  fetch(visits().next_in_pass());  // its weights arrive while this pack is computed
  if (axis_.size() == 1) return SublayerWeights::visit(pack);
  rank().wait(sublayer(pack).gathered.work);
  return sublayer(pack).gathered.tensor;
}

void GatheredWeights::used(std::size_t pack) { sublayer(pack).gathered = {}; }

// --- gradients -----------------------------------------------------------------------------------------------------------------

Tensor GatheredWeights::gradients(std::size_t pack) {
  end();  // the sums of the pack before
  if (axis_.size() == 1) return SublayerWeights::gradients(pack);
  const Tensor own = store().gradients(pack);
  scattered_.tensor = rank().tensor(Category::communication, own.dtype(), {sublayer(pack).rows.total(), own.size(1)},
                                    "weight gradients of a sublayer");
  return scattered_.tensor;
}

void GatheredWeights::written(std::size_t pack) {
  if (axis_.size() == 1) {
    add_own();
    return;
  }
  own_ = {rank(), micro_batch(), store().gradients(pack), Category::communication, "weight gradients of a micro-batch"};
  scattered_.work = axis_.post_reduce_scatter_v(buffer_of(ConstTensor(scattered_.tensor.view())), buffer_of(own_.rows()),
                                                sublayer(pack).rows.counts(axis_.size(), own_.rows().size(1)), Reduction::sum,
                                                {.stream = Stream::gradients, .purpose = Purpose::gradients});
}

void GatheredWeights::end() {
  if (!scattered_.tensor.exists()) return;
  rank().wait(scattered_.work);
  scattered_ = {};
  own_.add();
}

}  // namespace tsprun::detail
