// The layout of a job: axes with degrees, outermost first ("dp=2,tp=2,sp=4"; the last varies fastest over ranks), and how tp and
// sp exchange. Command line, mesh, plans, checkpoints and audits read this one value.
#pragma once

#include "layers/layout/axes.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// One axis and the number of ranks along it.
struct Axis {
  AxisKind kind;
  int degree;
  bool operator==(const Axis&) const = default;
};

/// Axes with their degrees, and the variants of tp and sp. An axis of one rank is kept as typed until canonical();
/// its name chooses the scheme only where no axis has several ranks.
struct Layout {
  std::vector<Axis> axes;  ///< outermost first
  TensorExchange tensor_exchange = TensorExchange::plain;
  SequenceExchange sequence_exchange = SequenceExchange::gather;

  /// Parses "dp=2,tp=2,sp=4". Throws Error(refused) that begins with `where` and the text, names the part that is wrong and says
  /// what would work.
  static Layout parse(const std::string& text, std::string_view where = "--layout");
  /// Returns what `-n N` alone means: tsp=N.
  static Layout tsp(int ranks) { return {.axes = {{AxisKind::tsp, ranks}}}; }
  /// Returns the layout without axes of one rank.
  Layout canonical() const;
  /// Returns the layout with a variant; as it is if the variant's axis has one rank, which exchanges nothing.
  Layout with(TensorExchange exchange) const;
  Layout with(SequenceExchange exchange) const;

  /// Returns why no layout has these axes in this order, with what works; empty: one has.
  std::string why_not() const;

  /// Returns whether the layout names the axis, with whatever degree.
  bool has(AxisKind kind) const;
  /// Returns the degree of an axis, 1 if the layout doesn't name it.
  int degree(AxisKind kind) const;
  /// Returns the product of all degrees.
  int ranks() const;
  /// Returns the distance between neighbours of an axis, in ranks.
  int stride(AxisKind kind) const;
  /// Returns a rank's place on an axis, from 0.
  int place(AxisKind kind, int rank) const { return rank / stride(kind) % degree(kind); }

  Scheme scheme() const;
  /// Returns the axis that cuts tokens under this scheme.
  AxisKind token_axis() const;
  int data() const { return degree(AxisKind::dp); }    ///< replicas, with other sequences
  int tensor() const { return degree(AxisKind::tp); }  ///< T: ranks with the same tokens and other heads and rows of weights
  /// Returns the number of ranks with different tokens of the same sequences: Σ or D in docs/algorithms.md.
  int sequence() const { return degree(token_axis()); }
  int replica() const { return tensor() * sequence(); }  ///< ranks with the same sequences

  /// Returns whether the ranks of tp, too, have different tokens between sublayers (Megatron's sequence parallelism).
  bool slices_tokens() const { return tensor_exchange == TensorExchange::sequence && tensor() > 1; }
  /// Returns whether attention exchanges tokens for heads (Ulysses).
  bool exchanges_heads() const { return sequence_exchange == SequenceExchange::ulysses && degree(AxisKind::sp) > 1; }
  /// Returns whether the vocabulary is cut over tp, as under plain tp.
  bool cuts_vocabulary_over_tensor() const { return tensor() > 1 && !slices_tokens(); }
  /// Returns over how many ranks of a replica the rows of the vocabulary are cut: those whose tokens between sublayers differ;
  /// under plain tp, those of tp.
  int vocabulary_ranks() const { return cuts_vocabulary_over_tensor() ? tensor() : slices_tokens() ? replica() : sequence(); }

  /// Returns the axes as they are typed; "1" if there are none.
  std::string print() const;
  /// Returns print(), followed by the variants that aren't the default: "tp=2,sp=4 (ring)".
  std::string label() const;
  bool operator==(const Layout&) const = default;
};

}  // namespace tsprun::detail
