// `tsprun block`: one transformer block, forward and backward, on tensors from files, for comparison with another implementation.
#include "core/kernels/check.h"
#include "core/kernels/finite.h"
#include "launcher/commands/command.h"
#include "launcher/model/layouts.h"
#include "launcher/model/memory_need.h"
#include "launcher/model/model_options.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/output_file.h"
#include "launcher/refuse.h"
#include "layers/io/safetensors.h"
#include "layers/model/single_block.h"
#include "layers/parameters/model_folder.h"
#include "layers/parameters/not_finite.h"
#include "layers/parameters/parameters.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kBlockUse{.model_folder = false, .data = false, .seed = false, .recompute = true};

/// The options of `block`.
struct BlockOptions {
  std::string weights;
  std::string input;
  std::string output;
  bool backward = false;
};

/// Sets batch and sequence from `x` [B, S, h], and checks that `dy` has the same shape. Throws Error(refused).
void check_input(const BlockOptions& block, ModelCommandOptions& model) {
  const safetensors::File file(block.input);
  const safetensors::TensorInfo* x = file.find("x");
  if (x == nullptr) refuse(fmt::format("{}: tensor \"x\" is missing; expected [B, S, h]", block.input));
  if (x->shape.size() != 3 || x->shape[2] != model.shape.hidden || x->elements() == 0) {
    refuse(fmt::format("{}: tensor \"x\": expected [B, S, {}], found {}", block.input, model.shape.hidden,
                       safetensors::describe(x->shape)));
  }
  file.require("x", x->shape);
  if (block.backward) file.require("dy", x->shape);
  model.batch = x->shape[0];
  model.sequence = x->shape[1];
  if (model.batch > kMostTokens / model.sequence) {
    refuse(fmt::format("{}: tensor \"x\": {} has more than 2^31 tokens", block.input, safetensors::describe(x->shape)));
  }
}

/// Returns the bytes of the output's tensors.
double output_bytes(const BlockOptions& block, const ModelCommandOptions& model) {
  const Setting setting = model.setting();
  const auto tokens = static_cast<double>(setting.hidden_elements());
  const auto parameters = static_cast<double>(setting.block_parameters(setting.model.layer(0)));
  return (block.backward ? 2 * tokens + parameters : tokens) * static_cast<double>(setting.bytes.element);
}

/// Calls body(first row in a tensor [B·S, h] in natural order, first row in this rank's residual, count) for each run of
/// consecutive tokens of this rank.
template <class Body>
void for_runs(const TokenLayout& tokens, Body&& body) {
  const std::size_t first = tokens.first_held();
  const std::size_t end = first + tokens.held_rows();
  for (std::size_t b = 0; b < tokens.batch(); ++b) {
    for (const LocalChunk& chunk : tokens.chunks()) {
      const std::size_t row = b * tokens.local() + chunk.first;
      const std::size_t from = std::max(row, first);
      const std::size_t to = std::min(row + chunk.count, end);
      if (from < to) body(b * tokens.sequence() + chunk.start + from - row, from - first, to - from);
    }
  }
}

safetensors::Rectangle rows(std::size_t first, std::size_t count, std::size_t columns) {
  return {.first_row = first, .rows = count, .first_column = 0, .columns = columns};
}

/// Reads this rank's tokens of a tensor [B, S, h].
OwnedTensor read_tokens(Rank& rank, const safetensors::File& file, std::string_view name, const TokenLayout& tokens,
                        std::size_t hidden, DType dtype, Category category) {
  OwnedTensor into = tokens.residual(rank, category, dtype, hidden, name);
  for_runs(tokens, [&](std::size_t natural, std::size_t local, std::size_t count) {
    file.read(*file.find(name), rows(natural, count, hidden), buffer_of(into->merged(0).slice(0, local, count)));
    rank.tick();
  });
  return into;
}

void write_tokens(Rank& rank, OutputFile& file, std::string_view name, const TokenLayout& tokens, const Tensor& from) {
  for_runs(tokens, [&](std::size_t natural, std::size_t local, std::size_t count) {
    const ConstTensor run = from.merged(0).slice(0, local, count);
    file.writer().write(name, rows(natural, count, run.size(1)), buffer_of(run));
    rank.tick();
  });
}

std::vector<safetensors::PlannedTensor> output_tensors(const ModelCommandOptions& model, bool backward) {
  const std::vector<std::size_t> shape = {model.batch, model.sequence, model.shape.hidden};
  std::vector<safetensors::PlannedTensor> tensors = {{"y", model.dtype, shape}};
  if (!backward) return tensors;
  tensors.push_back({"dx", model.dtype, shape});
  for (const Parameter& parameter : block_parameters(model.shape, 0)) {
    tensors.push_back({"grad." + parameter.name, model.dtype, parameter.shape});
  }
  return tensors;
}

/// The command `block`.
class BlockCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "block",
            .help = "one transformer block, forward and backward, on tensors from files",
            .examples =
                {"tsprun -n 4 block --config config.json --weights w.safetensors --input x.safetensors --output y.safetensors",
                 "tsprun --layout tp=2 block --config c.json --weights w.st --input x.st --output y.st --backward --dtype f64"},
            .has_trace = true,
            .has_profile = true};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void compute(Context& context, ReportSink& sink, const GlobalOptions& global, int unnamed) const;

  ModelCommandOptions model_;  ///< after validation batch and sequence are those of the input, and there is one layer
  BlockOptions block_;
};

