// Builds the tables of rotations for a rank's tokens, and finds its chunks.
#include "layers/layout/token_layout.h"

#include <algorithm>

namespace tsprun::detail {

TokenLayout::TokenLayout(Rank& rank, const ModelConfig& config, DType dtype, std::size_t batch, std::size_t sequence, int part,
                         int parts, int slice, int slices, std::size_t longest, bool packed)
    : batch_(batch),
      part_(part),
      slice_(slice),
      slice_count_(slices),
      cut_(sequence, parts),
      packed_(packed),
      rotations_(rank, config, dtype, packed ? sequence : local(), std::max(sequence, longest)) {
  if (config.rotary_positions()) rotations_.fill(packed ? Zigzag(sequence, 1).positions(0) : cut_.positions(part));
}

OwnedTensor TokenLayout::residual(Rank& rank, Category category, DType dtype, std::size_t width, std::string_view what) const {
  if (slice_count_ == 1) return rank.tensor(category, dtype, {batch_, local(), width}, what);
  return rank.tensor(category, dtype, {1, held_rows(), width}, what);
}

std::array<LocalChunk, kHalves> TokenLayout::chunks_of(int part) const {
  const auto [early, late] = cut_.chunks_of(part);
  const std::size_t before = cut_.chunk_size(early);
  return {LocalChunk{cut_.chunk_start(early), 0, before}, LocalChunk{cut_.chunk_start(late), before, cut_.chunk_size(late)}};
}

}  // namespace tsprun::detail
