// Runs batches through a model: tokens to embedding, blocks, head and loss, and back to the gradients of all parameters.
#include "core/kernels/check.h"
#include "core/trace/recorder.h"
#include "layers/layout/dealt_documents.h"
#include "layers/model/model.h"
#include "layers/schedules/head_plan.h"
#include "layers/schedules/pipeline.h"
#include "layers/schedules/tp/vocabulary.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tsprun::detail {

namespace {

/// What a vocabulary is told of each micro-batch where data ranks have parts of the tables: its gradient is written whole, and
/// summed by OwnPacks.
constexpr MicroBatch kEachIsWhole{.number = 0, .count = 2};

}  // namespace

void Model::count_backward(const TrafficCounters& since) { backward_traffic_ += rank_.context().traffic() - since; }

void Model::RowsGiven::note(const MicroBatch& of, const PipelineStage& stage, std::size_t rows) {
  const std::size_t lead = std::max<std::size_t>(stage.count - 1, 1);
  const std::size_t tail = stage.count - 1;
  if (of.first()) most_.assign(lead + 1 + tail, 0);
  const std::size_t left = of.count - 1 - of.number;
  std::size_t& most = most_[of.number < lead ? of.number : left < tail ? lead + 1 + left : lead];
  most = std::max(most, rows);
}

void Model::check_tokens(const TokenBatch& tokens) const {
  if (rank_.is_phantom() && tokens.ids.size() <= 1 && tokens.labels.empty()) return;
  if (tokens.sequence == 0 || tokens.batch == 0 || tokens.ids.size() != tokens.batch * tokens.sequence ||
      tokens.labels.size() != tokens.ids.size()) {
    throw Error(Cause::refused, fmt::format("a batch of {} × {} tokens with {} ids and {} labels", tokens.batch, tokens.sequence,
                                            tokens.ids.size(), tokens.labels.size()));
  }
  for (const std::int64_t label : tokens.labels) {
    if (label != kernels::kNoLabel && (label < 0 || label >= static_cast<std::int64_t>(options_.config.vocabulary)))
      throw Error(Cause::refused, fmt::format("label {}: the vocabulary has {} ids; {} stands for no label", label,
                                              options_.config.vocabulary, kernels::kNoLabel));
  }
}

void Model::check_positions(std::size_t sequence) const {
  if (!options_.config.learned_positions || sequence <= options_.config.max_positions) return;
  throw Error(Cause::refused, fmt::format("sequences of {} tokens; {} has {} learned positions", sequence, options_.config.name,
                                          options_.config.max_positions));
}

std::size_t Model::expect(std::size_t sequence) {
  if (sequence <= longest_) return longest_;
  longest_ = sequence;
  if (options_.config.rope_scaling.kind == RopeScaling::Kind::longrope) layout_.reset();  // whose rotations may be others now
  return longest_;
}

void Model::set_layout(std::size_t batch, std::size_t sequence, bool packed) {
  if (layout_ && layout_->batch() == batch && layout_->sequence() == sequence && layout_->packed() == packed) return;
  check_positions(sequence);
  layout_.reset();
  layout_ = std::make_unique<TokenLayout>(rank_, mesh_, options_.config, options_.dtype, batch, sequence, longest_, packed);
  positions_of_rows_.clear();
  if (options_.config.learned_positions) {
    std::vector<std::uint32_t> natural(batch * sequence);
    for (std::size_t i = 0; i < natural.size(); ++i) natural[i] = static_cast<std::uint32_t>(i % sequence);
    positions_of_rows_ = layout_->take(layout_->holder(), std::span<const std::uint32_t>(natural));
  }
  const Setting setting{.model = options_.config,
                        .batch = batch,
                        .sequence = sequence,
                        .bytes = ElementBytes::of(options_.dtype),
                        .recompute = options_.recompute};
  head_plan_ = head_plan(setting);
}

/// Returns the embedding, head and loss of a pass of layout_'s tokens.
std::unique_ptr<Vocabulary> Model::vocabulary_of(const MicroBatch& pass) {
  return vocabulary_with(cuts_tables() ? of_model({}) : vocabulary_weights(), cuts_tables() ? kEachIsWhole : pass);
}

