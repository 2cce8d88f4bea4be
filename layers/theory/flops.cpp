// Counts FLOPs from the shapes of each rank's GEMMs and the pairs of its attention.
#include "layers/theory/flops.h"

#include "core/collectives/chunks.h"
#include "layers/io/by_layer.h"
#include "layers/layout/dealt_documents.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace tsprun::detail::theory {

namespace {
double real(std::uint64_t value) { return static_cast<double>(value); }

/// Query–key pairs of one query head in one sequence, rank by rank of those that cut its tokens, or where heads are exchanged, of
/// whole sequences.
class Pairs {
 public:
  Pairs(const Setting& setting, const Layout& layout)
      : setting_(setting), cut_(setting.sequence, layout.exchanges_heads() ? 1 : layout.sequence()) {
    if (!setting.documents.empty() && deals_documents(setting.model, cut_)) deal_.emplace(cut_, setting.documents);
  }
  /// Returns those of the layers for which a condition holds.
  template <class Condition>
  double of(int rank, Condition&& holds) const {
    return real(setting_.model.specs.sum(0, setting_.model.layers, [&](const LayerSpec& layer) {
      if (!holds(layer)) return std::uint64_t{0};
      return std::uint64_t{deal_ ? deal_->pairs(rank, layer.window)
                                 : cut_.attention_pairs(rank, layer.window, setting_.documents)};
    }));
  }

 private:
  const Setting& setting_;
  Zigzag cut_;
  std::optional<Deal> deal_;  // where documents are dealt
};

/// Adds to a forward pass, and to what a backward pass computes again, the operations of layers of equal sizes.
void add_layers(PassFlops& flops, PassFlops& again, const MeshSetting& of, MeshPlace place, const Pairs& attended,
                const LikeLayers& layers) {
  const ModelConfig& model = of.setting.model;
  const int D = of.layout.sequence();
  const Setting replica = of.replica();
  const Zigzag zigzag(of.setting.sequence, D);
  const LayerSpec& layer = layers.first;
  const double tokens = real(replica.batch * zigzag.tokens(place.sequence));
  const double L = real(layers.count);
  const double h = real(model.hidden);
  const double d = real(model.head_dim_of(layer));
  const BlockSlice slice = BlockSlice::of(model, layer, {place.tensor, of.layout.tensor()});
  const double n_q = real(slice.queries.count);
  const double kv = real(slice.kv.count * layer.kv_matrices());  // of W_K and W_V
  const double f = real(slice.rows);
  const auto alike = [&](const LayerSpec& other) { return model.sizes_of(other) == model.sizes_of(layer); };
  const double pairs =  // of all of them; where heads are exchanged, those of whole sequences for a D-th of the heads
      real(replica.batch) * (of.layout.exchanges_heads() ? attended.of(0, alike) / D : attended.of(place.sequence, alike));
  const double linear = 2 * tokens * h * d * (2 * n_q + kv) * L;
  const double mlp = 2 * real(model.mlp_matrices()) * tokens * f * h * L;
  flops.attention_linear += linear;
  flops.attention_core += 4 * pairs * d * n_q;
  flops.mlp += mlp;
  again.attention_linear += linear * (n_q + kv) / (2 * n_q + kv);            // all but W_O
  again.mlp += mlp * real(model.mlp_inputs()) / real(model.mlp_matrices());  // gate and up
}

/// Operations of a forward pass, and those of what --recompute selective computes again.
struct ForwardFlops {
  PassFlops once;
  PassFlops again;
  double inputs = 0;  // in once.mlp, of layers' own inputs: projections, gates and results, which every backward pass makes again

  ForwardFlops(const Setting& setting, const Layout& layout, MeshPlace place, const Pairs& attended) {
    const ModelConfig& model = setting.model;
    const MeshSetting of{setting, layout};
    for (const LikeLayers& layers : layers_by_sizes(model)) add_layers(once, again, of, place, attended, layers);
    // Rows of the vocabulary that this rank multiplies with its tokens: all of them, but under tp only its own.
    const double V = layout.slices_tokens() ? real(model.vocabulary) / layout.tensor()
                                            : real(Chunks::balanced(layout.tensor(), model.vocabulary).count(place.tensor));
    const double tokens = real(of.replica().batch * Zigzag(setting.sequence, layout.sequence()).tokens(place.sequence));
    once.head = 2 * tokens * V * real(model.hidden);
    inputs = 6 * real(held_tokens(of, place) * setting.micro_batches * model.hidden * model.layers * model.layer_input);
    once.mlp += inputs;
  }
};

StepFlops flops_of_step(const Setting& setting, const Layout& layout, MeshPlace place, const Pairs& attended) {
  const auto& [once, again, inputs] = ForwardFlops(setting, layout, place, attended);
  StepFlops flops{.forward = once,
                  .backward = {.attention_linear = 2 * once.attention_linear,
                               .attention_core = 2.5 * once.attention_core,
                               .mlp = 2 * once.mlp + inputs,
                               .head = 3 * once.head}};
  if (layout.sequence() == 1 && layout.tensor() == 1) {
    // A rank that has the whole vocabulary computes the head's gradients from the logits of the forward pass, at once.
    flops.forward.head = 3 * once.head;
    flops.backward.head = 0;
  }
  if (setting.recompute != Recompute::none) {
    flops.backward.attention_linear += again.attention_linear;
    flops.backward.mlp += again.mlp;
  }
  if (setting.recompute == Recompute::full) flops.backward.attention_core += once.attention_core;
  return flops;
}

}  // namespace

std::vector<double> attention_pairs(const Setting& setting, const Layout& layout) {
  const Pairs attended(setting, layout);
  std::vector<double> pairs;
  for (int rank = 0; rank < layout.sequence(); ++rank)
    pairs.push_back(attended.of(layout.exchanges_heads() ? 0 : rank, [](const LayerSpec&) { return true; }));
  return pairs;
}

double attention_imbalance(const Setting& setting, const Layout& layout) {
  const std::vector<double> pairs = attention_pairs(setting, layout);
  const double all = std::accumulate(pairs.begin(), pairs.end(), 0.0);
  return all == 0 ? 1 : *std::ranges::max_element(pairs) * layout.sequence() / all;
}

PassFlops forward_flops(const Setting& setting, const Layout& layout, MeshPlace place) {
  return ForwardFlops(setting, layout, place, Pairs(setting, layout)).once;
}

StepFlops step_flops(const Setting& setting, const Layout& layout, MeshPlace place) {
  return flops_of_step(setting, layout, place, Pairs(setting, layout));
}

StepFlops most_flops(const Setting& setting, const Layout& layout) {
  const Pairs attended(setting, layout);
  StepFlops most;
  for (int t = 0; t < layout.tensor(); ++t) {
    for (int p = 0; p < layout.sequence(); ++p) {
      const StepFlops each = flops_of_step(setting, layout, {t, p}, attended);
      if (each.total() > most.total()) most = each;
    }
  }
  return most;
}

}  // namespace tsprun::detail::theory
