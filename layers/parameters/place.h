// Where parameters live: what a rank holds of each, in which pack, who else has the same, who counts and writes it, over which
// ranks its gradients are summed, its fresh values, its decay and its optimizer states. All of it is a pure function of model,
// layout and rank, which schedules, checkpoints, forecasts and tests ask.
//
// A role says once what a parameter is cut by; an axis says which of that it cuts (layers/layout/axes.h):
//
//   parameter                     cut by               tp          tsp        zero3              sp
//   W_Q, W_K, W_V, W_O            heads                heads (1)   heads      rows of the pack   –
//   W_1 (gate), W_3 (up), W_2     rows f               f           f          rows of the pack   –
//   embedding, head, inputs' table vocabulary          rows (2)    rows       rows               rows
//   b_Q, b_K, b_V, b_1            heads, f: computed   –           –          –                  –
//   the head's bias               vocabulary: computed –           –          –                  –
//   norms of q and k, output scale nothing (3)         –           –          –                  –
//   norms, b_O, b_2, positions    nothing              –           –          –                  –
//   matrices of layers' inputs    nothing              –           –          –                  –
//
// pp cuts by layers: a stage has nothing of the others' layers, the first has the embedding and the learned positions, the last
// the final norm and the head. A tied embedding is on both, and the first counts it.
//
// (1) K/V heads that query heads of several ranks read are held by each of them. (2) Under plain tp alone over tp; with token
// slices over all ranks of a replica whose tokens differ. (3) But ranks of tp compute with them for their heads, as with b_Q.
//
// Of ranks that hold the same part, the first along every axis that doesn't cut it counts it in norms and writes it to files; of
// K/V heads that several ranks of tp hold, the first of these. Where replicas share optimizer states (--dp zero1), every pack is
// cut over them as an all_reduce cuts it, whatever rows that divides, and each counts the elements of which it has the states.
// Where they share weights (--dp zero3), they hold of the packs of layers and of the vocabulary's these elements alone; norms,
// biases and learned positions stay whole.
#pragma once

#include "core/collectives/chunks.h"
#include "layers/io/by_layer.h"
#include "layers/io/safetensors.h"
#include "layers/layout/heads.h"
#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "layers/layout/slice.h"
#include "layers/parameters/parameters.h"
#include "tsprun/memory.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace tsprun::detail {

/// Stacks of parts of one width that lie together in memory: two for each layer, then at most one of each kind.
enum class PackKind : std::uint8_t {
  attention,   ///< [W_K; W_V; W_Q; W_Oᵀ] of some heads, of width h
  mlp,         ///< [W_1; W_3; W_2ᵀ] of some rows, of width h; without a gate [W_1; W_2ᵀ]
  replicated,  ///< norms of layer 0, …, last biases, final norm, learned positions, matrices of layers' inputs, of width h
  embedding,   ///< rows of the vocabulary, of width h
  head,        ///< the same; models with a tied embedding have none
  /// Rows of the table of layers' inputs, of width L·w, in models that have them.
  layer_inputs,
  /// Biases of W_Q, W_K, W_V and W_1, norms of q and k, and the head's bias behind them, of width 1: whole on every rank, which
  /// computes with them for its heads and rows. Only models that have such vectors have it.
  biases
};

/// Parts of an attention pack in the order in which they lie. K and V are first and W_Oᵀ is last, so that {K, V}, {K, V, Q}, {Q,
/// Oᵀ} and {Oᵀ} are each contiguous.
enum AttentionPart : std::size_t { kPartK, kPartV, kPartQ, kPartO, kAttentionParts };
/// Parts of an MLP pack in the order in which they lie.
enum MlpPart : std::size_t { kPartGate, kPartUp, kPartDown, kMlpParts };

/// Names what a parameter is cut by along one of its dims.
enum class CutBy : std::uint8_t {
  nothing,
  vocabulary,
  query_heads,
  kv_heads,
  projections,  ///< query heads, K heads and V heads, side by side
  mlp_rows,
  gate_and_up  ///< rows of W_1 and rows of W_3, side by side
};

