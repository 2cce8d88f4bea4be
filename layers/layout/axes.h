// The axes that a layout can name: one row each, from which the grammar of --layout, its refusals, the options that choose an
// axis's variant, and all questions to a layout follow. What the schedules and theory do with an axis stands in tables of their
// own (schedules/strategies.cpp, theory/ways.cpp), which don't compile without a row for each axis.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tsprun::detail {

/// Axes that a layout can name.
enum class AxisKind : std::uint8_t { dp, shard, pp, tp, sp, tsp, zero3 };

/// Names what an axis cuts: its ranks have different parts of that, and the same of everything else.
enum class Cut : std::uint8_t {
  batch,              ///< sequences
  batch_again,        ///< the sequences of each rank of an axis that cuts the batch
  layers,             ///< consecutive layers: stages of a pipeline
  heads,              ///< heads and rows of weights
  tokens,             ///< tokens of the same sequences
  tokens_and_weights  ///< both, over the same ranks
};
/// Returns whether the ranks of such an axis have other sequences.
constexpr bool cuts_batch(Cut cut) { return cut == Cut::batch || cut == Cut::batch_again; }
/// Returns whether the ranks of such an axis compute blocks each on its own.
constexpr bool is_outside_of_blocks(Cut cut) { return cuts_batch(cut) || cut == Cut::layers; }
constexpr bool cuts_tokens(Cut cut) { return cut == Cut::tokens || cut == Cut::tokens_and_weights; }

/// Ways in which the ranks of dp share what they keep (`--dp`), in the order of its variants. With the axis shard, its ranks
/// share so, and those of dp have copies of each part.
enum class DataSharing : std::uint8_t {
  plain,  ///< nothing: each keeps all of its replica's part
  zero1,  ///< optimizer states: each updates a part of the weights, which are gathered after it
  zero3   ///< weights and gradients, too: each keeps a part, and all of a sublayer's are gathered for each use
};

/// Ways in which the ranks of tp exchange activations between sublayers (`--tp`), in the order of its variants.
enum class TensorExchange : std::uint8_t {
  plain,    ///< each rank keeps all tokens: one all-reduce per sublayer and direction
  sequence  ///< Megatron's sequence parallelism: each has a part; all-gather before, reduce-scatter after a sublayer
};

/// Ways of exchanging K and V over sp (`--sp`), in the order of its variants.
enum class SequenceExchange : std::uint8_t {
  gather,  ///< each rank gathers all K and V (context parallelism)
  ring,    ///< K and V travel round a ring (ring attention)
  ulysses  ///< an all_to_all exchanges tokens for heads (DeepSpeed-Ulysses)
};

/// A way of exchanging along an axis.
struct Variant {
  std::string_view name;
  bool slices_tokens = false;             ///< ranks of an axis that cuts heads have different tokens between sublayers
  bool shares_states = false;             ///< ranks of an axis that cuts sequences have parts of the optimizer states
  bool shares_weights = false;            ///< and parts of the weights and gradients, which they gather for each use
  bool exchanges_heads = false;           ///< attention exchanges tokens for query heads, which must divide by the degree
  std::string_view why_not_decoded = {};  ///< why `generate` refuses it; empty: it doesn't
};

/// A row of the table: everything that is known of an axis.
struct AxisRow {
  AxisKind kind;
  std::string_view name;
  Cut cuts;
  AxisKind tokens_by;                                ///< the axis by whose strategy blocks are computed if none cuts tokens
  std::span<const std::string_view> elsewhere = {};  ///< other frameworks' names
  bool foremost = false;                             ///< stands before all that aren't, in the order of the table
  std::span<const AxisKind> never_with = {};         ///< axes that a layout can't have beside it
  std::string_view why_never = {};                   ///< the refusal of those, with what works
  std::span<const Variant> variants = {};            ///< the first is the default; empty: there is nothing to choose
  std::string_view variants_help = {};               ///< help of the option that chooses one, and bears the axis's name
  std::string_view why_no_variant = {};              ///< what a refusal of another one says before those that work
  std::string_view why_data_shares_none = {};        ///< why dp's ranks can't share weights beside it; empty: they can
  bool cuts_heads = false;                           ///< its shards are whole query heads, which must divide by the degree
  std::string_view why_not_decoded = {};             ///< why `generate` refuses it; empty: it doesn't
  std::optional<AxisKind> decoded_instead = {};      ///< the axis that `generate` advises then; none: to leave it out
  bool searched = true;                              ///< `plan --search` tries it
  std::string_view why_only_trained = {};            ///< why nothing but training computes with it; empty: all does
};

