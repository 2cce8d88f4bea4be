// How a model is spread over ranks, as counting needs it: the degrees of the axes, their order, and the variants of tp and sp.
// What can't be is refused here by name, so that plans and runs refuse the same layouts.
#pragma once

#include "layers/model/mesh.h"
#include "layers/sp/sequence_attention.h"
#include "layers/theory/setting.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::theory {

enum class AxisKind : std::uint8_t { dp, tp, sp, tsp, zero3 };
/// All of them, in the order in which messages list them.
inline constexpr std::array kAxisKinds = {AxisKind::dp, AxisKind::tp, AxisKind::sp, AxisKind::tsp, AxisKind::zero3};
std::string_view name(AxisKind kind);
/// The axis of that name; nothing if there is none.
std::optional<AxisKind> axis_kind(std::string_view name);

std::string_view name(TensorExchange exchange);
std::string_view name(SequenceExchange exchange);

struct Spread {
  struct Axis {
    AxisKind kind;
    int degree;
    bool operator==(const Axis&) const = default;
  };
  std::vector<Axis> axes;  ///< outermost first; the last varies fastest over ranks
  TensorExchange tensor = TensorExchange::plain;
  SequenceExchange sequence = SequenceExchange::gather;

  /// 1 for an axis that isn't there.
  int degree(AxisKind kind) const;
  /// The product of all degrees.
  int ranks() const;
  /// How far apart neighbours of an axis are, in ranks.
  int stride(AxisKind kind) const;

  int data() const { return degree(AxisKind::dp); }     ///< replicas with other sequences
  int tensors() const { return degree(AxisKind::tp); }  ///< T
  /// Ranks with other tokens of the same sequences: of sp, tsp or zero3. Σ, D.
  int token_ranks() const;
  /// Weights and tokens lie on the same ranks.
  bool folded() const { return degree(AxisKind::tsp) > 1; }
  bool zero3() const { return degree(AxisKind::zero3) > 1; }

  /// Norms, dropout and residuals are on S/T of a rank's tokens: Megatron's sequence parallelism.
  bool cuts_kept_tokens() const { return tensor == TensorExchange::sequence && tensors() > 1; }
  /// Ranks of a replica over which rows of the vocabulary are cut: those whose kept tokens differ; under plain tp those of tp.
  int vocabulary_ranks() const;

  /// "tp=2,sp=4", or "1".
  std::string print() const;
  /// The same with the variant where it isn't the default: "tp=2,sp=4 (ring)".
  std::string label() const;
  bool operator==(const Spread&) const = default;
};

/// Why the model can't be spread so, naming a value that works, as runs refuse it; empty if it can. The order of axes is the
/// grammar's business.
std::string why_impossible(const Setting& setting, const Spread& spread);

/// The mesh of its ranks. Throws Error(refused) for axes that no mesh has together, such as sp with zero3.
MeshShape mesh_shape(const Spread& spread);

}  // namespace tsprun::theory
