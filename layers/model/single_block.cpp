// Sets up layer 0 of a model with its weights and its tokens, and runs it.
#include "layers/model/single_block.h"

#include "core/trace/recorder.h"
#include "layers/parameters/place.h"
#include "layers/schedules/strategies.h"
#include "transport/cause.h"
#include <fmt/format.h>

#include <utility>

namespace tsprun::detail {

namespace {

/// The packs of the store: attention, MLP, then both norm gains.
constexpr std::size_t kNormPack = 2;

ModelOptions of_one_layer(ModelOptions options) {
  if (!options.config.has_gains_only()) {
    throw Error(Cause::refused,
                fmt::format("a single block of {}: only models of Llama's kind have blocks without biases", options.config.name));
  }
  options.config.layers = 1;
  return options;
}

/// Returns this rank's packs. Each data rank's block is a whole of its own.
std::vector<PackPlan> packs_of(const ModelConfig& config, Mesh& mesh) {
  const Layout replica = mesh.layout().without(Cut::batch);
  return Placement(config, replica, mesh.world().rank() % replica.ranks()).packs(block_parameters(config, 0));
}

}  // namespace

SingleBlock::SingleBlock(Rank& rank, Mesh& mesh, const ModelOptions& options, std::size_t batch, std::size_t sequence)
    : rank_(rank),
      mesh_(mesh),
      options_(of_one_layer(options)),
      strategy_(make_strategy(rank, mesh,
                              {.config = options_.config, .dtype = options.dtype, .kv_bucket_heads = options.kv_bucket_heads})),
      store_(rank, options.dtype, packs_of(options_.config, mesh), options.training),
      tokens_(rank, mesh, options_.config, options.dtype, batch, sequence),
      block_(rank, *strategy_, options_.config, options.dtype, options.recompute) {}

BlockVectors SingleBlock::vectors() const {
  const auto norm = [&](std::size_t part) {
    return NormWeights{.gain = store_.values(kNormPack, part, 1).select(0, 0),
                       .bias = {},
                       .gain_gradient = store_.training() ? store_.gradients(kNormPack, part, 1).select(0, 0) : Tensor(),
                       .bias_gradient = {}};
  };
  return {.attention = norm(0), .mlp = norm(1)};
}

OwnedTensor SingleBlock::forward(OwnedTensor x) {
  const TraceSpan span(rank_.trace(), "forward");
  visits_ = Visits(options_.training ? training_tasks(1, 1) : forward_tasks(1));
  pass_ = strategy_->begin({.store = store_, .tokens = tokens_, .visits = visits_});
  OwnedTensor y = block_.forward({.sublayers = *pass_, .tokens = tokens_}, 0, std::move(x), vectors(),
                                 options_.training ? Keep::backward : Keep::nothing, saved_);
  if (options_.training) return y;
  pass_->end();
  pass_.reset();
  return y;
}

void SingleBlock::backward(const Tensor& d) {
  const TraceSpan span(rank_.trace(), "backward");
  const Tensor norm_gradients = store_.gradients(kNormPack, 0, 2);
  rank_.compute().fill_zero(norm_gradients);
  pass_->begin_backward();
  block_.backward({.sublayers = *pass_, .tokens = tokens_}, 0, d, vectors(), saved_);
  const Buffer both = buffer_of(norm_gradients);
  Communicator& with_other_tokens = mesh_.group(summed_over(mesh_.layout(), PackKind::replicated).replica.front());
  rank_.wait(
      with_other_tokens.post_all_reduce(both, both, Reduction::sum, {.stream = Stream::gradients, .purpose = Purpose::other}));
  pass_->end();
  pass_.reset();
}

}  // namespace tsprun::detail
