// Sequence parallelism: every rank has a copy of the weights, whose gradients are all-reduced. K and V, dK and dV are gathered
// and scattered (as under TSP and ZeRO-3), or travel round the ring, or are exchanged for heads (Ulysses). Where a window hides
// keys, those that ranks see come from few others, most of them neighbours, as messages.
#include "layers/io/by_layer.h"
#include "layers/layout/seen_keys.h"
#include "layers/theory/ways.h"

#include <algorithm>

namespace tsprun::detail::theory {

void add_sp(BlockFlows& of) {
  const std::uint64_t parameters =
      of.sum([&](const LayerSpec& layer) { return of.setting.block_parameters(layer) + of.copied(layer); });
  Flow& sums = of.add(of.layout.token_axis(), Purpose::gradients, Pattern::collective, Phase::pass, true, true,
                      2 * parameters * of.a * (of.D - 1), 2 * of.L);
  sums.once = sums.by_part = true;
}

namespace {

/// K and V of one micro-batch that ranks receive in one pass, in elements of all layers; and messages of one rank, one behind the
/// other. `apart`: of layers whose windows hide keys. Of the others: `whole`.
struct MovedKv {
  struct Of {
    std::uint64_t elements = 0;
    std::uint64_t messages = 0;
  };
  Of whole, apart;

  /// `messages`: of a layer whose K and V move as a whole.
  MovedKv(const BlockFlows& of, std::uint64_t messages) {
    const Zigzag zigzag(of.setting.sequence, of.layout.sequence());
    const ByLayer<std::uint64_t> key(of.model, [&](std::size_t layer) {
      const LayerSpec& spec = of.model.layer(layer);
      return 2 * of.setting.batch * of.model.head_dim_of(spec) * of.kv_read(spec);
    });
    for (std::size_t layer = 0; layer < of.model.layers; ++layer) {
      const std::size_t window = of.model.layer(layer).window;
      const SeenKeys keys(zigzag, window);
      Of& sum = keys.all() ? whole : apart;
      sum.elements += key[layer] * keys.moved();
      // From each of its two chunks a rank looks W − 1 positions back, into so many chunks of others.
      const std::size_t chunk = std::max<std::size_t>(1, zigzag.chunk_size(0));
      sum.messages += keys.all() ? messages : 2 * std::min<std::uint64_t>(of.D - 1, (window + chunk - 2) / chunk);
    }
  }
};

/// Adds K and V, which move in `rounds` rounds of the backward pass, and dK and dV, which move in one.
void add_kv(BlockFlows& of, Pattern pattern, const MovedKv::Of& moved, std::uint64_t rounds) {
  const AxisKind axis = of.layout.token_axis();
  of.add(axis, Purpose::kv, pattern, Phase::attention, false, true, moved.elements * of.e, moved.messages);
  of.add(axis, Purpose::kv, pattern, Phase::attention, true, true, moved.elements * (rounds * of.e + of.a),
         (rounds + 1) * moved.messages);
}

}  // namespace

void add_gathered_kv(BlockFlows& of) {
  const MovedKv kv(of, 1);
  add_kv(of, Pattern::collective, kv.whole, 1);
  add_kv(of, Pattern::neighbours, kv.apart, 1);
}

void add_ring_kv(BlockFlows& of) {
  const MovedKv kv(of, of.D - 1);
  // Computing O again takes a whole round before backward's own round begins.
  add_kv(of, Pattern::ring, kv.whole, of.setting.recompute == Recompute::full ? 2 : 1);
  add_kv(of, Pattern::neighbours, kv.apart, 1);
}

void add_exchanged_heads(BlockFlows& of) {
  const int D = of.layout.sequence();
  const Zigzag zigzag(of.setting.sequence, D);
  // Elements that change ranks when Q (or O) and K (or V) go from token shards to head shards, or back; dk in bytes. Of all
  // layers, but K and V and their gradients only of those that have their own. What layers lend isn't exchanged again.
  std::uint64_t q = 0;
  std::uint64_t k = 0;
  std::uint64_t k_again = 0;
  std::uint64_t dk = 0;
  for (const LikeLayers& layers : layers_by_sizes(of.model)) {
    const LayerSpec& layer = layers.first;
    const std::uint64_t lenders = of.model.specs.sum(0, of.model.layers, [&](const LayerSpec& other) {
      return std::uint64_t{other.lends && of.model.sizes_of(other) == of.model.sizes_of(layer) ? 1U : 0U};
    });
    for (int t = 0; t < of.layout.tensor(); ++t) {
      const BlockSlice slice = BlockSlice::of(of.model, layer, {t, of.layout.tensor()});
      const auto read_by = [&](int p) { return kv_heads_read(of.model, layer, slice, p, D); };
      std::uint64_t read = 0;
      for (int p = 0; p < D; ++p) read += read_by(p);
      std::uint64_t k_here = 0;
      for (int p = 0; p < D; ++p) {
        const std::uint64_t tokens = layers.count * of.setting.batch * zigzag.tokens(p) * of.model.head_dim_of(layer);
        q += tokens * (slice.queries.count - slice.queries.count / of.D);
        k_here += tokens * (read - read_by(p));
      }
      if (!layer.projects_keys()) continue;
      k += k_here;
      k_again += k_here / layers.count * (layers.count - lenders);
      // Gradients of heads that several ranks read are summed.
      dk += k_here * (read > slice.kv.count ? of.a : of.e);
    }
  }
  const std::uint64_t forward = (2 * q + 2 * k) * of.e;
  std::uint64_t backward = 2 * q * of.e + 2 * dk;
  if (of.setting.recompute == Recompute::selective) backward += (q + 2 * k_again) * of.e;
  if (of.setting.recompute == Recompute::full) backward += (2 * q + 2 * k_again) * of.e;
  for (const bool in_backward : {false, true})
    of.add(of.layout.token_axis(), Purpose::activations, Pattern::all_to_all, Phase::attention, in_backward, false,
           in_backward ? backward : forward, 4 * of.L);
}

}  // namespace tsprun::detail::theory
