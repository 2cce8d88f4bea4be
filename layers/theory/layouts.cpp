// Counts what each rank of a mesh holds and saves, from the same cuts that the schedules use.
#include "layers/theory/layouts.h"

#include "layers/layout/seen_keys.h"
#include "layers/layout/zigzag.h"
#include "layers/parameters/place.h"
#include "layers/theory/ways.h"

#include <algorithm>

namespace tsprun::detail::theory {

Setting MeshSetting::replica() const {
  Setting replica = setting;
  replica.batch /= static_cast<std::size_t>(layout.data());
  return replica;
}

Setting MeshSetting::micro_batch() const {
  Setting part = replica();
  part.batch /= part.micro_batches;
  part.micro_batches = 1;
  return part;
}

MeshPlace place_of(const Layout& layout, int rank) {
  return {.tensor = layout.place(layout.tensor_axis(), rank),
          .sequence = layout.place(layout.token_axis(), rank),
          .data = layout.data_place(rank),
          .stage = layout.place(layout.stage_axis(), rank)};
}

int rank_at(const Layout& layout, MeshPlace place) {
  int rank = place.tensor * layout.stride(layout.tensor_axis()) + place.sequence * layout.stride(layout.token_axis()) +
             place.stage * layout.stride(layout.stage_axis());
  const std::vector<AxisKind> data = layout.axes_of_data();
  for (auto axis = data.rbegin(); axis != data.rend(); ++axis) {
    rank += place.data % layout.degree(*axis) * layout.stride(*axis);
    place.data /= layout.degree(*axis);
  }
  return rank;
}

// --- parameters --------------------------------------------------------------------------------------------------------------

RankParameters held(const MeshSetting& of, MeshPlace place) {
  const ModelConfig& model = of.setting.model;
  const Placement rank(model, of.layout, rank_at(of.layout, place));
  return {.attention = rank.elements(PackKind::attention),
          .mlp = rank.elements(PackKind::mlp),
          .vocabulary = rank.elements(PackKind::embedding) + rank.elements(PackKind::head),
          .norms = rank.elements(PackKind::replicated) + rank.elements(PackKind::biases),
          .inputs = rank.elements(PackKind::layer_inputs),
          .states = rank.states(PackKind::attention) + rank.states(PackKind::mlp) + rank.states(PackKind::embedding) +
                    rank.states(PackKind::head) + rank.states(PackKind::replicated) + rank.states(PackKind::biases) +
                    rank.states(PackKind::layer_inputs)};
}

std::size_t kv_heads_read(const ModelConfig& model, const LayerSpec& layer, const BlockSlice& slice, int part, int parts) {
  const HeadRange own = HeadCut(slice.queries.count, slice.queries.count, parts).query_heads(part);
  const std::size_t g = model.heads_per_kv_head(layer);
  const std::size_t first = slice.queries.first + own.first;
  return (first + own.count - 1) / g + 1 - first / g;
}

// --- activations -------------------------------------------------------------------------------------------------------------

std::uint64_t held_tokens(const MeshSetting& of, MeshPlace place) {
  const Setting replica = of.micro_batch();
  const std::size_t rows = replica.batch * Zigzag(replica.sequence, of.layout.sequence()).tokens(place.sequence);
  return of.layout.slices_tokens() ? Chunks::balanced(of.layout.tensor(), rows).count(place.tensor) : rows;
}

std::uint64_t saved_bytes_per_token(const Setting& setting, const LayerSpec& layer) {
  const auto& [element, accumulated, lse] = setting.bytes;
  const ModelConfig& model = setting.model;
  const std::uint64_t inputs = layer.kept_residuals() * model.hidden;
  const std::uint64_t a = model.query_width(layer);
  const std::uint64_t k = model.kv_width(layer);
  const std::uint64_t kept_kv = layer.projects_keys() ? 2 * k : 0;
  const std::uint64_t lent = layer.lends ? 2 * k : 0;  // in every mode
  const std::uint64_t products =
      (layer.norms_queries_and_keys() ? a + (layer.projects_keys() ? k : 0) : 0) + (layer.norms_own_values() ? k : 0);
  switch (setting.recompute) {
    case Recompute::none:
      return element * (inputs + 2 * a + kept_kv + products + model.mlp_inputs() * model.intermediate_of(layer)) +
             lse * model.query_heads;
    case Recompute::selective: return element * (inputs + a + lent) + lse * model.query_heads;
    case Recompute::full: return element * (inputs + lent);
  }
  return 0;
}

std::uint64_t saved_bytes(const MeshSetting& of, const LayerSpec& layer, MeshPlace place) {
  const Setting replica = of.micro_batch();
  const ModelConfig& model = replica.model;
  const BlockSlice slice = BlockSlice::of(model, layer, {place.tensor, of.layout.tensor()});
  Setting part = replica;
  part.model = slice.apply(model, layer);
  const std::uint64_t inputs = layer.kept_residuals() * model.hidden * replica.bytes.element;
  const std::uint64_t inside = saved_bytes_per_token(part, part.model.layer(0)) - inputs;
  const std::uint64_t inputs_all = held_tokens(of, place) * inputs;
  const std::uint64_t rows = replica.batch * Zigzag(replica.sequence, of.layout.sequence()).tokens(place.sequence);
  if (!of.layout.exchanges_heads()) return inputs_all + rows * inside;
  // Ulysses saves q, k, v and log-sum-exps of some heads and all tokens, instead of some tokens and all heads.
  const HeadRange own = HeadCut(slice.queries.count, slice.queries.count, of.layout.sequence()).query_heads(place.sequence);
  const std::uint64_t kv = kv_heads_read(model, layer, slice, place.sequence, of.layout.sequence());
  const std::uint64_t d = model.head_dim_of(layer);
  const std::uint64_t lse = own.count * replica.tokens() * replica.bytes.lse;
  std::uint64_t bytes = inputs_all;
  if (replica.recompute != Recompute::full) bytes += rows * slice.queries.count * d * replica.bytes.element + lse;  // and o
  if (layer.lends || (replica.recompute == Recompute::none && layer.projects_keys()))
    bytes += replica.tokens() * 2 * kv * d * replica.bytes.element;
  if (replica.recompute == Recompute::none) {
    const std::size_t keys =
        (layer.norms_queries_and_keys() && layer.projects_keys() ? 1U : 0U) + (layer.norms_own_values() ? 1U : 0U);
    const std::size_t products = (layer.norms_queries_and_keys() ? slice.queries.count : 0) + keys * slice.kv.count;
    bytes += (replica.tokens() * own.count + rows * products) * d * replica.bytes.element +
             rows * model.mlp_inputs() * slice.rows * replica.bytes.element;
  }
  return bytes;
}

std::uint64_t activation_bytes(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes) {
  const Setting& setting = of.setting;
  const PipelineStage stage = of.layout.stage(setting.model.layers, rank_at(of.layout, place));
  const std::size_t under_way = std::min(setting.micro_batches, stage.count - stage.number);
  const auto of_layer = [&](const LayerSpec& layer) { return saved_bytes(of, layer, place); };
  std::uint64_t bytes = setting.model.specs.sum(stage.first_layer, stage.layers, of_layer);
  if (stage.first() || stage.last()) bytes += held_tokens(of, place) * id_bytes;
  // Layers' own inputs, and the embedded tokens that they are made of, with the order in which rows of their table arrive.
  if (setting.model.layer_input > 0)
    bytes += held_tokens(of, place) *
             ((setting.model.layers * setting.model.layer_input + setting.model.hidden) * setting.bytes.element + id_bytes);
  if (stage.last()) bytes += held_tokens(of, place) * (setting.model.hidden * setting.bytes.element + setting.bytes.lse);
  return under_way * bytes;
}

CategoryBytes certain(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes) {
  const RankParameters parameters = held(of, place);
  CategoryBytes bytes = held_bytes(parameters.total(), parameters.states, of.setting.bytes, true);
  bytes[Category::activations] = activation_bytes(of, place, id_bytes);
  bytes.total += bytes[Category::activations];
  return bytes;
}

namespace {

/// Returns the most elements of a head of keys, of a sequence, that a rank has of a layer and in terms of their gradients at a
/// time. It tells ranks apart where windows hide keys from all of them in every layer.
std::uint64_t keys_held(const MeshSetting& of, const Zigzag& cut, int place) {
  if (of.layout.exchanges_heads()) return 0;
  const ModelConfig& model = of.setting.model;
  std::uint64_t most = 0;
  std::uint64_t largest = 0;  // d
  bool hidden = true;
  for (std::size_t layer = 0; layer < model.layers; ++layer) {
    const LayerSpec& spec = model.layer(layer);
    const std::uint64_t d = model.head_dim_of(spec);
    largest = std::max(largest, d);
    if (layer > 0 && spec.window == model.layer(layer - 1).window && d == model.head_dim_of(model.layer(layer - 1))) continue;
    const SeenKeys keys(cut, spec.window);
    hidden = hidden && !keys.all();
    if (hidden) most = std::max<std::uint64_t>(most, (2 * keys.count(place) + keys.given(place)) * d);
  }
  return hidden ? most : 2 * cut.sequence() * largest;
}

}  // namespace

int fullest(const MeshSetting& of) {
  int most = 0;
  std::uint64_t largest = 0;
  const Zigzag cut(of.setting.sequence, of.layout.sequence());
  const std::uint64_t bytes_of_element = 2 * of.micro_batch().batch * of.setting.bytes.accumulated;
  for (int rank = 0; rank < of.layout.replica() * of.layout.stages(); ++rank) {
    const MeshPlace place = place_of(of.layout, rank);
    const std::uint64_t total = certain(of, place, 0).total + keys_held(of, cut, place.sequence) * bytes_of_element;
    if (total <= largest) continue;
    largest = total;
    most = rank;
  }
  return most;
}

}  // namespace tsprun::detail::theory
