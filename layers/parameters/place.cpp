// Cuts parameters and packs as the axes of a layout say.
#include "layers/parameters/place.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tsprun::detail {

namespace {

/// Returns how many rows a part has in the pack of a slice of the layer's block.
std::size_t part_rows(const ModelConfig& config, const LayerSpec& layer, const BlockSlice& slice, PackKind pack,
                      std::size_t order) {
  if (pack == PackKind::mlp) return order == kPartGate && !config.gated_mlp() ? 0 : slice.rows;
  if ((order == kPartK && !layer.projects_keys()) || (order == kPartV && !layer.projects_values())) return 0;
  return (order == kPartK || order == kPartV ? slice.kv.count : slice.queries.count) * config.head_dim_of(layer);
}

constexpr std::size_t parts_of(PackKind pack) {
  return pack == PackKind::attention ? std::size_t{kAttentionParts} : std::size_t{kMlpParts};
}

std::size_t pack_rows(const ModelConfig& config, const LayerSpec& layer, const BlockSlice& slice, PackKind pack) {
  std::size_t rows = 0;
  for (std::size_t order = 0; order < parts_of(pack); ++order) rows += part_rows(config, layer, slice, pack, order);
  return rows;
}

bool is_of_layer(PackKind pack) { return pack == PackKind::attention || pack == PackKind::mlp; }
bool is_of_vocabulary(PackKind pack) {
  return pack == PackKind::embedding || pack == PackKind::head || pack == PackKind::layer_inputs;
}

}  // namespace

std::size_t pack_rows(const PackPlan& plan) {
  std::size_t rows = 0;
  for (const PartPlan& part : plan.parts) rows += part.rows();
  return rows;
}

std::size_t pack_elements(const PackPlan& plan) {
  std::size_t elements = 0;
  for (const PartPlan& part : plan.parts) elements += part.rows() * part.width();
  return elements;
}

std::vector<ElementRange> states_held(const PackPlan& plan, int sharer) {
  const Chunks cut = states_cut(plan.sharers, pack_elements(plan));
  const std::size_t first = cut.offset(sharer);
  const std::size_t end = first + cut.count(sharer);
  std::vector<ElementRange> held;
  std::size_t before = 0;
  for (const PartPlan& part : plan.parts) {
    const std::size_t count = part.rows() * part.width();
    const std::size_t from = std::clamp(first, before, before + count) - before;
    held.push_back({from, std::clamp(end, before, before + count) - before - from});
    before += count;
  }
  return held;
}

std::vector<PartPlan> rectangles(const PartPlan& part, const ElementRange& elements) {
  std::vector<PartPlan> all;
  const std::size_t width = part.width();
  for (std::size_t at = elements.first; at < elements.end();) {
    const std::size_t row = at / width;
    const std::size_t column = at % width;
    const std::size_t rows = column == 0 ? std::max<std::size_t>((elements.end() - at) / width, 1) : 1;
    const std::size_t columns = std::min(width - column, elements.end() - at);
    PartPlan& plan = all.emplace_back(part);
    safetensors::Rectangle& block = plan.block;
    (part.transposed ? block.first_column : block.first_row) += row;
    (part.transposed ? block.columns : block.rows) = rows;
    (part.transposed ? block.first_row : block.first_column) += column;
    (part.transposed ? block.rows : block.columns) = columns;
    at += rows * columns;
  }
  return all;
}

CategoryBytes held_bytes(std::uint64_t elements, std::uint64_t with_states, const ElementBytes& bytes, bool training) {
  CategoryBytes held;
  held[Category::parameters] = elements * bytes.element;
  if (training) {
    held[Category::gradients] = elements * bytes.accumulated;
    held[Category::optimizer] = with_states * bytes.accumulated * optimizer_states(bytes);
  }
  for (const std::uint64_t each : held.of) held.total += each;
  return held;
}

// --- what follows from the layout alone ----------------------------------------------------------------------------------------

SummedOver summed_over(const Layout& layout, PackKind pack) {
  SummedOver sums{.replica = {}, .data = layout.axes_of_data()};
  if (layout.shares_states()) {
    sums.sharers = {layout.sharing_axis()};
    std::erase(sums.data, layout.sharing_axis());
  }
  if (is_of_layer(pack)) {
    sums.replica = {{layout.token_axis()}};
    sums.at_owners = row_of(layout.token_axis()).cuts == Cut::tokens_and_weights;
  } else if (!is_of_vocabulary(pack)) {
    sums.replica = {layout.axes_of_tokens()};
    // Under plain tp all ranks of the axis have the same tokens, but each computes its own heads and rows.
    if (pack == PackKind::biases && !layout.slices_tokens()) sums.replica.push_back({layout.tensor_axis()});
  } else if (layout.cuts_vocabulary_over_tensor()) {
    sums.replica = {{layout.token_axis()}};
  } else {
    sums.replica = {layout.axes_of_vocabulary()};
    sums.at_owners = true;
  }
  return sums;
}

