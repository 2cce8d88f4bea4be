// The ranks of a job as a mesh of named axes over the world, outermost first, the last varying fastest ("dp=2,tp=2,sp=4").
//
//   data      ranks with the same weights and other sequences of the batch
//   tensor    ranks with the same tokens and other heads and rows of weights
//   sequence  ranks with other tokens of the same sequences; under TSP and ZeRO-3 with other weights too
#pragma once

#include "core/collectives/communicator.h"
#include "layers/layout/variants.h"

#include <cstdint>
#include <optional>

namespace tsprun {

/// Ways of spreading weights and tokens over a mesh.
enum class Scheme : std::uint8_t {
  tsp,    ///< weights and tokens over the ranks of `sequence`
  dense,  ///< weights over `tensor` (tp), tokens over `sequence` (sp); either may be one rank
  zero3   ///< tokens over `sequence`; weights too, gathered sublayer by sublayer
};

/// Scheme and degrees of a mesh; the degree of an axis that a layout doesn't name is 1.
struct MeshShape {
  Scheme scheme = Scheme::tsp;
  int data = 1;
  int tensor = 1;
  int sequence = 1;
  bool sequence_outside = false;  ///< the sequence axis stands before the tensor axis ("sp=2,tp=2")
  TensorExchange exchange = TensorExchange::plain;

  int ranks() const { return data * tensor * sequence; }
  /// Returns whether the ranks of the tensor axis, too, have different tokens (Megatron's sequence parallelism).
  bool slices_tokens() const { return tensor > 1 && exchange == TensorExchange::sequence; }
  /// Returns the shape that has all ranks on the one axis of TSP.
  static MeshShape tsp(int ranks) { return {.sequence = ranks}; }
};

/// One rank's slices of a mesh, each a communicator. Constructing it sends no message.
class Mesh {
 public:
  /// Borrows `world`, which must outlive it. Throws Error(refused) unless the product of the degrees is its size.
  Mesh(Communicator& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  Communicator& world() { return world_; }
  Communicator& data() { return data_; }
  Communicator& tensor() { return tensor_; }
  Communicator& sequence() { return sequence_; }
  /// Returns the ranks that share this rank's sequences and have different tokens: `sequence`, or with slices_tokens() also those
  /// of the tensor axis, in the order (sequence, tensor).
  Communicator& tokens() { return tokens_ ? *tokens_ : sequence_; }

 private:
  Communicator group(int data, int tensor, int sequence) const;
  int world_rank(int data, int tensor, int sequence) const;

  Communicator& world_;
  MeshShape shape_;
  int data_rank_;
  int tensor_rank_;
  int sequence_rank_;
  Communicator data_;
  Communicator tensor_;
  Communicator sequence_;
  std::optional<Communicator> tokens_;
};

}  // namespace tsprun
