// The ranks of a job as the mesh that a layout says: a rank has a place on each axis, and groups are named by axes.
//
//   {dp}        ranks with the same weights and other sequences of the batch
//   {tp}        ranks with the same tokens and other heads and rows of weights
//   {sp}, …     ranks with other tokens of the same sequences; under TSP and ZeRO-3 with other weights too
//   {sp, tp}    ranks that stand elsewhere on either axis: the last axis varies fastest over their order
//
// Which axes do what is the layout's to say (Layout::token_axis(), Layout::axes_of_tokens(), and so on); the mesh doesn't know.
#pragma once

#include "layers/layout/layout.h"
#include "tsprun/communicator.h"

#include <map>
#include <vector>

namespace tsprun::detail {

/// One rank's groups of a mesh, each a communicator, made when it is first asked for. Used by the rank's thread.
class Mesh {
 public:
  /// Borrows `world`, which must outlive it. Sends no message. Throws Error(refused) if the layout's axes don't go together, or
  /// the product of their degrees isn't the world's size.
  Mesh(Communicator& world, Layout layout);

  const Layout& layout() const { return layout_; }
  Communicator& world() { return world_; }
  /// Returns this rank's place on an axis, from 0; 0 on an axis that the layout doesn't name.
  int place(AxisKind axis) const { return layout_.place(axis, world_.rank()); }

  /// Returns the ranks that stand elsewhere than this one on these axes alone, and this one, which is alone if none of them has
  /// several ranks. Ranks of the group are numbered by their places, the last axis fastest; so {sp, tp} and {tp, sp} are two
  /// groups of the same ranks. Axes of one rank and of other layouts count for nothing: {tp} and {tp, sp} are one group where sp
  /// has one rank. The same axes give the same communicator as long as the mesh lives.
  ///
  /// Sends no message, so that asking can't wait; but it makes a communicator, and Communicator::subgroup()'s rule holds: all
  /// ranks of the group must have asked before any of them can complete an operation on it, and ranks with several meshes of one
  /// world ask for a group in the same order of meshes. Asking for different axes in different orders is harmless. `axes` are
  /// distinct. Errors and traces name the group by its axes: "sp,tp".
  Communicator& group(const std::vector<AxisKind>& axes);

 private:
  Communicator& world_;
  Layout layout_;
  std::map<std::vector<AxisKind>, Communicator> groups_;  // by those axes that have several ranks
};

}  // namespace tsprun::detail
