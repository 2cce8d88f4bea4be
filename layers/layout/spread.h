// How a model is spread over ranks, as far as counting needs it: the degrees and order of the axes, and the variants of tp and
// sp. Plans and runs refuse impossible layouts with the same check, why_impossible(), so they refuse the same ones.
#pragma once

#include "layers/layout/mesh.h"
#include "layers/layout/setting.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::theory {

/// Axes that a layout can name.
enum class AxisKind : std::uint8_t { dp, tp, sp, tsp, zero3 };
/// All axes, in the order in which messages list them.
inline constexpr std::array kAxisKinds = {AxisKind::dp, AxisKind::tp, AxisKind::sp, AxisKind::tsp, AxisKind::zero3};
std::string_view name(AxisKind kind);
/// Returns the axis of that name, or nothing if there is none.
std::optional<AxisKind> axis_kind(std::string_view name);

std::string_view name(TensorExchange exchange);
std::string_view name(SequenceExchange exchange);

/// The axes of a layout with their degrees, and the variants of tp and sp.
struct Spread {
  struct Axis {
    AxisKind kind;
    int degree;
    bool operator==(const Axis&) const = default;
  };
  std::vector<Axis> axes;  ///< outermost first; the last varies fastest with the rank
  TensorExchange tensor = TensorExchange::plain;
  SequenceExchange sequence = SequenceExchange::gather;

  /// Returns the degree of an axis, 1 if the layout doesn't name it.
  int degree(AxisKind kind) const;
  /// Returns the product of all degrees.
  int ranks() const;
  /// Returns the distance between neighbours of an axis, in ranks.
  int stride(AxisKind kind) const;

  int data() const { return degree(AxisKind::dp); }     ///< replicas with other sequences
  int tensors() const { return degree(AxisKind::tp); }  ///< T
  /// Returns the degree of sp, tsp or zero3: the number of ranks that hold different tokens of the same sequences. Σ or D in
  /// docs/algorithms.md.
  int token_ranks() const;
  /// Returns whether weights and tokens are cut over the same ranks, that is, whether there is a tsp axis.
  bool folded() const { return degree(AxisKind::tsp) > 1; }
  bool zero3() const { return degree(AxisKind::zero3) > 1; }

  /// Returns whether norms, dropout and residuals are computed on 1/T of a rank's tokens, as in Megatron's sequence parallelism.
  bool cuts_kept_tokens() const { return tensor == TensorExchange::sequence && tensors() > 1; }
  /// Returns the number of ranks of a replica over which the rows of the vocabulary are cut: those whose tokens between sublayers
  /// differ; under plain tp, those of tp.
  int vocabulary_ranks() const;

  /// Returns the layout as text: "tp=2,sp=4", or "1" without axes.
  std::string print() const;
  /// Returns print(), followed by the variants that aren't the default: "tp=2,sp=4 (ring)".
  std::string label() const;
  bool operator==(const Spread&) const = default;
};

/// Returns why the model can't be spread like this, with a value that works and in the words of a run's refusal; empty if it can.
/// Doesn't check the order of axes, which the grammar of --layout restricts.
std::string why_impossible(const Setting& setting, const Spread& spread);

/// Returns the mesh of the spread's ranks. Throws Error(refused) for axes that can't be combined, such as sp with zero3.
MeshShape mesh_shape(const Spread& spread);

}  // namespace tsprun::theory
