// Factories of the three exchanges of sequence_attention.h, each implemented in a file of its own. Arguments are those that
// make_sequence_attention() has checked.
#pragma once

#include "layers/schedules/sp/sequence_attention.h"

#include <cmath>
#include <memory>

namespace tsprun::detail {

/// The ranks that share sequences, this rank, and element types: what every exchange needs.
struct SequenceAxis {
  Rank& rank;
  Communicator& group;
  DType dtype;
  DType sums;

  int D() const { return group.size(); }
  int p() const { return group.rank(); }
  ComputeStream& compute() const { return rank.compute(); }
  OwnedTensor step(DType of, std::initializer_list<std::size_t> sizes, std::string_view what) const {
    return rank.tensor(Category::workspace, of, sizes, what);
  }
};

/// Returns 1/√d, by which scores are multiplied.
inline double attention_scale(std::size_t head_dim) { return 1 / std::sqrt(static_cast<double>(head_dim)); }

std::unique_ptr<SequenceAttention> make_gather_attention(const SequenceAxis& axis, const SequenceHeads& heads);
std::unique_ptr<SequenceAttention> make_ring_attention(const SequenceAxis& axis, const SequenceHeads& heads);
std::unique_ptr<SequenceAttention> make_ulysses_attention(const SequenceAxis& axis, const SequenceHeads& heads);

}  // namespace tsprun::detail