void BlockCommand::declare(OptionTable& table) {
  using enum Trait;
  model_.declare(table, kBlockUse);
  table.group("Options");
  table.add("--weights FILE", block_.weights, "safetensors with the weights of layer 0 by Hugging Face's Llama names",
            required | reads);
  table.add("--input FILE", block_.input, "safetensors with x [B, S, h], and dy [B, S, h] for --backward", required | reads);
  table.add("--output FILE", block_.output, "safetensors to write: y; with --backward also dx and grad.<weight name>",
            required | per_node | writes_in_place);
  table.add("--backward", block_.backward, "gradients too");
}

void BlockCommand::validate(const GlobalOptions& global) {
  validate_model(model_, global, kBlockUse);
  if (!model_.shape.has_gains_only()) {
    std::vector<std::string> names;
    for (const ModelType& type : model_types()) {
      if (type.model.has_gains_only()) names.push_back(fmt::format("\"{}\"", type.name));
    }
    refuse(fmt::format("--config {}: block computes blocks of Llama's kind; give a config.json of model_type {}", model_.config,
                       fmt::join(names, " or ")));
  }
  refuse_data_axis(global, "one block's gradients are sums over all sequences");
  model_.shape.layers = 1;
  const ModelFolder weights(block_.weights);
  if (const std::string unused = weights.check(block_parameters(model_.shape, 0)); !unused.empty()) spdlog::warn("{}", unused);
  check_input(block_, model_);
  check_need(model_, global, block_.backward, "its pass", [](const theory::MeshSetting& of, int rank, theory::PeakOptions how) {
    how.files = true;
    return theory::block_counts(of, rank, how).memory;
  });
  const std::filesystem::path sources[] = {block_.input, block_.weights, model_.config};
  block_.output = check_output("--output", block_.output, output_bytes(block_, model_), sources);
}

Inputs BlockCommand::inputs() const {
  Inputs inputs = model_inputs(model_);
  inputs.files.push_back({"--weights", block_.weights});
  inputs.files.push_back({"--input", block_.input});
  return inputs;
}

/// Computes the block, writes the output file, and prints the audit; every rank runs it. Throws an error that names the first
/// place where numbers weren't finite, if any wasn't.
void BlockCommand::compute(Context& context, ReportSink& sink, const GlobalOptions& global, int unnamed) const {
  const ModelCommandOptions& model = model_;
  const bool backward = block_.backward;
  Session session(context, sink, global);
  Rank& rank = session.rank();
  Mesh& mesh = session.mesh();
  const std::size_t h = model.shape.hidden;

  SingleBlock block(rank, mesh, model_options(model, backward), model.batch, model.sequence);
  ParameterStore& store = block.parameters();
  load_weights(session, store, block_.weights);
  const TokenLayout& tokens = block.tokens();
  // Otherwise several ranks hold the same tokens, and one of them writes.
  const bool writes_tokens = mesh.layout().slices_tokens() || mesh.place(mesh.layout().tensor_axis()) == 0;
  const safetensors::File input(block_.input);
  OutputFile output(session, block_.output, output_tensors(model, backward), unnamed);
  OwnedTensor x = read_tokens(rank, input, "x", tokens, h, model.dtype, block.kept());

  RankAudit audit;
  rank.reset_times();
  const TrafficCounters at_start = context.traffic();
  OwnedTensor y = block.forward(std::move(x));
  audit.forward = context.traffic() - at_start;
  bool finite = !kernels::first_not_finite(y.view());
  if (writes_tokens) write_tokens(rank, output, "y", tokens, y);
  if (backward) {
    y.reset();
    const OwnedTensor d = read_tokens(rank, input, "dy", tokens, h, kernels::summed_in(model.dtype), Category::workspace);
    const TrafficCounters at_half = context.traffic();
    block.backward(d);
    audit.backward = context.traffic() - at_half;
    if (writes_tokens) write_tokens(rank, output, "dx", tokens, d);
    finite = finite && !kernels::first_not_finite(d.view());
    for (const ParameterPart& part : store.parts()) {
      finite = finite && !kernels::first_not_finite(part.gradient);
      if (!part.plan.counted) continue;
      for_natural_blocks(rank, part.plan, part.gradient, [&](const safetensors::Rectangle& where, ConstBuffer from) {
        output.writer().write("grad." + part.plan.parameter.name, where, from);
      });
    }
  }
  audit.seconds = rank.times();
  session.stop_tracing();
  audit.memory_peak = rank.memory_peaks();
  double all_finite = finite ? 1 : 0;
  context.world().all_reduce(std::span(&all_finite, 1), Reduction::min);
  if (all_finite == 0) {
    blame_not_finite(
        rank, context.world(), store,
        {.what = "the block's results aren't all finite, and weren't written",
         .advice = "--dtype f64 shows whether numbers outgrew this type",
         .gradients = backward,
         .run = [&] {
           block.forward(read_tokens(rank, input, "x", tokens, h, model.dtype, block.kept())).reset();
           if (!backward) return;
           block.backward(read_tokens(rank, input, "dy", tokens, h, kernels::summed_in(model.dtype), Category::workspace));
         }});
  }
  output.publish();

  const theory::MeshSetting of = mesh_setting(session, model);
  theory::PeakOptions options = peak_options(session, backward);
  options.files = true;
  audit.forecast = theory::block_counts(of, rank.rank(), options);
  finish_with(session, gather_audits(rank, audit), model.strict_audit);
}

int BlockCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  const posix::UniqueFd unnamed = unnamed_output(global, block_.output);
  const int code = run_model_job(
      global, report, [&](Context& context, ReportSink& sink) { compute(context, sink, global, unnamed.get()); }, unnamed.get());
  if (code != 0) safetensors::discard_unfinished(block_.output);
  return code;
}

}  // namespace

std::unique_ptr<Command> make_block() { return std::make_unique<BlockCommand>(); }

}  // namespace tsprun::detail::launcher