std::vector<CopiedHead> copied_heads(const ModelConfig& config, const LayerSpec& layer, SlicePlace at) {
  const HeadCut heads(config.query_heads, config.kv_heads_of(layer), at.ranks);
  const HeadRange read = heads.kv_heads_read(at.rank);
  std::vector<CopiedHead> copied;
  for (std::size_t head = read.first; head < read.end(); ++head) {
    const CopiedHead shared{.head = head, .owner = heads.kv_owner(head), .last = heads.kv_last_reader(head)};
    if (shared.owner != shared.last) copied.push_back(shared);
  }
  return copied;
}

Chunks vocabulary_cut(const ModelConfig& config, const Layout& layout) {
  return Chunks::balanced(layout.vocabulary_ranks(), config.vocabulary);
}

Chunks pack_cut(const ModelConfig& config, std::size_t layer, PackKind pack, int ranks) {
  const LayerSpec& spec = config.layer(layer);
  return Chunks::balanced(ranks, pack_rows(config, spec, BlockSlice::of(config, spec, {}), pack));
}

// --- a rank's part -------------------------------------------------------------------------------------------------------------

Placement::Placement(const ModelConfig& config, const Layout& layout, int rank)
    : config_(config),
      cuts_heads_(row_of(layout.token_axis()).cuts == Cut::tokens_and_weights && row_of(layout.token_axis()).cuts_heads),
      cuts_packs_(row_of(layout.token_axis()).cuts == Cut::tokens_and_weights && !cuts_heads_),
      copies_vocabulary_(layout.cuts_vocabulary_over_tensor()),
      layers_(config, [&](std::size_t layer) { return of_layer(config.layer(layer), layout, rank); }),
      sharers_(layout.sharers()),
      sharer_(layout.shares_states() ? layout.place(layout.sharing_axis(), rank) : 0),
      shares_weights_(layout.shares_weights()),
      stage_(layout.stage(config.layers, rank)) {
  for (const Axis& axis : layout.axes) {
    const bool first = layout.place(axis.kind, rank) == 0;
    switch (row_of(axis.kind).cuts) {
      case Cut::batch:
      case Cut::batch_again:
        if (sharers_ == 1 || axis.kind != layout.sharing_axis()) first_along_data_ = first_along_data_ && first;
        break;
      case Cut::layers: break;  // other ranks hold other parts, but for tied embeddings: for_parts()
      case Cut::heads: first_along_tensor_ = first_along_tensor_ && first; break;
      case Cut::tokens:
      case Cut::tokens_and_weights: first_along_tokens_ = first_along_tokens_ && first; break;
    }
  }
  int holder = 0;  // among the ranks over which the vocabulary is cut, the last axis fastest
  for (const AxisKind axis : layout.axes_of_vocabulary()) holder = holder * layout.degree(axis) + layout.place(axis, rank);
  const Chunks rows = vocabulary_cut(config, layout);
  vocabulary_ = {rows.offset(holder), rows.count(holder)};
}

Placement::OfLayer Placement::of_layer(const LayerSpec& spec, const Layout& layout, int rank) const {
  const BlockSlice slice = BlockSlice::of(config_, spec, {layout.place(layout.tensor_axis(), rank), layout.tensor()});
  OfLayer of{.spec = &spec, .slice = slice, .queries = slice.queries, .kv = slice.kv, .rows = {slice.first_row, slice.rows}};
  const int place = layout.place(layout.token_axis(), rank);
  if (cuts_heads_) {
    const SliceCut cut = SliceCut::of(slice, layout.sequence());
    of.queries = cut.heads.query_heads(place);
    of.queries.first += slice.queries.first;
    of.kv = cut.heads.kv_heads_owned(place);
    of.kv.first += slice.kv.first;
    of.rows = {slice.first_row + cut.rows.offset(place), cut.rows.count(place)};
  } else if (cuts_packs_) {
    const auto cut = [&](PackKind pack) {
      const Chunks rows = Chunks::balanced(layout.sequence(), pack_rows(config_, spec, slice, pack));
      return Range{rows.offset(place), rows.count(place)};
    };
    of.of_attention_pack = cut(PackKind::attention);
    of.of_mlp_pack = cut(PackKind::mlp);
  }
  return of;
}

