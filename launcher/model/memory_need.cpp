// Asks the forecast for the ranks that need most.
#include "launcher/model/memory_need.h"

#include "core/kernels/level.h"
#include "launcher/model/layouts.h"
#include "launcher/model/training_batch.h"
#include "launcher/model/window_batch.h"
#include "launcher/refuse.h"
#include "transport/factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kKibibyte = 1024;
constexpr std::uint64_t kTellingSteps = 2;  // buffers that are kept for later use exist from the second on

std::string by_category(const CategoryBytes& bytes) {
  std::string text;
  for (std::size_t i = 0; i < kCategories; ++i)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name(static_cast<Category>(i)), bytes.of[i]);
  return text;
}

}  // namespace

void check_need(const ModelCommandOptions& options, const GlobalOptions& global, bool training, const std::string& when,
                const PeaksOfRank& peaks, std::vector<int> replicas) {
  if (global.mem_per_rank.value == 0) return;
  kernels::set_level(global.kernel_level);  // workspace depends on it
  const theory::MeshSetting of{.setting = options.setting(), .layout = layout_of(global)};
  theory::PeakOptions how{.threads = static_cast<std::size_t>(global.threads.value),
                          .training = training,
                          .files = !options.model.empty(),
                          .nodes = global.nodes,
                          .share = within_node(global.intra).views};
  how.like.algorithms = global.algorithms;
  how.like.reassociate = global.reassociate;
  if (replicas.empty()) {
    replicas.resize(static_cast<std::size_t>(std::min(of.layout.data(), theory::kMostAsked)));
    std::iota(replicas.begin(), replicas.end(), 0);
  }
  CategoryBytes most;
  int where = 0;
  for (const int replica : replicas) {
    for (const int of_first : theory::asked(of)) {
      const int rank = replica * of.layout.stride(of.layout.axes_of_data().back()) + of_first;
      const CategoryBytes each = peaks(of, rank, how);
      if (each.total <= most.total) continue;
      most = each;
      where = rank;
    }
  }
  if (most.total <= global.mem_per_rank.value) return;
  const char* instead = training ? "more ranks, --recompute full or a shorter --seq" : "more ranks or --dtype bf16";
  refuse(fmt::format("--mem-per-rank {}: rank {} needs {} B for {} (peaks in B: {}); try --mem-per-rank {}K; {} need less",
                     global.mem_per_rank.text, where, most.total, when, by_category(most),
                     (most.total + kKibibyte - 1) / kKibibyte, instead));
}

void check_training_need(const ModelCommandOptions& options, const GlobalOptions& global, std::uint64_t done, std::uint64_t last,
                         bool saves, const ModelCommandOptions* evaluated) {
  const std::uint64_t steps = std::min(kTellingSteps, last - std::min(done, last));
  std::string when = steps == 1 ? "its step" : "its first steps";
  if (evaluated != nullptr) when += saves ? ", an evaluation" : " and an evaluation";
  if (saves) when += " and a checkpoint";
  check_need(options, global, true, when, [&](const theory::MeshSetting& of, int rank, theory::PeakOptions how) {
    how.files = how.files || done > 0;
    TrainingBatch batch(options);
    theory::RunPeaks run(of, rank, how);
    for (std::uint64_t step = done + 1; step <= done + steps; ++step) run.pass(batch.of_step(step));
    if (evaluated != nullptr) run.evaluate(WindowBatch(evaluated->stream(), *evaluated, 0).tokens());
    if (saves) run.save();
    return run.peaks();
  });
}

}  // namespace tsprun::detail::launcher
