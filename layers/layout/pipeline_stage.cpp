// Cuts the layers of a model into stages.
#include "layers/layout/pipeline_stage.h"

#include "core/collectives/chunks.h"
#include "transport/cause.h"

#include <fmt/format.h>

namespace tsprun::detail {

PipelineStage PipelineStage::of(std::size_t layers, std::size_t stages, std::size_t number) {
  if (layers < stages) {
    throw Error(Cause::refused,
                fmt::format("{} stages of {} layers: each must have one; at most {} work", stages, layers, layers));
  }
  const Chunks cut = Chunks::balanced(static_cast<int>(stages), layers);
  const int at = static_cast<int>(number);
  return {.number = number, .count = stages, .first_layer = cut.offset(at), .layers = cut.count(at)};
}

}  // namespace tsprun::detail
