// `tsprun block`: one transformer block, forward and backward, on tensors from files, for comparison with another implementation.
//
// This file has the command's options and checks. What each rank does is in block_rank.h.
#include "launcher/commands/block_rank.h"
#include "launcher/commands/command.h"
#include "launcher/model/layouts.h"
#include "launcher/model/model_options.h"
#include "launcher/model/output_file.h"
#include "launcher/refuse.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/parameters.h"
#include "layers/parameters/weights.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kBlockUse{.model_folder = false, .data = false, .seed = false, .recompute = true};
constexpr std::size_t kMostTokens = std::size_t{1} << 31;

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
  const auto parameters = static_cast<double>(setting.block_parameters());
  return (block.backward ? 2 * tokens + parameters : tokens) * static_cast<double>(setting.bytes.element);
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
            .has_trace = true};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  ModelCommandOptions model_;
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
    refuse(
        fmt::format("--config {}: block computes blocks of Llama's kind; give a config.json of model_type "
                    "\"llama\"",
                    model_.config));
  }
  refuse_data_axis(global, "one block's gradients are sums over all sequences");
  model_.shape.layers = 1;
  const Weights weights(block_.weights);
  for (const std::string& warning : weights.check(block_parameters(model_.shape, 0))) spdlog::warn("{}", warning);
  check_input(block_, model_);
  const std::filesystem::path sources[] = {block_.input, block_.weights, model_.config};
  block_.output = check_output("--output", block_.output, output_bytes(block_, model_), sources);
}

Inputs BlockCommand::inputs() const {
  Inputs inputs = model_inputs(model_);
  inputs.files.push_back({"--weights", block_.weights});
  inputs.files.push_back({"--input", block_.input});
  return inputs;
}

int BlockCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  JobSpec spec;
  spec.global = &global;
  spec.multiplies = true;
  spec.rank_main = [&](Context& context, ReportSink& sink) {
    return block_rank(context, sink, {.global = &global, .model = &model_, .block = &block_});
  };
  const int code = run_job(spec, report);
  if (code != 0) discard_output(block_.output);
  return code;
}

}  // namespace

std::unique_ptr<Command> make_block() { return std::make_unique<BlockCommand>(); }

}  // namespace tsprun::detail::launcher
