// Runs models, decoders and single blocks on phantom ranks, and reads the peaks of their heaps and what they would receive.
#include "layers/theory/peaks.h"

#include "core/kernels/check.h"
#include "core/program/recorder.h"
#include "layers/model/model.h"
#include "layers/model/single_block.h"
#include "transport/bootstrap/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace tsprun::detail::theory {

namespace {

constexpr std::size_t kTellingPasses = 2;  // buffers that are kept for later use exist from the second pass on

PhantomOptions likeness(int ranks, int number, const PeakOptions& options) {
  PhantomOptions like = options.like;
  like.touched = options.recorder != nullptr && options.recorder->runs_kernels();
  if (!like.peers.empty() || (options.nodes == 1 && options.share)) return like;
  const int here = bootstrap::node_of(ranks, options.nodes, number);
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = bootstrap::node_of(ranks, options.nodes, rank);
    like.peers.push_back({.node = node, .views = rank == number || (options.share && node == here)});
  }
  return like;
}

ModelOptions model_options(const MeshSetting& of, const PeakOptions& options) {
  return {.config = of.setting.model,
          .dtype = of.setting.bytes.dtype(),
          .recompute = of.setting.recompute,
          .training = options.training,
          .kv_bucket_heads = options.kv_bucket_heads};
}

/// Returns the batch of a setting.
TokenBatch batch_of(const Setting& setting, std::span<const Token> ids = {}, std::span<const std::int64_t> labels = {}) {
  return {.batch = setting.batch,
          .sequence = setting.sequence,
          .ids = ids,
          .labels = labels,
          .documents = setting.documents,
          .micro_batches = setting.micro_batches};
}

/// Returns the tensor of a part that takes most scratch to read and write: its values, or the sums that training keeps of them.
const Tensor& widest(const ParameterStore& store, const ParameterPart& part) { return store.training() ? part.m : part.value; }

/// Books what it takes to fill a store from files. Elements are turned in scratch memory where the store has columns as rows.
void read_files(Rank& rank, const ParameterStore& store) {
  const auto read = [&](const ParameterPart& part, const Tensor& tensor) {
    fill_natural_blocks(rank, part.plan, tensor, [](const safetensors::Rectangle&, Buffer) {});
  };
  if (store.shares_states()) {
    for (const ParameterPart& part : store.parts()) read(part, part.value);
  }
  for (const ParameterPart& part : store.states()) read(part, widest(store, part));
}
/// Books what it takes to write a store's parameters, moments or gradients: each rank those that it counts.
void write_files(Rank& rank, const ParameterStore& store) {
  for (const ParameterPart& part : store.states()) {
    if (part.plan.counted)
      for_natural_blocks(rank, part.plan, widest(store, part), [](const safetensors::Rectangle&, ConstBuffer) {});
  }
}

}  // namespace

/// A phantom rank and its place on a mesh.
struct PhantomRank {
  Context context;
  Rank rank;
  Mesh mesh;

  PhantomRank(const MeshSetting& of, int number, const PeakOptions& options)
      : context(make_phantom(number, of.layout.ranks(), likeness(of.layout.ranks(), number, options))),
        rank(context, {.threads = options.threads, .trace = nullptr, .recorder = options.recorder, .pieces = options.pieces}),
        mesh(context.world(), of.layout) {}
};

// --- a run -------------------------------------------------------------------------------------------------------------------

struct RunPeaks::Parts {
  PhantomRank phantom;
  Model model;

  Parts(const MeshSetting& of, int number, const PeakOptions& options)
      : phantom(of, number, options), model(phantom.rank, phantom.mesh, model_options(of, options)) {
    model.parameters().fill_fresh(of.setting.model.layers, 0);
    if (options.files) read_files(phantom.rank, model.parameters());
  }
};

namespace {

/// Calls body(), and says what a user can do where a phantom's address space isn't enough.
template <class Body>
auto countable(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.cause() != Cause::out_of_memory) throw;
    throw Error(
        Cause::out_of_memory,
        fmt::format("a rank would need more memory than can be counted; more ranks, --recompute full, a smaller --batch or "
                    "a smaller --seq need less ({})",
                    error.what()));
  }
}

}  // namespace

