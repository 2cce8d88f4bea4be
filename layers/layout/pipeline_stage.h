// How a pipeline cuts a model into stages.
#pragma once

#include <cstddef>

namespace tsprun::detail {

/// Part of a model that a stage of a pipeline has: consecutive layers, on the first the embedding, on the last the head, too.
struct PipelineStage {
  std::size_t number = 0;  ///< from 0
  std::size_t count = 1;   ///< stages of the pipeline, at least 1
  std::size_t first_layer = 0;
  std::size_t layers = 0;

  /// Returns the only stage of a model without a pipeline.
  static PipelineStage whole(std::size_t layers) { return {.layers = layers}; }
  /// Returns a stage of a model of so many layers: those of stages differ by at most one, and the first have more. Throws
  /// Error(refused) if there are fewer layers than stages. Precondition: number < stages.
  static PipelineStage of(std::size_t layers, std::size_t stages, std::size_t number);

  bool first() const { return number == 0; }
  bool last() const { return number + 1 == count; }
  bool has(std::size_t layer) const { return layer >= first_layer && layer < first_layer + layers; }
  bool operator==(const PipelineStage&) const = default;
};

}  // namespace tsprun::detail