Placement::Range Placement::held(const OfLayer& layer, PackKind pack, std::size_t order) const {
  const bool kv = pack == PackKind::attention && (order == kPartK || order == kPartV);
  const std::size_t d = config_.head_dim_of(*layer.spec);
  const BlockSlice& slice = layer.slice;
  if (!cuts_packs_) {
    if (pack == PackKind::mlp) return order == kPartGate && !config_.gated_mlp() ? Range{0, 0} : layer.rows;
    if (part_rows(config_, *layer.spec, slice, pack, order) == 0) return {0, 0};
    const HeadRange& heads = kv ? layer.kv : layer.queries;
    return {heads.first * d, heads.count * d};
  }
  std::size_t before = 0;
  for (std::size_t part = 0; part < order; ++part) before += part_rows(config_, *layer.spec, slice, pack, part);
  const std::size_t end = before + part_rows(config_, *layer.spec, slice, pack, order);
  const Range& own = pack == PackKind::mlp ? layer.of_mlp_pack : layer.of_attention_pack;
  const std::size_t from = std::clamp(own.first, before, end);
  const std::size_t to = std::clamp(own.first + own.count, before, end);
  const std::size_t first = pack == PackKind::mlp ? slice.first_row : (kv ? slice.kv : slice.queries).first * d;
  return {first + from - before, to - from};
}

/// Returns whether the rank's stage has such a parameter.
bool Placement::is_of_stage(ParameterRole role, std::size_t layer) const {
  if (is_of_block(role)) return stage_.has(layer);
  if (role == ParameterRole::embedding && config_.tied_embeddings) return stage_.first() || stage_.last();
  return role < kFirstOfBlock ? stage_.first() : stage_.last();
}

/// Returns whether the rank is the first along the axes that cut neither such packs nor their optimizer states.
bool Placement::counts(PackKind pack) const {
  if (!first_along_data_) return false;
  if (is_of_layer(pack)) return cuts_heads_ || cuts_packs_ || first_along_tokens_;
  if (is_of_vocabulary(pack)) return !copies_vocabulary_ || first_along_tokens_;
  return first_along_tensor_ && first_along_tokens_;
}

template <class Body>
void Placement::for_parts(const Parameter& parameter, Body&& body) const {
  const RoleTraits traits = traits_of(parameter.role);
  const bool here = is_of_stage(parameter.role, parameter.layer);
  const auto part = [&](std::size_t order, std::size_t first, std::size_t count, bool transposed, bool counted) {
    if (!here) first = count = 0;
    PartPlan plan{.parameter = parameter,
                  .block = {.first_row = 0, .rows = parameter.rows(), .first_column = 0, .columns = parameter.columns()},
                  .transposed = transposed,
                  .counted = counted};
    (transposed ? plan.block.first_column : plan.block.first_row) = first;
    (transposed ? plan.block.columns : plan.block.rows) = count;
    body(order, std::move(plan));
  };
  const bool copy_of_embedding = parameter.role == ParameterRole::embedding && !stage_.first();
  const bool counted = counts(traits.pack) && !copy_of_embedding;
  const OfLayer& layer = layers_[parameter.layer];
  const LayerSpec& spec = *layer.spec;
  // A matrix of a layer whose columns are cut lies transposed, and so does a vector of a pack of width 1.
  const auto matrix = [&](std::size_t order, CutBy by, std::size_t before) {
    const bool transposed = traits.inputs != config_.type->inputs_first;
    const Range own = held(layer, traits.pack, order);
    const std::size_t first = before + own.first;
    const std::size_t copied = by == CutBy::kv_heads ? copied_kv_heads(layer) * config_.head_dim_of(spec) : 0;
    if (by != CutBy::kv_heads || layer.slice.kv_copied == 0 || cuts_heads_) {
      part(order, first, own.count, transposed, counted && copied == 0);
      return;
    }
    part(order, first, copied, transposed, false);
    part(order, first + copied, own.count - copied, transposed, counted);
  };
  if (traits.pack == PackKind::replicated) {
    part(traits.order, 0, traits.inputs ? parameter.columns() : parameter.rows(), traits.inputs, counted);
  } else if (traits.pack == PackKind::biases) {
    part(traits.order, 0, parameter.columns(), true, counted);
  } else if (is_of_vocabulary(traits.pack)) {
    part(traits.order, vocabulary_.first, vocabulary_.count, false, counted);
  } else if (traits.cut_by == CutBy::projections) {
    matrix(kPartQ, CutBy::query_heads, 0);
    matrix(kPartK, CutBy::kv_heads, config_.query_width(spec));
    matrix(kPartV, CutBy::kv_heads, config_.query_width(spec) + config_.kv_width(spec));
  } else if (traits.cut_by == CutBy::gate_and_up) {
    matrix(kPartGate, CutBy::mlp_rows, 0);
    matrix(kPartUp, CutBy::mlp_rows, config_.intermediate_of(spec));
  } else {
    matrix(traits.order, traits.cut_by, 0);
  }
}