namespace axis_table {
inline constexpr std::array<std::string_view, 2> kData = {"ddp", "data"};
inline constexpr std::array<std::string_view, 1> kShards = {"hsdp"};
inline constexpr std::array<std::string_view, 2> kPipeline = {"pipeline", "pipe"};
inline constexpr std::array<std::string_view, 2> kTensor = {"tensor", "mp"};
inline constexpr std::array<std::string_view, 3> kSequence = {"cp", "context", "sequence"};
inline constexpr std::array<std::string_view, 1> kSharded = {"zero"};
inline constexpr std::array kNotWithTsp = {AxisKind::sp};
inline constexpr std::array kNotWithZero3 = {AxisKind::tp, AxisKind::sp, AxisKind::tsp};
inline constexpr std::array kOverData = {
    Variant{.name = "plain"}, Variant{.name = "zero1", .shares_states = true},
    Variant{.name = "zero3",
            .shares_states = true,
            .shares_weights = true,
            .why_not_decoded = "each data rank keeps parts of the weights, and would gather all of them for every token: plain "
                               "and zero1 work"}};
inline constexpr std::array kOverTensor = {Variant{.name = "plain"}, Variant{.name = "sequence", .slices_tokens = true}};
inline constexpr std::array kOverSequence = {
    Variant{.name = "gather"}, Variant{.name = "ring"},
    Variant{.name = "ulysses",
            .exchanges_heads = true,
            .why_not_decoded = "ulysses keeps K and V by heads, the cache is by positions: gather and ring work"}};
}  // namespace axis_table

/// Table of the axes, in the order in which messages list them.
inline constexpr std::array kAxes = {
    AxisRow{.kind = AxisKind::dp,
            .name = "dp",
            .cuts = Cut::batch,
            .tokens_by = AxisKind::tsp,
            .elsewhere = axis_table::kData,
            .foremost = true,
            .variants = axis_table::kOverData,
            .variants_help =
                "what dp's ranks share: plain (nothing), zero1 (optimizer states: each updates a part of the weights), "
                "zero3 (weights and gradients, too, which are gathered for each use)",
            .why_no_variant = "dp's ranks share nothing, optimizer states, or weights and gradients, too: "},
    AxisRow{.kind = AxisKind::shard,
            .name = "shard",
            .cuts = Cut::batch_again,
            .tokens_by = AxisKind::tsp,
            .elsewhere = axis_table::kShards,
            .foremost = true,
            .searched = false},
    AxisRow{.kind = AxisKind::pp,
            .name = "pp",
            .cuts = Cut::layers,
            .tokens_by = AxisKind::tsp,
            .elsewhere = axis_table::kPipeline,
            .foremost = true,
            .why_data_shares_none = "a stage computes several micro-batches at once, and doesn't know yet when weights that "
                                    "dp's ranks share are needed; try --dp zero1",
            .why_only_trained = "pipelines train, and plan --tasks lists what their stages do; nothing else knows them yet"},
    AxisRow{.kind = AxisKind::tp,
            .name = "tp",
            .cuts = Cut::heads,
            .tokens_by = AxisKind::sp,
            .elsewhere = axis_table::kTensor,
            .variants = axis_table::kOverTensor,
            .variants_help = "how tp's ranks share tokens: plain (all have all), sequence (Megatron's sequence parallelism)"},
    AxisRow{.kind = AxisKind::sp,
            .name = "sp",
            .cuts = Cut::tokens,
            .tokens_by = AxisKind::sp,
            .elsewhere = axis_table::kSequence,
            .variants = axis_table::kOverSequence,
            .variants_help = "how sp's ranks attend to each other's tokens: {}"},
    AxisRow{.kind = AxisKind::tsp,
            .name = "tsp",
            .cuts = Cut::tokens_and_weights,
            .tokens_by = AxisKind::tsp,
            .never_with = axis_table::kNotWithTsp,
            .why_never = "tsp holds the sequence already and can't be mixed with sp; try tsp alone, or tp with tsp",
            .cuts_heads = true},
    AxisRow{.kind = AxisKind::zero3,
            .name = "zero3",
            .cuts = Cut::tokens_and_weights,
            .tokens_by = AxisKind::zero3,
            .elsewhere = axis_table::kSharded,
            .never_with = axis_table::kNotWithZero3,
            .why_never = "zero3 can't be mixed with tp, sp or tsp; try zero3 alone or after dp",
            .why_data_shares_none = "its ranks have parts of each sublayer's weights already; try --dp zero1, or tsp, beside "
                                    "which dp's ranks can share them",
            .why_not_decoded = "zero3 keeps rows of weights, not heads, and would gather all of them for every token",
            .decoded_instead = AxisKind::tsp}};

/// Returns the place of an axis in kAxes, and in every other table of axes.
constexpr std::size_t index_of(AxisKind kind) { return static_cast<std::size_t>(kind); }

/// Returns whether a table has a row for each axis, in the order of AxisKind; rows name theirs in `axis`.
template <class Table, class Axis>
constexpr bool is_by_axis(const Table& table, Axis axis) {
  if (table.size() != kAxes.size()) return false;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (index_of(table[i].*axis) != i) return false;
  }
  return true;
}
static_assert(is_by_axis(kAxes, &AxisRow::kind), "the rows stand in the order of AxisKind");

/// Returns the axis's row.
constexpr const AxisRow& row_of(AxisKind kind) { return kAxes[index_of(kind)]; }
constexpr std::string_view name(AxisKind kind) { return row_of(kind).name; }

}  // namespace tsprun::detail