std::unique_ptr<Vocabulary> Model::vocabulary_with(const Vocabulary::Weights& weights, const MicroBatch& of) {
  if (mesh_.layout().cuts_vocabulary_over_tensor()) {
    Communicator& with_copies = mesh_.group(summed_over(mesh_.layout(), PackKind::embedding).replica.front());
    return std::make_unique<TensorVocabulary>(rank_, vocabulary_ranks_, with_copies, vocabulary_rows_, weights, of);
  }
  return std::make_unique<ExchangedVocabulary>(rank_, vocabulary_ranks_, vocabulary_rows_, head_plan_, weights, of);
}

/// Returns what looks up the rows of the table of layers' inputs; it is cut as the vocabulary is.
std::unique_ptr<Vocabulary> Model::input_table_of(const MicroBatch& pass) {
  if (cuts_tables()) return vocabulary_with({}, kEachIsWhole);
  const Tensor gradient = options_.training ? store_.gradients(inputs_pack(), 0, 1) : Tensor();
  return vocabulary_with({.embedding = input_table(), .embedding_gradient = gradient}, pass);
}

/// Returns the table's rows of layout_'s tokens, [rows, L·w].
OwnedTensor Model::input_rows(Vocabulary& table, std::span<const Token> ids, Category kept) {
  OwnedTensor rows = rank_.tensor(
      kept, options_.dtype, {layout_->held_rows(), options_.config.layers * options_.config.layer_input}, "inputs of layers");
  table.embed(rows, *layout_, ids, kept);
  return rows;
}

/// Returns the layers' inputs of tokens whose embedding is x [rows, h], and whose rows of the table these are.
LayerInputs Model::layer_inputs(OwnedTensor table_rows, const Tensor& x, Category kept, bool trains) {
  LayerInputs inputs(rank_, options_.config, std::move(table_rows), kept);
  inputs.make(x, input_weights(), trains);
  return inputs;
}

/// Returns the head's input: the normed residual, times the factor of logits, since these are linear in it.
OwnedTensor Model::final_norm(const Tensor& x) {
  OwnedTensor y =
      rank_.tensor(Category::workspace, options_.dtype, {layout_->held_rows(), options_.config.hidden}, "normed output");
  apply_norm(rank_.compute(), options_.config, y, x.merged(0), final_norm_weights(), options_.config.logits_factor());
  return y;
}

/// Checks a batch and counts its predicted tokens, by which the losses of all its parts are divided.
Loss Model::begin_batch(const TokenBatch& tokens) {
  check_tokens(tokens);
  Loss loss;
  loss.tokens = static_cast<std::uint64_t>(std::ranges::count_if(tokens.labels, [](std::int64_t label) { return label >= 0; }));
  forward_traffic_ = backward_traffic_ = {};
  return loss;
}

/// Returns this data rank's sequences: the data axis cuts the batch into whole ones.
Model::Part Model::own_part(const TokenBatch& tokens) const {
  const Layout& layout = mesh_.layout();
  const Chunks sequences = Chunks::balanced(layout.data(), tokens.batch);
  const int replica = layout.data_place(mesh_.world().rank());
  return {sequences.offset(replica), sequences.count(replica)};
}

void Model::sum_over_world(std::span<double> values) {
  const Buffer buffer(values.data(), values.size(), DType::f64);
  rank_.wait(mesh_.world().post_all_reduce(buffer, buffer, Reduction::sum));
}

/// Returns the rows of the learned positions that are the tokens' of a pass's residual.
std::span<const std::uint32_t> Model::learned_rows(const Pass& pass) const {
  return pass.documents.any() ? pass.documents.held_positions(*layout_) : positions_of_rows_;
}

/// Multiplies the embedded tokens x [rows, h] and adds these learned positions, if the model does so.
void Model::complete_embedding(const Tensor& x, std::span<const std::uint32_t> positions_of_rows) {
  if (const double factor = options_.config.embedding_factor(); factor != 1) rank_.compute().multiply(x, x, factor);
  if (!options_.config.learned_positions) return;
  const OwnedTensor rows = rank_.tensor(Category::workspace, options_.dtype, {x.size(0), x.size(1)}, "learned positions");
  rank_.compute().gather_rows(rows, positions(), positions_of_rows);
  rank_.compute().add(x, x, rows.view());
}

