// The command `block`: see block.h.
#include "launcher/commands/block.h"

#include "launcher/commands/block_rank.h"
#include "launcher/model/layouts.h"
#include "launcher/model/output_file.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/parameters.h"
#include "layers/parameters/weights.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kBlockUse{.model_folder = false, .data = false, .seed = false, .recompute = true};
constexpr std::size_t kMostTokens = std::size_t{1} << 31;

/// Sets batch and sequence from `x` [B, S, h], and checks that `dy` has the same shape. Throws Error(refused).
void check_input(const BlockOptions& block, ModelCommandOptions& model) {
  const safetensors::File file(block.input);
  const safetensors::TensorInfo* x = file.find("x");
  if (x == nullptr) throw Error(Cause::refused, fmt::format("{}: tensor \"x\" is missing; expected [B, S, h]", block.input));
  if (x->shape.size() != 3 || x->shape[2] != model.shape.hidden || x->elements() == 0) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"x\": expected [B, S, {}], found {}", block.input, model.shape.hidden,
                                            safetensors::describe(x->shape)));
  }
  file.require("x", x->shape);
  if (block.backward) file.require("dy", x->shape);
  model.batch = x->shape[0];
  model.sequence = x->shape[1];
  if (model.batch > kMostTokens / model.sequence) {
    throw Error(Cause::refused,
                fmt::format("{}: tensor \"x\": {} has more than 2^31 tokens", block.input, safetensors::describe(x->shape)));
  }
}

/// Returns the bytes of the output's tensors.
double output_bytes(const BlockOptions& block, const ModelCommandOptions& model) {
  const Setting setting = model.setting();
  const auto tokens = static_cast<double>(setting.hidden_elements());
  const auto parameters = static_cast<double>(setting.block_parameters());
  return (block.backward ? 2 * tokens + parameters : tokens) * static_cast<double>(setting.bytes.element);
}

}  // namespace

void BlockCommand::add_options(CLI::App& app) {
  add_model_options(app, model_, kBlockUse);
  const auto add = [&](const char* name, std::string& text, const char* help) {
    app.add_option(name, text, help)->type_name("FILE")->required();
  };
  add("--weights", block_.weights, "safetensors with the weights of layer 0 by Hugging Face's Llama names");
  add("--input", block_.input, "safetensors with x [B, S, h], and dy [B, S, h] for --backward");
  add("--output", block_.output, "safetensors to write: y; with --backward also dx and grad.<weight name>");
  app.add_flag("--backward", block_.backward, "gradients too");
}

void BlockCommand::validate(const GlobalOptions& global) {
  validate_model(model_, global, kBlockUse);
  if (!model_.shape.has_gains_only()) {
    throw Error(Cause::refused,
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

std::unique_ptr<Command> make_block() { return std::make_unique<BlockCommand>(); }

}  // namespace tsprun::detail::launcher