/// Returns how many of the K/V heads that the rank holds, from the first on, an earlier rank of tp counts.
std::size_t Placement::copied_kv_heads(const OfLayer& layer) {
  const std::size_t end = layer.slice.kv.first + layer.slice.kv_copied;
  return std::min(end - std::min(end, layer.kv.first), layer.kv.count);
}

std::vector<PartPlan> Placement::of(const Parameter& parameter) const {
  std::vector<PartPlan> parts;
  for_parts(parameter, [&](std::size_t, PartPlan plan) { parts.push_back(std::move(plan)); });
  return parts;
}

std::vector<PackPlan> Placement::packs(std::span<const Parameter> parameters) const {
  struct Ordered {
    std::size_t order;
    PartPlan plan;
  };
  std::map<std::pair<std::size_t, PackKind>, std::vector<Ordered>> packs;
  for (const Parameter& parameter : parameters) {
    const PackKind pack = traits_of(parameter.role).pack;
    std::vector<Ordered>& parts = packs[{is_of_layer(pack) ? parameter.layer : config_.layers, pack}];
    for_parts(parameter, [&](std::size_t order, PartPlan plan) { parts.push_back({order, std::move(plan)}); });
  }
  std::vector<PackPlan> plans;
  for (auto& [key, parts] : packs) {
    std::ranges::stable_sort(parts, {}, &Ordered::order);
    PackPlan& plan = plans.emplace_back();
    plan.sharers = sharers_;
    plan.sharer = sharer_;
    plan.cuts_weights = cuts_weights(key.second);
    for (Ordered& part : parts) plan.parts.push_back(std::move(part.plan));
  }
  return plans;
}

/// Returns whether data ranks hold parts of such packs. Vectors and learned positions, of which a rank needs some all the time,
/// take little.
bool Placement::cuts_weights(PackKind pack) const { return shares_weights_ && (is_of_layer(pack) || is_of_vocabulary(pack)); }

/// Returns the elements that the rank holds of all packs of a kind, where each is cut over the sharers or not.
std::uint64_t Placement::sum_of(PackKind pack, bool states) const {
  const auto of_pack = [&](std::uint64_t elements) { return states ? states_cut(sharers_, elements).count(sharer_) : elements; };
  if (!is_of_layer(pack)) return of_pack(whole(pack));
  if (layers_.alike()) return stage_.layers * of_pack(whole(layers_[0], pack));
  std::uint64_t sum = 0;
  for (std::size_t layer = stage_.first_layer; layer < stage_.first_layer + stage_.layers; ++layer)
    sum += of_pack(whole(layers_[layer], pack));
  return sum;
}

/// Returns the elements of a layer's pack that the rank and those with other sequences hold together.
std::uint64_t Placement::whole(const OfLayer& layer, PackKind pack) const {
  std::uint64_t rows = 0;
  for (std::size_t order = 0; order < parts_of(pack); ++order) rows += held(layer, pack, order).count;
  return rows * config_.hidden;
}

/// Returns the elements of the pack of a kind, outside of layers' own, that the rank and those with other sequences hold
/// together.
std::uint64_t Placement::whole(PackKind pack) const {
  if (pack == PackKind::head && config_.tied_embeddings) return 0;
  if (pack == PackKind::layer_inputs) return stage_.first() ? vocabulary_.count * config_.layers * config_.layer_input : 0;
  if (is_of_vocabulary(pack)) {
    const ParameterRole role = pack == PackKind::head ? ParameterRole::head : ParameterRole::embedding;
    return is_of_stage(role, 0) ? vocabulary_.count * config_.hidden : 0;
  }
  std::uint64_t sum = 0;
  for (const auto& [role, name] : config_.type->weights) {
    if (traits_of(role).pack != pack) continue;
    if (is_of_block(role)) sum += elements_of(config_, role, stage_.first_layer, stage_.layers);
    else if (is_of_stage(role, 0)) sum += elements_of(config_, role, 0, config_.layers);
  }
  return sum;
}

}  // namespace tsprun::detail