/// Names how fresh values are drawn.
enum class Fresh : std::uint8_t {
  normal,           ///< N(0, 0.02²)
  normal_by_depth,  ///< the same divided by √(2L): matrices that end a sublayer
  ones,             ///< gains; 0 where a gain is 1 + w (Parameter::gains_from_one)
  zeros
};

/// Traits of all parameters of a role, whatever the layout.
struct RoleTraits {
  PackKind pack;
  std::size_t order;  ///< among the parts of a layer's pack; of a matrix that is several that of the first part (W_Q, W_1)
  CutBy cut_by;
  bool inputs = false;  ///< the dim of the inputs is cut, not that of the outputs
  Fresh fresh = Fresh::normal;

  /// Returns whether weight decay applies: to matrices.
  constexpr bool decays() const { return fresh == Fresh::normal || fresh == Fresh::normal_by_depth; }
};

/// Returns a role's traits. A role without them doesn't compile.
constexpr RoleTraits traits_of(ParameterRole role) {
  using enum PackKind;
  switch (role) {
    case ParameterRole::embedding: return {embedding, 0, CutBy::vocabulary};
    case ParameterRole::head: return {head, 0, CutBy::vocabulary};
    case ParameterRole::positions: return {replicated, 1, CutBy::nothing};
    case ParameterRole::layer_input_embedding: return {layer_inputs, 0, CutBy::vocabulary};
    case ParameterRole::layer_input_projection: return {replicated, 1, CutBy::nothing};
    case ParameterRole::layer_input_norm: return {biases, 1, CutBy::nothing, false, Fresh::ones};
    case ParameterRole::input_gate: return {replicated, 0, CutBy::nothing};
    case ParameterRole::input_result: return {replicated, 0, CutBy::nothing, true, Fresh::normal_by_depth};
    case ParameterRole::query: return {attention, kPartQ, CutBy::query_heads};
    case ParameterRole::key: return {attention, kPartK, CutBy::kv_heads};
    case ParameterRole::value: return {attention, kPartV, CutBy::kv_heads};
    case ParameterRole::query_key_value: return {attention, kPartQ, CutBy::projections};
    case ParameterRole::output: return {attention, kPartO, CutBy::query_heads, true, Fresh::normal_by_depth};
    case ParameterRole::gate: return {mlp, kPartGate, CutBy::mlp_rows};
    case ParameterRole::up: return {mlp, kPartUp, CutBy::mlp_rows};
    case ParameterRole::gate_up: return {mlp, kPartGate, CutBy::gate_and_up};
    case ParameterRole::down: return {mlp, kPartDown, CutBy::mlp_rows, true, Fresh::normal_by_depth};
    case ParameterRole::query_bias: return {biases, 0, CutBy::query_heads, false, Fresh::zeros};
    case ParameterRole::key_bias:
    case ParameterRole::value_bias: return {biases, 0, CutBy::kv_heads, false, Fresh::zeros};
    case ParameterRole::query_norm:
    case ParameterRole::key_norm:
    case ParameterRole::output_scale: return {biases, 0, CutBy::nothing, false, Fresh::ones};
    case ParameterRole::query_key_value_bias: return {biases, 0, CutBy::projections, false, Fresh::zeros};
    case ParameterRole::head_bias: return {biases, 2, CutBy::vocabulary, false, Fresh::zeros};
    case ParameterRole::up_bias: return {biases, 0, CutBy::mlp_rows, false, Fresh::zeros};
    case ParameterRole::attention_norm:
    case ParameterRole::post_attention_norm:
    case ParameterRole::mlp_norm:
    case ParameterRole::post_mlp_norm:
    case ParameterRole::post_input_norm:
    case ParameterRole::final_norm: return {replicated, 0, CutBy::nothing, false, Fresh::ones};
    case ParameterRole::attention_norm_bias:
    case ParameterRole::post_attention_norm_bias:
    case ParameterRole::mlp_norm_bias:
    case ParameterRole::post_mlp_norm_bias:
    case ParameterRole::final_norm_bias:
    case ParameterRole::output_bias:
    case ParameterRole::down_bias: return {replicated, 0, CutBy::nothing, false, Fresh::zeros};
  }
  throw std::logic_error("a parameter without a role");
}

