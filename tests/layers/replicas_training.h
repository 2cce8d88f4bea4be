// Steps of replicas and a checkpoint after them, to be compared between ways of sharing (--dp) and other layouts.
#pragma once

#include "layers/checkpoints/checkpoint.h"
#include "layers/model/model.h"
#include "tests/layers/model_run.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::test::replicas {

struct Training {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, std::string> files;  // of the checkpoint after the last step, but its manifest
  bool operator==(const Training&) const = default;
};

inline std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename() == "manifest.json") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

/// Steps up to `steps`, from fresh weights or from a checkpoint, and a checkpoint after the last.
inline Training train(const ModelCase& of, const Layout& on, std::uint64_t steps, const std::filesystem::path& folder,
                      const std::optional<FoundCheckpoint>& from = {}) {
  Training run;
  run_ranks(on.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), on);
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .recompute = of.recompute, .training = true});
    if (from) load_checkpoint(rank, context.world(), model.parameters(), *from);
    else model.parameters().fill_fresh(of.config.layers, of.seed);
    for (std::uint64_t step = from ? from->state.step + 1 : 1; step <= steps; ++step) {
      ModelCase now = of;
      now.seed = step;
      const BatchData data(now);
      const Loss loss = model.forward_backward(data.view(now));
      const double norm = model.gradient_norm();
      // Clips, so that the norm's bits are those of every weight.
      model.update({.learning_rate = 1e-2, .clip = norm / 3, .step = step}, norm);
      if (rank.rank() == 0) {
        run.losses.push_back(loss.mean);
        run.norms.push_back(norm);
      }
    }
    CheckpointState state;
    state.step = steps;
    state.dtype = of.dtype;
    state.layout = on;
    save_checkpoint(rank, context.world(), model.parameters(), of.config, state, folder);
  });
  run.files = files_in(folder / ("step-00000" + std::to_string(steps)));
  return run;
}

inline FoundCheckpoint found_in(const std::filesystem::path& folder) {
  std::vector<std::string> skipped;
  return find_checkpoint(folder, skipped);
}

/// Parts of several blocks of the norm, which chunks divide anywhere, others that lie in a block with their whole pack, and packs
/// of fewer elements than ranks.
inline std::vector<ModelCase> cases() {
  return {
      {.config = small_config(100, 1, 8, 2, 50, 700, 1500), .batch = 12, .sequence = 3, .dtype = DType::f32, .micro_batches = 2},
      {.config = small_gpt2_config(2, 8, 3, 21, 40), .batch = 12, .sequence = 11, .dtype = DType::bf16},
      {.config = as_family("qwen3", small_config(1, 1, 4, 2, 2, 1, 3, true)), .batch = 12, .sequence = 5, .dtype = DType::f64}};
}

}  // namespace tsprun::detail::test::replicas