/// Brings a pass's ids and labels into the order in which documents are dealt, if they are.
void Model::deal_tokens(Pass& pass) {
  if (!pass.documents.deals()) return;
  if (pass.own.ids.size() > 1) pass.own.ids = pass.dealt_ids = pass.documents.dealt(pass.own.ids);
  if (!pass.own.labels.empty()) pass.own.labels = pass.dealt_labels = pass.documents.dealt(pass.own.labels);
}

/// Makes the pass of some of a batch's sequences ready. `logits` may be null.
Model::Pass Model::begin_pass(const TokenBatch& tokens, const Part& part, const MicroBatch& of, std::uint64_t predicted,
                              const LogitsSink* logits, bool keep) {
  const std::size_t first = part.first * tokens.sequence;
  const std::size_t count = part.count * tokens.sequence;
  Pass pass;
  pass.of = of;
  pass.keep = keep;
  pass.own = {.batch = part.count,
              .sequence = tokens.sequence,
              .ids = tokens.ids.size() <= 1 ? tokens.ids : tokens.ids.subspan(first, count),
              .labels = tokens.labels.empty() ? tokens.labels : tokens.labels.subspan(first, count),
              .document_end = tokens.document_end,
              .documents = tokens.documents};
  pass.weight = predicted == 0 ? 0 : 1 / static_cast<double>(predicted);
  set_layout(part.count, tokens.sequence, tokens.packed());
  if (tokens.packed()) {
    const bool deal = !mesh_.layout().exchanges_heads() && deals_documents(options_.config, layout_->cut());
    pass.documents = tokens.document_end ? PackedDocuments(rank_, *layout_, pass.own.ids, *tokens.document_end, deal)
                                         : PackedDocuments(rank_, *layout_, tokens.documents, deal);
    deal_tokens(pass);
  }
  std::vector<std::uint64_t> numbers;  // of the tokens in the whole batch, in the order in which they are cut
  if (logits != nullptr || (keep && options_.config.drops())) {
    numbers.resize(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = first + pass.documents.number_at(i);
  }
  if (keep && options_.config.drops()) {
    pass.draws.emplace(tokens.seed, tokens.step, layout_->take(layout_->holder(), std::span<const std::uint64_t>(numbers)),
                       part.first);
  }
  if (logits != nullptr) {
    pass.logits = [numbers = std::move(numbers), logits](std::span<const std::size_t> rows, std::size_t first_id,
                                                         const ConstTensor& tile) {
      std::vector<std::size_t> of_all(rows.begin(), rows.end());
      for (std::size_t& row : of_all) row = numbers[row];
      (*logits)(of_all, first_id, tile);
    };
  }
  if (keep || options_.config.lends()) pass.blocks.resize(options_.config.layers);
  return pass;
}

/// Applies dropout to the embedded tokens, or to their gradient.
void Model::drop_embedding(const Pass& pass, const Tensor& x) {
  if (!pass.draws || options_.config.embedding_dropout == 0) return;
  rank_.compute().dropout(x, x, pass.draws->tokens(),
                          pass.draws->at(0, DropoutSite::embedding, options_.config.embedding_dropout));
}

void Model::prefill(std::span<const Token> ids, const KvSink& sink) {
  refuse_pipeline("generate");
  const TraceSpan span(rank_.trace(), "prompt");
  set_layout(1, ids.size());
  visits_ = Visits(forward_tasks(options_.config.layers, false));
  const std::unique_ptr<StrategyPass> sublayers = strategy_->begin({.store = store_, .tokens = *layout_, .visits = visits_});
  OwnedTensor x = layout_->residual(rank_, Category::workspace, options_.dtype, options_.config.hidden, "embedded tokens");
  const std::unique_ptr<Vocabulary> vocabulary = vocabulary_of({});
  vocabulary->embed(x->merged(0), *layout_, ids, Category::workspace);
  complete_embedding(x->merged(0), positions_of_rows_);
  std::optional<LayerInputs> inputs;
  if (has_layer_inputs()) {
    const std::unique_ptr<Vocabulary> table = input_table_of({});
    inputs.emplace(layer_inputs(input_rows(*table, ids, Category::workspace), x->merged(0), Category::workspace, false));
  }
  std::vector<BlockSaved> blocks(options_.config.lends() ? options_.config.layers : 0);
  for (std::size_t layer = 0; layer < options_.config.layers; ++layer) {
    const TraceSpan span_of_layer(rank_.trace(), "layer", static_cast<std::int64_t>(layer));
    BlockSaved own;
    BlockSaved& saved = blocks.empty() ? own : blocks[layer];
    take_lender(options_.config, blocks, layer);
    x = block_.forward({.sublayers = *sublayers, .tokens = *layout_, .inputs = inputs ? &*inputs : nullptr}, layer, std::move(x),
                       vectors(layer), Keep::kv, saved);
    if (options_.config.layer(layer).projects_keys()) sink(layer, saved.attention.k, saved.attention.v, *layout_);
    drop_lent(options_.config, blocks, layer);
  }
  sublayers->end();
}

Loss Model::evaluate(const TokenBatch& tokens, const LogitsSink* logits) {
  refuse_pipeline("evaluate");
  Loss loss = begin_batch(tokens);
  Part own = own_part(tokens);
  TokenBatch computed = tokens;
  std::vector<std::int64_t> none;
  if (own.count == 0 && !mesh_.layout().shares_weights()) {
    sum_losses(loss);
    return loss;
  }
  if (own.count == 0) {
    // The others gather weights from this rank, too: it computes a sequence with them, and predicts nothing.
    own = {.first = 0, .count = 1};
    none.assign(tokens.labels.size(), kernels::kNoLabel);
    computed.labels = none;
    logits = nullptr;
  }
  const TraceSpan span(rank_.trace(), "forward");
  const TaskList tasks = forward_tasks(options_.config.layers);
  visits_ = Visits(tasks);
  Pass pass = begin_pass(computed, own, {}, loss.tokens, logits, false);
  for (const ModelTask& task : tasks) run(task, pass);
  end_forward(loss, pass);
  return loss;
}

Loss Model::forward_backward(const TokenBatch& tokens) {
  return forward_backward(tokens, training_tasks(PipelineSchedule::one_forward_one_backward, stage_, tokens.micro_batches));
}

Loss Model::forward_backward(const TokenBatch& tokens, const TaskList& tasks) {
  if (!options_.training) throw Error(Cause::refused, "a model that wasn't made for training has no gradients");
  const std::size_t M = tokens.micro_batches;
  const auto replicas = static_cast<std::size_t>(mesh_.layout().data());
  if (M == 0 || tokens.batch % replicas != 0 || tokens.batch / replicas % M != 0) {
    throw Error(Cause::refused, fmt::format("a batch of {} sequences doesn't divide by the data axis' {} ranks{}", tokens.batch,
                                            replicas, M == 1 ? "" : fmt::format(" times {} micro-batches", M)));
  }
  Loss loss = begin_batch(tokens);
  const Part own = own_part(tokens);
  const std::size_t count = own.count / M;
  check_training_tasks(tasks, stage_, M);
  visits_ = Visits(tasks);
  std::optional<TraceSpan> micro_batch;  // if there are several
  std::optional<TraceSpan> direction;
  const ModelTask* before = nullptr;
  std::vector<std::optional<Pass>> passes(M);  // that are under way, by micro-batch
  for (const ModelTask& task : tasks) {
    if (task.kind == TaskKind::update) break;  // update() does it, after gradient_norm()
    if (task.kind == TaskKind::reduce) {
      reduce(*passes.back());
      continue;
    }
    const bool forward = !task.is_backward();
    const std::size_t m = task.micro_batch;
    if (before == nullptr || before->micro_batch != m || before->is_backward() != task.is_backward()) {
      direction.reset();
      if (M > 1 && (before == nullptr || before->micro_batch != m)) {
        micro_batch.reset();
        micro_batch.emplace(rank_.trace(), "micro-batch", static_cast<std::int64_t>(m));
      }
      direction.emplace(rank_.trace(), forward ? "forward" : "backward");
    }
    before = &task;
    if (!passes[m]) {
      passes[m].emplace(
          begin_pass(tokens, {own.first + m * count, count}, {.number = m, .count = M}, loss.tokens, nullptr, true));
    }
    Pass& pass = *passes[m];
    run(task, pass);
    if (forward && task.piece == Piece::head) end_forward(loss, pass);
    const bool at_end = task.piece == Piece::embedding || task.kind == TaskKind::send;
    if (!forward && at_end && !pass.of.last()) passes[m].reset();  // reduce() ends the last
  }
  if (stage_.count > 1) sum_losses(loss);
  return loss;
}

/// Adds a pass's losses to those of the batch, and with the last pass makes them the mean of all ranks' tokens. Under a pipeline
/// only the last stage has losses; all ranks sum them up at the end of the step.
void Model::end_forward(Loss& loss, const Pass& pass) {
  loss.mean += pass.loss;
  if (pass.of.last() && stage_.count == 1) sum_losses(loss);
}

/// Throws Error(refused) under a pipeline, which trains only.
void Model::refuse_pipeline(std::string_view what) const {
  if (stage_.count > 1)
    throw Error(Cause::refused, fmt::format("a model of {} pipeline stages can't {} yet", stage_.count, what));
}

void Model::sum_losses(Loss& loss) {
  const TrafficCounters before = rank_.context().traffic();
  if (stage_.count == 1) {
    sum_over_world({&loss.mean, 1});
  } else {
    // The last stage sums its ranks' losses as a world without a pipeline does, so that bits are the same, and tells the others.
    const Buffer sum(&loss.mean, 1, DType::f64);
    std::vector<AxisKind> axes;
    for (const Axis& axis : mesh_.layout().without(Cut::layers).axes) axes.push_back(axis.kind);
    if (stage_.last()) rank_.wait(mesh_.group(axes).post_all_reduce(sum, sum, Reduction::sum));
    rank_.wait(stages().post_broadcast(sum, stages().size() - 1));
  }
  if (loss.tokens > 0) loss.mean *= 1 / static_cast<double>(loss.tokens);
  else loss.mean = 0;
  forward_traffic_ += rank_.context().traffic() - before;
}

/// Adds the gradients of both ends' copies of the embedding, so that both have the sum.
void Model::sum_shared_embedding() {
  const Tensor gradient = store_.gradients(embedding_pack());
  if (gradient.elements() > 0) {
    const int other = stage_.first() ? stages().size() - 1 : 0;
    const OwnedTensor theirs = rank_.tensor(Category::communication, gradient.dtype(), {gradient.size(0), gradient.size(1)},
                                            "gradient of the other end's embedding");
    rank_.wait(stages().post_send_recv(buffer_of(ConstTensor(gradient)), other, buffer_of(theirs.view()), other,
                                       {.stream = Stream::gradients, .purpose = Purpose::embedding}));
    rank_.compute().add(gradient, gradient, theirs.view());
  }
  sums_.post(embedding_pack(), Purpose::embedding);
}

/// Sums the gradients of parameters that every rank holds over the ranks that compute other terms of them.
void Model::sum_replicated_gradients() {
  const auto sum = [&](PackKind kind, std::size_t pack) {
    for (const std::vector<AxisKind>& axes : summed_over(mesh_.layout(), kind).replica) {
      const Buffer gradients = buffer_of(store_.gradients(pack));
      rank_.wait(mesh_.group(axes).post_all_reduce(gradients, gradients, Reduction::sum,
                                                   {.stream = Stream::gradients, .purpose = Purpose::other}));
    }
    sums_.post(pack, Purpose::other);
  };
  sum(PackKind::replicated, replicated_pack());
  if (options_.config.projection_vectors() > 0) sum(PackKind::biases, bias_pack_number(store_));
}

}  // namespace tsprun::detail