RunPeaks::RunPeaks(const MeshSetting& of, int rank, const PeakOptions& options)
    : parts_(countable([&] { return std::make_unique<Parts>(of, rank, options); })), training_(options.training) {}

RunPeaks::~RunPeaks() = default;

void RunPeaks::evaluate(const TokenBatch& tokens) {
  countable([&] { parts_->model.evaluate(tokens); });
}

void RunPeaks::pass(const TokenBatch& tokens) {
  if (!training_) {
    evaluate(tokens);
    return;
  }
  Model& model = parts_->model;
  countable([&] {
    model.forward_backward(tokens);
    model.update({}, model.gradient_norm());
  });
}

void RunPeaks::pass_with_own_ids(TokenBatch tokens) {
  const Token id = parts_->model.first_own_id();
  tokens.ids = {&id, 1};
  pass(tokens);
}

void RunPeaks::save() { write_files(parts_->phantom.rank, parts_->model.parameters()); }

Traffic RunPeaks::traffic() const {
  const Model& model = parts_->model;
  return {.forward = PurposeBytes::received(model.forward_traffic()),
          .backward = PurposeBytes::received(model.backward_traffic())};
}

CategoryBytes RunPeaks::use() const { return heap_of(parts_->phantom.context).use(); }

CategoryBytes RunPeaks::peaks() const { return parts_->phantom.rank.memory_peaks(); }

RecordedStep record_step(const MeshSetting& of, int rank, PeakOptions options, int passes, bool count_received) {
  Recorder recorder;
  if (count_received) recorder.count_received();
  options.recorder = &recorder;
  RunPeaks run(of, rank, options);
  const TokenBatch tokens = batch_of(of.setting);
  for (int pass = 1; pass < passes; ++pass) run.pass(tokens);
  recorder.begin(run.use());
  run.pass(tokens);
  RecordedStep step{.program = recorder.end(), .traffic = run.traffic(), .peaks = run.peaks()};
  if (options.training) run.save();
  step.saving = run.peaks().total;
  return step;
}

void DecisivePasses::note(std::uint64_t number, const TokenBatch& tokens, const Model::RowsGiven& rows, std::uint64_t held) {
  const auto surpasses = [&](const Pass& pass) {
    return pass.batch == tokens.batch && pass.sequence == tokens.sequence && pass.micro_batches == tokens.micro_batches &&
           std::ranges::equal(pass.rows.most(), rows.most(), std::greater_equal<>());
  };
  const bool changed = held != held_;
  if (!changed && std::ranges::any_of(alike_, surpasses)) return;
  numbers_.push_back(number);
  if (changed) alike_.clear();
  else alike_.push_back({tokens.batch, tokens.sequence, tokens.micro_batches, rows});
  held_ = held;
}

CategoryBytes peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids, const PeakOptions& options) {
  RunPeaks run(of, rank, options);
  const std::vector<std::int64_t> labels(ids.size(), 0);
  for (std::size_t pass = 0; pass < std::min(options.passes, kTellingPasses); ++pass) run.pass(batch_of(of.setting, ids, labels));
  return run.peaks();
}

std::vector<int> asked(const MeshSetting& of) {
  const int most = fullest(of);
  std::vector<int> ranks = {most};
  const int replica = of.layout.replica();
  // What depends on the tokens are rows of the embedding, on the first stage.
  const int of_others = std::min(replica, std::max(1, kMostAsked / of.layout.stages()));
  for (int stage = 0; stage < of.layout.stages(); ++stage) {
    const int asked = stage == 0 ? std::min(replica, kMostAsked) : of_others;
    for (int rank = stage * replica; rank < stage * replica + asked; ++rank) {
      if (rank != most) ranks.push_back(rank);
    }
  }
  return ranks;
}

