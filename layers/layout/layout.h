// The layout of a job: axes with degrees and variants, outermost first ("dp=2,tp=2,sp=4"; the last varies fastest over ranks).
// Command line, mesh, plans, checkpoints and audits read this one value.
#pragma once

#include "layers/layout/axes.h"
#include "layers/layout/pipeline_stage.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// One axis, the number of ranks along it, and how they exchange.
struct Axis {
  AxisKind kind;
  int degree;
  std::size_t variant = 0;  ///< an index of its row's `variants`; 0 where there is nothing to choose
  bool operator==(const Axis&) const = default;
};

/// Axes with their degrees and variants. An axis of one rank is kept as typed until canonical(); its name chooses the strategy
/// only where no axis has several ranks.
struct Layout {
  std::vector<Axis> axes;  ///< outermost first

  /// Parses "dp=2,tp=2,sp=4". Throws Error(refused) that begins with `where` and the text, names the part that is wrong and says
  /// what would work.
  static Layout parse(const std::string& text, std::string_view where = "--layout");
  /// Returns what `-n N` alone means: tsp=N.
  static Layout tsp(int ranks) { return {.axes = {{AxisKind::tsp, ranks}}}; }
  /// Returns the layout without axes of one rank.
  Layout canonical() const;
  /// Returns the layout with a variant of an axis; as it is if the axis has one rank, which exchanges nothing.
  Layout with(AxisKind kind, std::size_t variant) const;
  Layout with(DataSharing sharing) const { return with(AxisKind::dp, static_cast<std::size_t>(sharing)); }
  Layout with(TensorExchange exchange) const { return with(AxisKind::tp, static_cast<std::size_t>(exchange)); }
  Layout with(SequenceExchange exchange) const { return with(AxisKind::sp, static_cast<std::size_t>(exchange)); }
  /// Returns the layout with every axis in its default variant.
  Layout plain() const;
  /// Returns the layout without the axes that cut this; without those that cut the batch, of Cut::batch.
  Layout without(Cut cut) const;

  /// Returns why no layout has these axes in this order, with what works; empty: one has.
  std::string why_not() const;

  /// Returns whether the layout names the axis, with whatever degree.
  bool has(AxisKind kind) const;
  /// Returns the degree of an axis, 1 if the layout doesn't name it.
  int degree(AxisKind kind) const;
  /// Returns the variant of an axis, 0 if the layout doesn't name it.
  std::size_t variant(AxisKind kind) const;
  /// Returns the product of all degrees.
  int ranks() const;
  /// Returns the distance between neighbours of an axis, in ranks.
  int stride(AxisKind kind) const;
  /// Returns a rank's place on an axis, from 0.
  int place(AxisKind kind, int rank) const { return rank / stride(kind) % degree(kind); }

  /// Returns the axis that cuts sequences, and the one that cuts heads: the first such of the table if the layout has none.
  AxisKind data_axis() const { return axis_that_cuts(Cut::batch); }
  AxisKind tensor_axis() const { return axis_that_cuts(Cut::heads); }
  /// Returns the axis whose strategy computes the blocks: the one that cuts tokens, if any has several ranks.
  AxisKind token_axis() const;
  /// Returns the axes over which the ranks of a replica have different tokens between sublayers: the one that cuts tokens, and
  /// with slices_tokens() the one that cuts heads, in this order.
  std::vector<AxisKind> axes_of_tokens() const;
  /// Returns the axes over which the rows of the vocabulary are cut: those of tokens; under plain tp, tp.
  std::vector<AxisKind> axes_of_vocabulary() const;
  /// Returns the axes over which ranks have other sequences, the last fastest: dp, and shard if the layout has it.
  std::vector<AxisKind> axes_of_data() const;
  /// Returns the axis over which packs are cut if shares_states(): shard, or dp if shard has one rank.
  AxisKind sharing_axis() const;
  /// Returns the number of ranks over which they are cut; 1 unless shares_states().
  int sharers() const { return shares_states() ? degree(sharing_axis()) : 1; }
  /// Returns a rank's number among those with other sequences.
  int data_place(int rank) const;
  /// Returns the axes of the ranks with the same sequences, outermost first: all but those that cut the batch.
  std::vector<AxisKind> axes_of_replica() const;
  /// Returns the number of replicas, which have other sequences.
  int data() const { return degree(data_axis()) * degree(axis_that_cuts(Cut::batch_again)); }
  int tensor() const { return degree(tensor_axis()); }  ///< T: ranks with the same tokens and other heads and rows of weights
  /// Returns the number of ranks with different tokens of the same sequences: Σ or D in docs/algorithms.md.
  int sequence() const { return degree(token_axis()); }
  AxisKind stage_axis() const { return axis_that_cuts(Cut::layers); }
  int stages() const { return degree(stage_axis()); }    ///< P: ranks with other layers
  int replica() const { return tensor() * sequence(); }  ///< ranks with the same sequences and layers

  /// Returns which stage of a pipeline a rank is of, for a model of so many layers. Throws Error(refused) for more stages than
  /// layers.
  PipelineStage stage(std::size_t layers, int rank) const;

  /// Returns whether the ranks of tp, too, have different tokens between sublayers (Megatron's sequence parallelism).
  bool slices_tokens() const;
  /// Returns whether replicas have parts of the optimizer states (ZeRO-1), whatever else they share.
  bool shares_states() const;
  /// Returns whether replicas have parts of the weights and gradients, too (ZeRO-3 over ranks with other sequences).
  bool shares_weights() const;
  /// Returns whether attention exchanges tokens for heads (Ulysses).
  bool exchanges_heads() const;
  /// Returns whether the vocabulary is cut over tp, as under plain tp.
  bool cuts_vocabulary_over_tensor() const { return tensor() > 1 && !slices_tokens(); }
  /// Returns over how many ranks of a replica the rows of the vocabulary are cut: those whose tokens between sublayers differ;
  /// under plain tp, those of tp.
  int vocabulary_ranks() const { return cuts_vocabulary_over_tensor() ? tensor() : slices_tokens() ? replica() : sequence(); }

  /// Returns the axes that cut the batch as they are typed: "dp=2", "dp=2,shard=4".
  std::string print_data() const;
  /// Returns the axes as they are typed; "1" if there are none.
  std::string print() const;
  /// Returns print(), followed by the variants that aren't the default: "tp=2,sp=4 (ring)".
  std::string label() const;
  bool operator==(const Layout&) const = default;

 private:
  AxisKind axis_that_cuts(Cut cut) const;
};

/// Returns the variant of an axis of a layout; null where there is nothing to choose.
constexpr const Variant* variant_of(const Axis& axis) {
  const AxisRow& row = row_of(axis.kind);
  return row.variants.empty() ? nullptr : &row.variants[axis.variant];
}
/// Returns the name of the variant of an axis that has some: its default's if the layout doesn't name the axis.
inline std::string_view variant_name(const Layout& layout, const AxisRow& row) {
  return row.variants[layout.variant(row.kind)].name;
}

}  // namespace tsprun::detail
