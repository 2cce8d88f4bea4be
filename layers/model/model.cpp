// Lays out the packs of all parameters, runs passes through the blocks, and applies the optimizer.
#include "layers/model/model.h"

#include "core/kernels/check.h"
#include "core/trace/recorder.h"
#include "layers/schedules/head_plan.h"
#include "layers/schedules/tp/vocabulary.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>

namespace tsprun::detail {

namespace {

/// Packs after those of the blocks: replicated parameters (norms of layer 0, …, final norm, positions), embedding, head unless it
/// is tied, and last, if there are any, biases (layers/schedules/biases.h).
constexpr std::size_t kEmbeddingAfterReplicated = 1;
constexpr std::size_t kHeadAfterReplicated = 2;

TrafficCounters operator-(const TrafficCounters& after, const TrafficCounters& before) {
  TrafficCounters difference;
  for (int i = 0; i < kPurposes; ++i) {
    difference.sent[i] = after.sent[i] - before.sent[i];
    difference.received[i] = after.received[i] - before.received[i];
  }
  return difference;
}

PartPlan whole(const Parameter& parameter) {
  return {.parameter = parameter,
          .block = {.first_row = 0, .rows = parameter.rows(), .first_column = 0, .columns = parameter.columns()}};
}

/// Plans a vector of any length as a column, so that vectors of different lengths fit one pack.
PartPlan column(const Parameter& parameter) {
  PartPlan part = whole(parameter);
  part.transposed = true;
  return part;
}

}  // namespace

Model::Model(Rank& rank, Mesh& mesh, const ModelOptions& options)
    : rank_(rank),
      mesh_(mesh),
      options_(options),
      vocabulary_rows_(Chunks::balanced(mesh_.vocabulary().size(), options.config.vocabulary)),
      strategy_(make_strategy(rank, mesh,
                              {.config = options.config, .dtype = options.dtype, .kv_bucket_heads = options.kv_bucket_heads})),
      store_(rank, options.dtype, plan_packs(), options.training),
      block_(rank, *strategy_, options.config, options.dtype, options.recompute),
      sums_(rank, mesh.data(), store_) {}

Model::~Model() = default;

// --- parameters --------------------------------------------------------------------------------------------------------------

std::vector<PackPlan> Model::plan_packs() const {
  std::vector<PackPlan> packs;
  for (std::size_t layer = 0; layer < options_.config.layers; ++layer) {
    packs.push_back(strategy_->attention_pack(layer));
    packs.push_back(strategy_->mlp_pack(layer));
  }
  PackPlan replicated;
  PackPlan positions;
  PackPlan embedding;
  PackPlan head;
  PackPlan biases;
  for (const Parameter& parameter : model_parameters(options_.config)) {
    PartPlan part = whole(parameter);
    part.counted = mesh_.tensor().rank() == 0 && mesh_.sequence().rank() == 0;  // for replicated parameters
    switch (parameter.role) {
      case ParameterRole::attention_norm:
      case ParameterRole::attention_norm_bias:
      case ParameterRole::output_bias:
      case ParameterRole::mlp_norm:
      case ParameterRole::mlp_norm_bias:
      case ParameterRole::down_bias:
      case ParameterRole::final_norm:
      case ParameterRole::final_norm_bias: replicated.parts.push_back(std::move(part)); break;
      case ParameterRole::positions: positions.parts.push_back(std::move(part)); break;
      case ParameterRole::query_key_value_bias:
      case ParameterRole::up_bias:
        biases.parts.push_back(column(parameter));
        biases.parts.back().counted = part.counted;
        break;
      case ParameterRole::embedding:
      case ParameterRole::head:
        part.block.first_row = vocabulary_rows_.offset(mesh_.vocabulary().rank());
        part.block.rows = vocabulary_rows_.count(mesh_.vocabulary().rank());
        part.counted = !mesh_.layout().cuts_vocabulary_over_tensor() || mesh_.sequence().rank() == 0;
        (parameter.role == ParameterRole::head ? head : embedding).parts.push_back(std::move(part));
        break;
      default: break;
    }
  }
  std::ranges::move(positions.parts, std::back_inserter(replicated.parts));
  packs.push_back(std::move(replicated));
  packs.push_back(std::move(embedding));
  if (!options_.config.tied_embeddings) packs.push_back(std::move(head));
  if (options_.config.projection_biases() > 0) packs.push_back(std::move(biases));
  if (mesh_.data().rank() > 0) {
    for (PackPlan& pack : packs) {
      for (PartPlan& part : pack.parts) part.counted = false;
    }
  }
  return packs;
}

Token Model::first_own_id() const {
  return static_cast<Token>(std::min(vocabulary_rows_.offset(mesh_.vocabulary().rank()), options_.config.vocabulary - 1));
}

Vocabulary::Weights Model::vocabulary_weights() const {
  const std::size_t embedding = replicated_pack() + kEmbeddingAfterReplicated;
  const std::size_t head = options_.config.tied_embeddings ? embedding : replicated_pack() + kHeadAfterReplicated;
  Vocabulary::Weights weights{.embedding = store_.values(embedding, 0, 1),
                              .embedding_gradient = {},
                              .head = store_.values(head, 0, 1),
                              .head_gradient = {},
                              .tied = options_.config.tied_embeddings};
  if (options_.training) {
    weights.embedding_gradient = store_.gradients(embedding, 0, 1);
    weights.head_gradient = store_.gradients(head, 0, 1);
  }
  return weights;
}

std::pair<Tensor, Tensor> Model::replicated(ParameterRole role, std::size_t layer) const {
  for (const ParameterPart& part : store_.parts()) {
    if (part.plan.parameter.role == role && part.plan.parameter.layer == layer) return {part.value, part.gradient};
  }
  return {};
}

NormWeights Model::norm(ParameterRole gain, ParameterRole bias, std::size_t layer) const {
  const Bias of_gain = this->bias(gain, layer);
  const Bias of_bias = this->bias(bias, layer);
  return {of_gain.values, of_bias.values, of_gain.gradient, of_bias.gradient};
}

/// Returns any replicated vector [h] and its gradient.
Bias Model::bias(ParameterRole role, std::size_t layer) const {
  const auto [values, gradient] = replicated(role, layer);
  const auto row = [](const Tensor& part) { return part.dims() == 0 ? Tensor() : part.select(0, 0); };
  return {row(values), row(gradient)};
}

BlockVectors Model::vectors(std::size_t layer) const {
  return {.attention = norm(ParameterRole::attention_norm, ParameterRole::attention_norm_bias, layer),
          .mlp = norm(ParameterRole::mlp_norm, ParameterRole::mlp_norm_bias, layer),
          .attention_output = bias(ParameterRole::output_bias, layer),
          .mlp_output = bias(ParameterRole::down_bias, layer)};
}

NormWeights Model::final_norm_weights() const { return norm(ParameterRole::final_norm, ParameterRole::final_norm_bias, 0); }

// --- a pass ------------------------------------------------------------------------------------------------------------------

void Model::check_tokens(const TokenBatch& tokens) const {
  if (rank_.is_phantom() && tokens.ids.empty() && tokens.labels.empty()) return;
  if (tokens.sequence == 0 || tokens.batch == 0 || tokens.ids.size() != tokens.batch * tokens.sequence ||
      tokens.labels.size() != tokens.ids.size()) {
    throw Error(Cause::refused, fmt::format("a batch of {} × {} tokens with {} ids and {} labels", tokens.batch, tokens.sequence,
                                            tokens.ids.size(), tokens.labels.size()));
  }
}

void Model::check_positions(std::size_t sequence) const {
  if (options_.config.rotary_positions() || sequence <= options_.config.max_positions) return;
  throw Error(Cause::refused, fmt::format("sequences of {} tokens; {} has {} learned positions", sequence, options_.config.name,
                                          options_.config.max_positions));
}

void Model::set_layout(std::size_t batch, std::size_t sequence) {
  if (layout_ && layout_->batch() == batch && layout_->sequence() == sequence) return;
  check_positions(sequence);
  vocabulary_.reset();
  layout_.reset();
  const bool sliced = mesh_.layout().slices_tokens();
  layout_ = std::make_unique<TokenLayout>(rank_, options_.config, options_.dtype, batch, sequence, mesh_.sequence().rank(),
                                          mesh_.sequence().size(), sliced ? mesh_.tensor().rank() : 0,
                                          sliced ? mesh_.tensor().size() : 1);
  positions_of_rows_.clear();
  if (!options_.config.rotary_positions()) {
    std::vector<std::uint32_t> natural(batch * sequence);
    for (std::size_t i = 0; i < natural.size(); ++i) natural[i] = static_cast<std::uint32_t>(i % sequence);
    positions_of_rows_ = layout_->take(layout_->holder(), std::span<const std::uint32_t>(natural));
  }
  const Setting setting{.model = options_.config,
                        .batch = batch,
                        .sequence = sequence,
                        .bytes = ElementBytes::of(options_.dtype),
                        .recompute = options_.recompute};
  if (mesh_.layout().cuts_vocabulary_over_tensor()) {
    vocabulary_ =
        std::make_unique<TensorVocabulary>(rank_, mesh_.tensor(), mesh_.sequence(), vocabulary_rows_, vocabulary_weights());
  } else {
    vocabulary_ =
        std::make_unique<ExchangedVocabulary>(rank_, mesh_.tokens(), vocabulary_rows_, head_plan(setting), vocabulary_weights());
  }
}

OwnedTensor Model::final_norm(const Tensor& x) {
  OwnedTensor y =
      rank_.tensor(Category::workspace, options_.dtype, {layout_->held_rows(), options_.config.hidden}, "normed output");
  apply_norm(rank_.compute(), options_.config, y, x.merged(0), final_norm_weights());
  return y;
}

Loss Model::forward(const TokenBatch& tokens, const LogitsSink* logits, bool keep) {
  const TraceSpan span(rank_.trace(), "forward");
  const TrafficCounters before = rank_.context().traffic();
  check_tokens(tokens);
  Loss loss;
  loss.tokens = static_cast<std::uint64_t>(std::ranges::count_if(tokens.labels, [](std::int64_t label) { return label >= 0; }));
  saved_ = {};
  saved_.weight = loss.tokens == 0 ? 0 : 1 / static_cast<double>(loss.tokens);

  // The data axis cuts the batch into whole sequences.
  const Chunks sequences = Chunks::balanced(mesh_.data().size(), tokens.batch);
  if (keep && tokens.batch % static_cast<std::size_t>(mesh_.data().size()) != 0) {
    throw Error(Cause::refused, fmt::format("a batch of {} sequences doesn't divide by the data axis' {} ranks", tokens.batch,
                                            mesh_.data().size()));
  }
  const std::size_t first = sequences.offset(mesh_.data().rank()) * tokens.sequence;
  const std::size_t count = sequences.count(mesh_.data().rank()) * tokens.sequence;
  const LogitsSink shifted = [&](std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& tile) {
    std::vector<std::size_t> of_all(rows.begin(), rows.end());
    for (std::size_t& row : of_all) row += first;
    (*logits)(of_all, first_id, tile);
  };
  if (count > 0) {
    loss.mean = forward_own({.batch = sequences.count(mesh_.data().rank()),
                             .sequence = tokens.sequence,
                             .ids = tokens.ids.empty() ? tokens.ids : tokens.ids.subspan(first, count),
                             .labels = tokens.labels.empty() ? tokens.labels : tokens.labels.subspan(first, count),
                             .seed = tokens.seed,
                             .step = tokens.step},
                            first, logits == nullptr || first == 0 ? logits : &shifted, keep);
  }
  sum_over_world({&loss.mean, 1});
  loss.mean *= saved_.weight;
  forward_traffic_ = rank_.context().traffic() - before;
  return loss;
}

void Model::sum_over_world(std::span<double> values) {
  const Buffer buffer(values.data(), values.size(), DType::f64);
  rank_.wait(mesh_.world().post_all_reduce(buffer, buffer, Reduction::sum));
}

/// Adds learned positions, if the model has them, to the embedded tokens x [rows, h].
void Model::add_positions(const Tensor& x) {
  if (options_.config.rotary_positions()) return;
  const OwnedTensor rows = rank_.tensor(Category::workspace, options_.dtype, {x.size(0), x.size(1)}, "learned positions");
  rank_.compute().gather_rows(rows, positions(), positions_of_rows_);
  rank_.compute().add(x, x, rows.view());
}

/// Prepares the dropout of a pass. `first_token`: number of this data rank's first token in the whole batch.
void Model::begin_dropout(const TokenBatch& own, std::size_t first_token, bool keep) {
  draws_.reset();
  if (keep && options_.config.drops()) {
    std::vector<std::uint64_t> natural(own.batch * own.sequence);
    std::iota(natural.begin(), natural.end(), std::uint64_t{first_token});
    draws_.emplace(own.seed, own.step, layout_->take(layout_->holder(), std::span<const std::uint64_t>(natural)),
                   own.sequence == 0 ? 0 : first_token / own.sequence);
  }
  block_.drop(draws_ ? &*draws_ : nullptr);
}

/// Applies dropout to the embedded tokens, or to their gradient.
void Model::drop_embedding(const Tensor& x) {
  if (!draws_ || options_.config.embedding_dropout == 0) return;
  rank_.compute().dropout(x, x, draws_->tokens(), draws_->at(0, DropoutSite::embedding, options_.config.embedding_dropout));
}

/// Computes the forward pass of this data rank's sequences. Returns this rank's part of the sum of losses; the sum of all ranks'
/// parts is the whole.
double Model::forward_own(const TokenBatch& own, std::size_t first_token, const LogitsSink* logits, bool keep) {
  set_layout(own.batch, own.sequence);
  begin_dropout(own, first_token, keep);
  strategy_->begin_forward(store_, *layout_);
  const Category kept = keep ? Category::activations : Category::workspace;
  OwnedTensor x = layout_->residual(rank_, kept, options_.dtype, options_.config.hidden, "embedded tokens");
  vocabulary_->embed(x->merged(0), *layout_, own.ids, kept);
  add_positions(x->merged(0));
  drop_embedding(x->merged(0));
  rank_.enter_stage([] { return std::string("embedding, forward"); });
  rank_.look(Watched::result, x.view());
  if (keep) saved_.blocks.resize(options_.config.layers);
  for (std::size_t layer = 0; layer < options_.config.layers; ++layer) {
    const TraceSpan span_of_layer(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    BlockSaved nothing;
    x = block_.forward(layer, std::move(x), *layout_, vectors(layer), keep ? Keep::backward : Keep::nothing,
                       keep ? saved_.blocks[layer] : nothing);
  }
  rank_.enter_stage([] { return std::string("head, forward"); });
  rank_.look(Watched::input, x.view());
  OwnedTensor lse = rank_.tensor(kept, kernels::summed_in(options_.dtype), {layout_->held_rows()}, "log-sum-exp of the head");
  const double sum = vocabulary_->head(final_norm(x).view(), lse, *layout_, own.labels, logits, keep);
  rank_.look(Watched::head_statistics, lse.view());
  if (keep) {
    saved_.x = std::move(x);
    saved_.lse = std::move(lse);
  } else {
    strategy_->end();
  }
  return sum;
}

void Model::prefill(std::span<const Token> ids, const KvSink& sink) {
  const TraceSpan span(rank_.trace(), "prompt");
  set_layout(1, ids.size());
  strategy_->begin_forward(store_, *layout_);
  OwnedTensor x = layout_->residual(rank_, Category::workspace, options_.dtype, options_.config.hidden, "embedded tokens");
  vocabulary_->embed(x->merged(0), *layout_, ids, Category::workspace);
  add_positions(x->merged(0));
  block_.drop(nullptr);
  for (std::size_t layer = 0; layer < options_.config.layers; ++layer) {
    const TraceSpan span_of_layer(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    BlockSaved saved;
    x = block_.forward(layer, std::move(x), *layout_, vectors(layer), Keep::kv, saved);
    sink(layer, saved.attention.k, saved.attention.v, *layout_);
  }
  strategy_->end();
}

Loss Model::evaluate(const TokenBatch& tokens, const LogitsSink* logits) { return forward(tokens, logits, false); }

Loss Model::forward_backward(const TokenBatch& tokens) {
  if (!options_.training) throw Error(Cause::refused, "a model that wasn't made for training has no gradients");
  const Loss loss = forward(tokens, nullptr, true);
  backward();
  return loss;
}

void Model::backward() {
  const TraceSpan span(rank_.trace(), "backward");
  ComputeStream& compute = rank_.compute();
  const TrafficCounters before = rank_.context().traffic();
  const std::size_t embedding = replicated_pack() + kEmbeddingAfterReplicated;
  compute.fill_zero(store_.gradients(replicated_pack()));
  if (options_.config.projection_biases() > 0) compute.fill_zero(store_.gradients(bias_pack_number(store_)));

  strategy_->on_gradients([this](std::size_t pack) { sums_.post(pack, Purpose::gradients); });
  strategy_->begin_backward();
  const OwnedTensor d = layout_->residual(rank_, Category::workspace, kernels::summed_in(options_.dtype), options_.config.hidden,
                                          "gradient of the residual");
  {
    const OwnedTensor dx = rank_.tensor(Category::workspace, d->dtype(), {layout_->held_rows(), options_.config.hidden},
                                        "gradient of the head's input");
    vocabulary_->head_backward(dx, final_norm(saved_.x).view(), saved_.lse, *layout_, saved_.weight);
    norm_backward(compute, options_.config, d->merged(0), dx, saved_.x->merged(0), final_norm_weights(), kernels::Write::replace);
  }
  rank_.enter_stage([] { return std::string("head, backward"); });
  rank_.look(Watched::input_gradient, d.view());
  if (!options_.config.tied_embeddings) sums_.post(replicated_pack() + kHeadAfterReplicated, Purpose::head);
  saved_.x.reset();
  saved_.lse.reset();
  for (std::size_t layer = options_.config.layers; layer-- > 0;) {
    const TraceSpan span_of_layer(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    block_.backward(layer, d, vectors(layer), saved_.blocks[layer]);
  }
  drop_embedding(d->merged(0));
  vocabulary_->embed_backward(d->merged(0));
  sums_.post(embedding, Purpose::embedding);
  if (!options_.config.rotary_positions()) {
    const Tensor gradient = replicated(ParameterRole::positions, 0).second;
    compute.scatter_add_rows(gradient, d->merged(0), positions_of_rows_);
  }
  sum_replicated_gradients();
  strategy_->end();
  for (std::size_t pack = 0; pack < replicated_pack(); ++pack) {
    if (!sums_.posted(pack)) sums_.post(pack, Purpose::gradients);
  }
  sums_.finish();
  saved_ = {};
  backward_traffic_ = rank_.context().traffic() - before;
}

/// Sums the gradients of replicated parameters over the ranks that have other tokens, and those of the projections' biases also
/// over the ranks that have other slices of heads and rows.
void Model::sum_replicated_gradients() {
  const CallOptions other{.stream = Stream::gradients, .purpose = Purpose::other};
  const auto sum = [&](Communicator& ranks, std::size_t pack) {
    const Buffer gradients = buffer_of(store_.gradients(pack));
    rank_.wait(ranks.post_all_reduce(gradients, gradients, Reduction::sum, other));
  };
  sum(mesh_.tokens(), replicated_pack());
  sums_.post(replicated_pack(), Purpose::other);
  if (options_.config.projection_biases() == 0) return;
  const std::size_t biases = bias_pack_number(store_);
  sum(mesh_.tokens(), biases);
  if (!mesh_.layout().slices_tokens()) sum(mesh_.tensor(), biases);
  sums_.post(biases, Purpose::other);
}

// --- optimizer ---------------------------------------------------------------------------------------------------------------

double Model::gradient_norm(bool* wish) {
  const TraceSpan span(rank_.trace(), "gradient norm");
  double sum = 0;
  for (const ParameterPart& part : store_.parts()) {
    if (part.plan.counted) sum += rank_.compute().sum_of_squares(part.gradient);
  }
  std::array<double, 2> sums = {sum, wish != nullptr && *wish ? 1.0 : 0.0};
  sum_over_world(sums);
  if (wish != nullptr) *wish = sums[1] > 0;
  return std::sqrt(sums[0]);
}

void Model::update(const UpdateOptions& options, double norm) {
  const TraceSpan span(rank_.trace(), "update");
  kernels::AdamW step{.learning_rate = options.learning_rate,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .epsilon = options.epsilon,
                      .weight_decay = 0,
                      .step = options.step,
                      .gradient_scale = kernels::clip_factor(norm, options.clip)};
  for (const ParameterPart& part : store_.parts()) {
    step.weight_decay = part.plan.parameter.is_matrix() ? options.weight_decay : 0;
    rank_.compute().adamw(step, part.value, part.master, part.m, part.v, part.gradient);
  }
}

}  // namespace tsprun::detail
