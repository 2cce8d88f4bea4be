// Exact traffic of the purpose `other`, rank by rank under any layout: sums of the loss, of the gradients of norm gains, biases
// and learned positions, and Δ of Ulysses' backward pass. The sums are small, and ranks sum small buffers by the algorithm of
// their choice table; a one-shot all_reduce moves more bytes than the others. So these counts need to know the rank's groups.
#pragma once

#include "layers/layout/mesh.h"
#include "layers/theory/layouts.h"

#include <cstdint>

namespace tsprun::detail::theory {

/// Returns the bytes that this rank receives when the group all-reduces a buffer by the algorithm of its choice table.
std::uint64_t all_reduced(const Communicator& among, std::uint64_t elements, std::uint64_t element_bytes);

/// Bytes of `other` that one rank receives in a forward and a backward pass.
struct OtherBytes {
  std::uint64_t forward = 0;
  std::uint64_t backward = 0;
};

/// Returns what the rank of `mesh` receives in a step; without `training` only in the forward pass of an evaluation.
OtherBytes other_of_step(const MeshSetting& of, Mesh& mesh, bool training);
/// Returns what the rank of `mesh` receives in one block alone, with `backward` in its backward pass, too.
OtherBytes other_of_block(const MeshSetting& of, Mesh& mesh, bool backward);

}  // namespace tsprun::detail::theory
