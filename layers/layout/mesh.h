// The ranks of a job as the mesh that a layout says.
//
//   data      ranks with the same weights and other sequences of the batch
//   tensor    ranks with the same tokens and other heads and rows of weights
//   sequence  ranks with other tokens of the same sequences; under TSP and ZeRO-3 with other weights too
#pragma once

#include "layers/layout/layout.h"
#include "tsprun/communicator.h"

#include <initializer_list>
#include <optional>

namespace tsprun::detail {

/// One rank's slices of a mesh, each a communicator. Constructing it sends no message.
class Mesh {
 public:
  /// Borrows `world`, which must outlive it. Throws Error(refused) if the layout's axes don't go together, or the product of
  /// their degrees isn't the world's size.
  Mesh(Communicator& world, Layout layout);

  const Layout& layout() const { return layout_; }
  Communicator& world() { return world_; }
  Communicator& data() { return data_; }
  Communicator& tensor() { return tensor_; }
  Communicator& sequence() { return sequence_; }
  /// Returns the ranks that share this rank's sequences and have different tokens: `sequence`, or with slices_tokens() also those
  /// of the tensor axis, in the order (sequence, tensor).
  Communicator& tokens() { return tokens_ ? *tokens_ : sequence_; }
  /// Returns the ranks that share this rank's sequences: all but those of other places on the data axis.
  Communicator& replica() { return replica_ ? *replica_ : world_; }
  /// Returns the ranks of this rank's replica over which the rows of the vocabulary are cut.
  Communicator& vocabulary() { return layout_.cuts_vocabulary_over_tensor() ? tensor_ : tokens(); }

 private:
  Communicator group(std::initializer_list<AxisKind> axes) const;

  Communicator& world_;
  Layout layout_;
  Communicator data_;
  Communicator tensor_;
  Communicator sequence_;
  std::optional<Communicator> tokens_;
  std::optional<Communicator> replica_;  // where it isn't the world
};

}  // namespace tsprun::detail
