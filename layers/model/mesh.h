// The ranks of a job by what they share: named axes over the world, outermost first, the last varying fastest ("dp=2,tp=2,sp=4").
#pragma once

#include "core/collectives/communicator.h"

#include <cstdint>

namespace tsp {

/// How weights and tokens are spread over a mesh.
enum class Scheme : std::uint8_t {
  tsp,    ///< weights and tokens over the ranks of `sequence`
  dense,  ///< weights over `tensor` (tp), tokens over `sequence` (sp); either may be one rank
  zero3   ///< tokens over `sequence`; weights too, gathered layer by layer
};

/// Communicators of one rank's slices of the mesh; an axis that a layout doesn't name has one rank. All borrowed.
struct Mesh {
  Scheme scheme;
  Communicator& data;      ///< dp: ranks with the same weights and other sequences
  Communicator& tensor;    ///< tp: ranks with the same tokens and other rows of weights
  Communicator& sequence;  ///< sp, tsp or zero3: ranks with other tokens of the same sequences
};

}  // namespace tsp