namespace {

/// Totals for ids of any kind: of the steps, and with a checkpoint that is saved after them.
struct WorstTotals {
  std::uint64_t steps;
  std::uint64_t saving;
};
WorstTotals totals_for_any_ids(const MeshSetting& of, int rank, const PeakOptions& options) {
  RunPeaks run(of, rank, options);
  for (std::size_t pass = 0; pass < std::min(options.passes, kTellingPasses); ++pass) run.pass_with_own_ids(batch_of(of.setting));
  const std::uint64_t steps = run.peaks().total;
  if (options.training) run.save();
  return {steps, run.peaks().total};
}

}  // namespace

Need need(const MeshSetting& of, const PeakOptions& options) {
  Need result;
  for (const int rank : asked(of)) {
    const CategoryBytes evenly = peaks(of, rank, {}, options);
    if (evenly.total > result.evenly.total) result.evenly = evenly;
    const WorstTotals worst = totals_for_any_ids(of, rank, options);
    result.any_ids = std::max({result.any_ids, evenly.total, worst.steps});
    result.saving = std::max({result.saving, result.any_ids, worst.saving});
  }
  return result;
}

bool fits(const MeshSetting& of, std::uint64_t budget, const PeakOptions& options) {
  try {
    return std::ranges::all_of(asked(of), [&](int rank) {
      return peaks(of, rank, {}, options).total <= budget && totals_for_any_ids(of, rank, options).steps <= budget;
    });
  } catch (const Error& error) {
    if (error.cause() != Cause::out_of_memory) throw;
    return false;  // nor into a phantom's address space
  }
}

RankCounts decoding_counts(const MeshSetting& of, int rank, std::span<const DecodedText> texts, const PeakOptions& options) {
  PhantomRank phantom(of, rank, options);
  Model model(phantom.rank, phantom.mesh, model_options(of, options));
  model.parameters().fill_fresh(of.setting.model.layers, 0);
  std::vector<std::size_t> positions;
  std::vector<std::vector<Token>> prompts;
  for (const DecodedText& text : texts) {
    positions.push_back(std::max(text.room, text.prompt.size() + text.added.size()));
    prompts.push_back(text.prompt);
  }
  Decoder decoder(phantom.rank, model, std::move(positions));
  RankCounts counts;
  const TrafficCounters at_first = phantom.context.traffic();
  decoder.prompt(prompts);
  counts.traffic.forward = PurposeBytes::received(phantom.context.traffic() - at_first);
  const TrafficCounters after_prompt = phantom.context.traffic();
  std::vector<Token> next(texts.size());
  for (std::size_t i = 0; i < texts.front().added.size(); ++i) {
    for (std::size_t text = 0; text < texts.size(); ++text) next[text] = texts[text].added[i];
    decoder.step(next);
  }
  counts.tokens = PurposeBytes::received(phantom.context.traffic() - after_prompt);
  counts.memory = phantom.rank.memory_peaks();
  return counts;
}

RankCounts block_counts(const MeshSetting& of, int rank, const PeakOptions& options) {
  const DType dtype = of.setting.bytes.dtype();
  PhantomRank phantom(of, rank, options);
  SingleBlock block(phantom.rank, phantom.mesh, model_options(of, options), of.setting.batch, of.setting.sequence);
  block.parameters().fill_fresh(of.setting.model.layers, 0);
  if (options.files) read_files(phantom.rank, block.parameters());
  RankCounts counts;
  const TrafficCounters at_first = phantom.context.traffic();
  OwnedTensor y = block.forward(block.residual(block.kept(), dtype, "x"));
  counts.traffic.forward = PurposeBytes::received(phantom.context.traffic() - at_first);
  if (options.training) {
    const TrafficCounters at_half = phantom.context.traffic();
    y.reset();
    const OwnedTensor d = block.residual(Category::workspace, kernels::summed_in(dtype), "dy");
    block.backward(d);
    counts.traffic.backward = PurposeBytes::received(phantom.context.traffic() - at_half);
    if (options.files) write_files(phantom.rank, block.parameters());
  }
  counts.memory = phantom.rank.memory_peaks();
  return counts;
}

}  // namespace tsprun::detail::theory