/// A rectangle of a parameter that is stored as one part of a pack.
struct PartPlan {
  Parameter parameter;
  safetensors::Rectangle block{};  ///< the rectangle within the parameter as files store it; a vector is one row
  bool transposed = false;         ///< in memory as [block.columns, block.rows]
  /// Set if this rank counts the part in norms and writes it to files. Of ranks with copies of a rectangle exactly one does.
  bool counted = true;
  /// Returns the width of the part's rows in memory.
  std::size_t width() const { return transposed ? block.rows : block.columns; }
  std::size_t rows() const { return transposed ? block.columns : block.rows; }
};

/// The parts of a pack, all of one width, from the first row to the last.
struct PackPlan {
  std::vector<PartPlan> parts;
  int sharers = 1;  ///< ranks that hold the same parts and over which their optimizer states are cut; 1: each has all of them
  int sharer = 0;   ///< this rank's number among them
  /// Set if weights and gradients are cut over them, too: each holds the elements alone of which it has the states.
  bool cuts_weights = false;
};

/// Elements of a part, in the order in which they lie in memory.
struct ElementRange {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t end() const { return first + count; }
};
/// Returns how a pack's elements are cut over the ranks that share its optimizer states.
inline Chunks states_cut(int sharers, std::size_t elements) { return Chunks::balanced(sharers, elements); }
/// Returns of which elements of each part one of these ranks holds the optimizer states; where weights are cut, all that it
/// holds.
std::vector<ElementRange> states_held(const PackPlan& plan, int sharer);
/// Returns these elements of a part as rectangles: whole rows of its memory, and what is taken of the rows before and after them.
std::vector<PartPlan> rectangles(const PartPlan& part, const ElementRange& elements);

/// Returns the number of rows of all parts.
std::size_t pack_rows(const PackPlan& plan);
/// Returns the number of elements of all parts.
std::size_t pack_elements(const PackPlan& plan);

/// Returns the number of optimizer states per parameter, which have the type of sums: two moments, and a master copy where
/// parameters have fewer bytes than sums (bf16).
constexpr std::uint64_t optimizer_states(const ElementBytes& bytes) { return bytes.element < bytes.accumulated ? 3 : 2; }
/// Returns whether there is a master copy.
constexpr bool keeps_master(DType dtype) { return optimizer_states(ElementBytes::of(dtype)) > 2; }
/// Returns the bytes of so many elements that a rank holds: parameters, and in training their gradients, and the optimizer states
/// of so many. `total` is their sum.
CategoryBytes held_bytes(std::uint64_t elements, std::uint64_t with_states, const ElementBytes& bytes, bool training);

/// The ranks over which a pack's gradients are summed, one group after another. Groups of one rank are listed, too.
struct SummedOver {
  /// Groups within a replica, by their axes.
  std::vector<std::vector<AxisKind>> replica;
  /// Set if the ranks of the first group hold different rows: each gets the sum of its own, of every micro-batch. Otherwise all
  /// get the sum of what they have added up in all micro-batches, after the last.
  bool at_owners = false;
  /// The ranks with other sequences over which the pack is cut, so that each gets the sum of its part (--dp zero1 and zero3).
  std::vector<AxisKind> sharers = {};
  /// The ranks with other sequences that have the same, the pack or a part of it, after the last micro-batch.
  std::vector<AxisKind> data;
};
/// Returns over which ranks the gradients of such packs are summed. Gradients of K/V heads of which ranks of tp have copies
/// (copied_heads()) are summed over these, besides.
SummedOver summed_over(const Layout& layout, PackKind pack);

