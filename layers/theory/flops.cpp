// Counts FLOPs from the shapes of each rank's GEMMs and the pairs of its attention.
#include "layers/theory/flops.h"

#include "core/collectives/chunks.h"

#include <algorithm>

namespace tsprun::detail::theory {

namespace {
double real(std::uint64_t value) { return static_cast<double>(value); }
}  // namespace

double attention_pairs(const Setting& setting, const Zigzag& zigzag, int rank) {
  return real(setting.model.specs.sum(0, setting.model.layers, [&](const LayerSpec& layer) {
    return std::uint64_t{zigzag.attention_pairs(rank, layer.window, setting.documents)};
  }));
}

double attention_imbalance(const Setting& setting, const Layout& layout) {
  if (layout.exchanges_heads()) return 1;
  const Zigzag zigzag(setting.sequence, layout.sequence());
  double most = 0;
  double all = 0;
  for (int rank = 0; rank < layout.sequence(); ++rank) {
    const double pairs = attention_pairs(setting, zigzag, rank);
    most = std::max(most, pairs);
    all += pairs;
  }
  return all == 0 ? 1 : most * layout.sequence() / all;
}

PassFlops forward_flops(const Setting& setting, const Layout& layout, MeshPlace place) {
  const ModelConfig& model = setting.model;
  const int D = layout.sequence();
  const MeshSetting of{setting, layout};
  const Setting replica = of.replica();
  const Zigzag zigzag(setting.sequence, D);
  const double tokens = real(replica.batch * zigzag.tokens(place.sequence));
  const double L = real(model.layers);
  const double h = real(model.hidden);
  const double d = real(model.head_dim);

  const BlockSlice slice = BlockSlice::of(model, place.tensor, layout.tensor());
  const double n_q = real(slice.queries.count);
  const double n_kv = real(slice.kv.count);
  const double f = real(slice.rows);
  const double pairs =  // of all layers; where heads are exchanged, those of whole sequences for a D-th of the heads
      real(replica.batch) * (of.layout.exchanges_heads() ? attention_pairs(setting, Zigzag(setting.sequence, 1), 0) / D
                                                         : attention_pairs(setting, zigzag, place.sequence));
  // Rows of the vocabulary that this rank multiplies with its tokens: all of them, but under tp only its own.
  const double V = layout.slices_tokens() ? real(model.vocabulary) / layout.tensor()
                                          : real(Chunks::balanced(layout.tensor(), model.vocabulary).count(place.tensor));

  PassFlops flops;
  flops.attention_linear = 4 * tokens * h * d * (n_q + n_kv) * L;
  flops.attention_core = 4 * pairs * d * n_q;
  flops.mlp = 2 * real(model.mlp_matrices()) * tokens * f * h * L;
  flops.head = 2 * tokens * V * h;
  return flops;
}

StepFlops step_flops(const Setting& setting, const Layout& layout, MeshPlace place) {
  const PassFlops once = forward_flops(setting, layout, place);
  StepFlops flops{.forward = once,
                  .backward = {.attention_linear = 2 * once.attention_linear,
                               .attention_core = 2.5 * once.attention_core,
                               .mlp = 2 * once.mlp,
                               .head = 3 * once.head}};
  if (layout.sequence() == 1 && layout.tensor() == 1) {
    // A rank that has the whole vocabulary computes the head's gradients from the logits of the forward pass, at once.
    flops.forward.head = 3 * once.head;
    flops.backward.head = 0;
  }
  const ModelConfig& model = setting.model;
  if (setting.recompute != Recompute::none) {
    const BlockSlice slice = BlockSlice::of(model, place.tensor, layout.tensor());
    const double queries = real(slice.queries.count);
    const double kv = real(slice.kv.count);
    flops.backward.attention_linear += once.attention_linear * (queries + 2 * kv) / (2 * (queries + kv));  // all but W_O
    flops.backward.mlp += once.mlp * real(model.mlp_inputs()) / real(model.mlp_matrices());                // gate and up
  }
  if (setting.recompute == Recompute::full) flops.backward.attention_core += once.attention_core;
  return flops;
}

StepFlops most_flops(const Setting& setting, const Layout& layout) {
  StepFlops most;
  for (int t = 0; t < layout.tensor(); ++t) {
    for (int p = 0; p < layout.sequence(); ++p) {
      const StepFlops each = step_flops(setting, layout, {t, p});
      if (each.total() > most.total()) most = each;
    }
  }
  return most;
}

}  // namespace tsprun::detail::theory
