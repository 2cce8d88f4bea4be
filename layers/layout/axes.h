// The axes that a layout can name: one row each, from which the grammar of --layout, its refusals and all questions to a layout
// follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tsprun::detail {

/// Axes that a layout can name.
enum class AxisKind : std::uint8_t { dp, tp, sp, tsp, zero3 };

/// Names what an axis cuts: its ranks have different parts of that, and the same of everything else.
enum class Cut : std::uint8_t {
  batch,              ///< sequences
  heads,              ///< heads and rows of weights
  tokens,             ///< tokens of the same sequences
  tokens_and_weights  ///< both, over the same ranks
};

/// Ways of spreading weights and tokens over the ranks of a replica.
enum class Scheme : std::uint8_t {
  tsp,    ///< weights and tokens over the same ranks
  dense,  ///< weights over tp, tokens over sp; either may be one rank
  zero3   ///< tokens and weights over the same ranks; weights are gathered sublayer by sublayer
};
/// Number of schemes.
inline constexpr std::size_t kSchemes = 3;

/// Ways in which the ranks of tp exchange activations between sublayers (`--tp`).
enum class TensorExchange : std::uint8_t {
  plain,    ///< each rank keeps all tokens: one all-reduce per sublayer and direction
  sequence  ///< Megatron's sequence parallelism: each has a part; all-gather before, reduce-scatter after a sublayer
};

/// Ways of exchanging K and V over sp (`--sp`).
enum class SequenceExchange : std::uint8_t {
  gather,  ///< each rank gathers all K and V (context parallelism)
  ring,    ///< K and V travel round a ring (ring attention)
  ulysses  ///< an all_to_all exchanges tokens for heads (DeepSpeed-Ulysses)
};

/// Lists of the ways of tp and of sp, the default first.
inline constexpr std::array kTensorExchanges = {TensorExchange::plain, TensorExchange::sequence};
inline constexpr std::array kSequenceExchanges = {SequenceExchange::gather, SequenceExchange::ring, SequenceExchange::ulysses};

/// A row of the table: everything that is known of an axis.
struct AxisRow {
  AxisKind kind;
  std::string_view name;
  Cut cuts;
  Scheme scheme;                                ///< under which it cuts; dp goes with any
  std::span<const std::string_view> elsewhere;  ///< other frameworks' names
  bool foremost = false;                        ///< stands before all others
  std::span<const AxisKind> never_with = {};    ///< axes that a layout can't have beside it
  std::string_view why_never = {};              ///< the refusal of those, with what works
};

namespace axis_table {
inline constexpr std::array<std::string_view, 2> kData = {"ddp", "data"};
inline constexpr std::array<std::string_view, 2> kTensor = {"tensor", "mp"};
inline constexpr std::array<std::string_view, 3> kSequence = {"cp", "context", "sequence"};
inline constexpr std::array<std::string_view, 2> kSharded = {"fsdp", "zero"};
inline constexpr std::array kNotWithTsp = {AxisKind::sp};
inline constexpr std::array kNotWithZero3 = {AxisKind::tp, AxisKind::sp, AxisKind::tsp};
}  // namespace axis_table

/// Table of the axes, in the order in which messages list them.
inline constexpr std::array<AxisRow, 5> kAxes = {
    {{AxisKind::dp, "dp", Cut::batch, Scheme::tsp, axis_table::kData, true},
     {AxisKind::tp, "tp", Cut::heads, Scheme::dense, axis_table::kTensor},
     {AxisKind::sp, "sp", Cut::tokens, Scheme::dense, axis_table::kSequence},
     {AxisKind::tsp,
      "tsp",
      Cut::tokens_and_weights,
      Scheme::tsp,
      {},
      false,
      axis_table::kNotWithTsp,
      "tsp holds the sequence already and can't be mixed with sp; try tsp alone, or tp with tsp"},
     {AxisKind::zero3, "zero3", Cut::tokens_and_weights, Scheme::zero3, axis_table::kSharded, false, axis_table::kNotWithZero3,
      "zero3 can't be mixed with tp, sp or tsp; try zero3 alone or after dp"}}};

static_assert(
    [] {
      for (std::size_t i = 0; i < kAxes.size(); ++i) {
        if (static_cast<std::size_t>(kAxes[i].kind) != i) return false;
      }
      return true;
    }(),
    "the rows stand in the order of AxisKind");

/// Returns the axis's row.
constexpr const AxisRow& row_of(AxisKind kind) { return kAxes[static_cast<std::size_t>(kind)]; }
constexpr std::string_view name(AxisKind kind) { return row_of(kind).name; }
constexpr std::string_view name(TensorExchange exchange) { return exchange == TensorExchange::plain ? "plain" : "sequence"; }
constexpr std::string_view name(SequenceExchange exchange) {
  constexpr std::array<std::string_view, 3> kNames = {"gather", "ring", "ulysses"};
  return kNames[static_cast<std::size_t>(exchange)];
}

}  // namespace tsprun::detail
