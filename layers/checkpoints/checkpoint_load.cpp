// Loads a checkpoint into a store, under any layout: each rank reads the rectangles that its parts are.
#include "layers/checkpoints/checkpoint.h"

#include "layers/checkpoints/checkpoint_tensors.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/agreement.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

namespace tsprun::detail {

namespace {

void read_part(Rank& rank, const safetensors::File& file, const ModelConfig& config, const ParameterPart& part,
               const Tensor& tensor) {
  const safetensors::TensorInfo& info = checkpoint_tensor(file, config, part.plan.parameter);
  fill_natural_blocks(rank, part.plan, tensor,
                      [&](const safetensors::Rectangle& block, Buffer into) { file.read(info, block, into); });
}

/// Checks that all ranks load the same checkpoint: on several nodes each launcher finds the newest one for itself.
void check_same(Communicator& ranks, const FoundCheckpoint& checkpoint) {
  std::vector<double> digits;
  for (const char c : checkpoint.checksum) digits.push_back(c);
  std::vector<double> largest = digits;
  ranks.all_reduce(std::span(largest), Reduction::max);
  ranks.all_reduce(std::span(digits), Reduction::min);
  if (largest != digits) {
    throw Error(Cause::refused, fmt::format("{}: nodes see different checkpoints; expected a folder that all nodes share",
                                            checkpoint.folder.string()));
  }
}

}  // namespace

void load_checkpoint(Rank& rank, Communicator& ranks, ParameterStore& store, const FoundCheckpoint& checkpoint) {
  check_same(ranks, checkpoint);
  agree(ranks, [&] {
    if (store.dtype() != checkpoint.state.dtype) {
      throw Error(Cause::refused, fmt::format("{}: holds {} parameters; expected --dtype {}", checkpoint.folder.string(),
                                              name(checkpoint.state.dtype), name(store.dtype())));
    }
    for (const CheckpointTensors& kind : checkpoint_tensors(store.dtype())) {
      if (!store.training() && kind.member != &ParameterPart::value) continue;
      const safetensors::File file(checkpoint.folder / kind.file);
      const std::span<const ParameterPart> parts = kind.member == &ParameterPart::value ? store.parts() : store.states();
      for (const ParameterPart& part : parts) read_part(rank, file, checkpoint.config, part, part.*kind.member);
      rank.tick();
    }
  });
}

}  // namespace tsprun::detail
