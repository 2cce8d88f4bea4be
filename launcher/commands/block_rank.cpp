// One rank of `tsprun block`: see block_rank.h.
#include "launcher/commands/block_rank.h"

#include "core/kernels/check.h"
#include "core/kernels/finite.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/output_file.h"
#include "layers/model/single_block.h"
#include "layers/parameters/not_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

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

safetensors::Block rows(std::size_t first, std::size_t count, std::size_t columns) {
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

}  // namespace

int block_rank(Context& context, ReportSink& sink, const BlockPlan& plan) {
  const ModelCommandOptions& model = *plan.model;
  const bool backward = plan.block->backward;
  Session session(context, sink, *plan.global);
  Rank& rank = session.rank();
  Mesh& mesh = session.mesh();
  const std::size_t h = model.shape.hidden;

  SingleBlock block(rank, mesh, model_options(model, backward), model.batch, model.sequence);
  ParameterStore& store = block.parameters();
  load_weights(session, store, plan.block->weights);
  const TokenLayout& tokens = block.tokens();
  // Otherwise several ranks hold the same tokens, and one of them writes.
  const bool writes_tokens = mesh.layout().slices_tokens() || mesh.tensor().rank() == 0;
  const safetensors::File input(plan.block->input);
  OutputFile output(session, plan.block->output, output_tensors(model, backward));
  OwnedTensor x = read_tokens(rank, input, "x", tokens, h, model.dtype, block.kept());

  RankAudit audit;
  rank.reset_times();
  const TrafficCounters at_start = context.traffic();
  OwnedTensor y = block.forward(std::move(x));
  audit.forward = traffic_between(at_start, context.traffic());
  bool finite = !kernels::first_not_finite(y.view());
  if (writes_tokens) write_tokens(rank, output, "y", tokens, y);
  if (backward) {
    y.reset();
    const OwnedTensor d = read_tokens(rank, input, "dy", tokens, h, kernels::summed_in(model.dtype), Category::workspace);
    const TrafficCounters at_half = context.traffic();
    block.backward(d);
    audit.backward = traffic_between(at_half, context.traffic());
    if (writes_tokens) write_tokens(rank, output, "dx", tokens, d);
    finite = finite && !kernels::first_not_finite(d.view());
    for (const ParameterPart& part : store.parts()) {
      finite = finite && !kernels::first_not_finite(part.gradient);
      if (!part.plan.counted) continue;
      for_natural_blocks(rank, part.plan, part.gradient, [&](const safetensors::Block& where, ConstBuffer from) {
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
  audit.memory_forecast = theory::block_peaks(of, rank.rank(), peak_options(session, backward));
  audit.other_forecast = theory::other_of_block(of, mesh, backward);
  const std::vector<RankAudit> audits = gather_audits(rank, audit);
  if (session.speaks()) {
    const ForecastOptions run{.training = backward, .direct_sums = sums_are_direct(session.world(), of.setting)};
    say_audit(session, audits, forecast_block(of, run));
  }
  session.finish();
  return 0;
}

}  // namespace tsprun::detail::launcher