/// A K/V head that a rank shares with other ranks of the axis that cuts heads.
struct CopiedHead {
  std::size_t head;  ///< its number in the model
  int owner;         ///< place on that axis of the first rank that has it, which counts it
  int last;          ///< place of the last one; those between have it, too
  bool operator==(const CopiedHead&) const = default;
};
/// Returns the K/V heads of such a layer that the slice at a place on that axis shares, in ascending order.
std::vector<CopiedHead> copied_heads(const ModelConfig& config, const LayerSpec& layer, SlicePlace at);

/// Returns how the vocabulary's rows are cut over the ranks of layout.axes_of_vocabulary().
Chunks vocabulary_cut(const ModelConfig& config, const Layout& layout);
/// Returns how all rows of a layer's pack of attention or MLP are cut over `ranks` of an axis that cuts packs by rows.
Chunks pack_cut(const ModelConfig& config, std::size_t layer, PackKind pack, int ranks);

/// One rank's part of a model.
class Placement {
 public:
  /// Takes a rank of the layout, which check_layout() must accept. Borrows the configuration. Throws Error(refused) for heads
  /// that can't be cut.
  Placement(const ModelConfig& config, const Layout& layout, int rank);
  Placement(ModelConfig&& config, const Layout& layout, int rank) = delete;

  /// Returns the parts that the rank holds of a parameter; several if it counts not all of them, or they are parts of a pack that
  /// don't follow each other. Parts without rows are listed, so that packs of a kind have parts in the same places.
  std::vector<PartPlan> of(const Parameter& parameter) const;
  /// Returns the packs of these parameters: attention and MLP of each layer, then the others in the order of PackKind; only those
  /// that the parameters are of.
  std::vector<PackPlan> packs(std::span<const Parameter> parameters) const;
  /// Returns the stage of a pipeline that the rank is of: the whole model if there is none.
  const PipelineStage& stage() const { return stage_; }
  /// Returns the K/V heads of a layer that the rank holds. Precondition: no axis cuts packs by rows.
  const HeadRange& kv_heads(std::size_t layer) const { return layers_[layer].kv; }
  /// Returns the elements that the rank holds in all packs of a kind.
  std::uint64_t elements(PackKind pack) const { return cuts_weights(pack) ? states(pack) : sum_of(pack, false); }
  /// Returns of how many of these it holds the optimizer states.
  std::uint64_t states(PackKind pack) const { return sum_of(pack, true); }

 private:
  /// Rows of a part, numbered in what it is cut by.
  struct Range {
    std::size_t first;
    std::size_t count;
  };
  /// The rank's part of a layer's packs of attention and MLP.
  struct OfLayer {
    const LayerSpec* spec;
    BlockSlice slice;   // of the axis that cuts heads
    HeadRange queries;  // heads and rows of the MLP that the rank holds, unless packs are cut
    HeadRange kv;
    Range rows;
    Range of_attention_pack = {};  // rows of the slice's packs, if they are cut
    Range of_mlp_pack = {};
  };
  OfLayer of_layer(const LayerSpec& spec, const Layout& layout, int rank) const;
  Range held(const OfLayer& layer, PackKind pack, std::size_t order) const;
  bool cuts_weights(PackKind pack) const;
  std::uint64_t sum_of(PackKind pack, bool states) const;
  std::uint64_t whole(PackKind pack) const;
  std::uint64_t whole(const OfLayer& layer, PackKind pack) const;
  bool is_of_stage(ParameterRole role, std::size_t layer) const;
  bool counts(PackKind pack) const;
  static std::size_t copied_kv_heads(const OfLayer& layer);
  template <class Body>
  void for_parts(const Parameter& parameter, Body&& body) const;

  const ModelConfig& config_;
  bool cuts_heads_;         // the axis that cuts tokens cuts the slice's heads and rows again
  bool cuts_packs_;         // it cuts packs by rows
  bool copies_vocabulary_;  // its ranks have copies of the vocabulary's rows
  ByLayer<OfLayer> layers_;
  Range vocabulary_{};
  int sharers_;
  int sharer_;
  bool shares_weights_;
  PipelineStage stage_;
  bool first_along_data_ = true;
  bool first_along_tensor_ = true;
  bool first_along_tokens_ = true;
};

}  // namespace tsprun::detail
