// Classes of ranks, and sums over the items of their programs.
#include "layers/theory/step_counts.h"

#include "layers/io/by_layer.h"
#include "layers/layout/seen_keys.h"
#include "layers/theory/ways.h"

#include <array>
#include <cmath>
#include <map>

namespace tsprun::detail::theory {

namespace {

/// Sizes on which depends what a rank does: its part of all layers and of the vocabulary, then those of each kind of layers.
using Sizes = std::vector<std::uint64_t>;

Sizes sizes_of(const MeshSetting& of, const Zigzag& zigzag, MeshPlace place) {
  const ModelConfig& model = of.setting.model;
  const Layout& layout = of.layout;
  const RankParameters parameters = held(of, place);
  const auto tensor = static_cast<std::size_t>(layout.tensor());
  const auto keys = [&](std::size_t (SeenKeys::*moved)(int) const) {
    return model.specs.sum(0, model.layers, [&](const LayerSpec& layer) {
      return std::uint64_t{(SeenKeys(zigzag, layer.window).*moved)(place.sequence)} * model.kv_width(layer);
    });
  };
  Sizes sizes = {
      parameters.attention, parameters.mlp, parameters.vocabulary, held_tokens(of, place), zigzag.tokens(place.sequence),
      keys(&SeenKeys::taken), keys(&SeenKeys::given),
      // Tokens whose log-sum-exps a tensor rank merges.
      layout.cuts_vocabulary_over_tensor() ? Chunks::balanced(layout.tensor(), held_tokens(of, place)).count(place.tensor) : 0};
  for (const auto& [layer, count] : layers_by_sizes(model)) {
    const BlockSlice slice = BlockSlice::of(model, layer, {place.tensor, layout.tensor()});
    // Unless heads divide evenly, copies of K/V heads, whose gradients are summed, lie differently for each rank.
    const std::size_t kv_heads = model.kv_heads_of(layer);
    const bool even = kv_heads % tensor == 0 || tensor % kv_heads == 0;
    const std::uint64_t read =
        layout.exchanges_heads() ? kv_heads_read(model, layer, slice, place.sequence, layout.sequence()) : 0;
    sizes.insert(sizes.end(),
                 {slice.queries.count, slice.kv.count, slice.rows, read, even ? 0 : static_cast<std::uint64_t>(place.tensor)});
  }
  return sizes;
}

/// The sizes of what travels round rings, where a neighbour's matter, too.
using Carried = std::array<std::uint64_t, 4>;
Carried carried(const Sizes& sizes) { return {sizes[1], sizes[2], sizes[3], sizes[4]}; }

void add(PassFlops& flops, PassPart part, const KernelCost& cost) {
  if (part == PassPart::mlp) flops.mlp += cost.flops;
  else if (part == PassPart::head) flops.head += cost.flops;
  else (cost.kernel == "gemm" ? flops.attention_linear : flops.attention_core) += cost.flops;
}

}  // namespace

RankAmounts amounts_of(const Program& program) {
  RankAmounts amounts;
  PassPart part = PassPart::embedding;
  bool backward = false;
  for (const ProgramItem& item : program.items) {
    if (item.kind == ItemKind::stage) {
      part = static_cast<PassPart>(item.stream);
      backward = item.amount != 0;
    }
    const bool update = part == PassPart::update;
    if (item.kind == ItemKind::kernel && !update) {
      add(backward ? amounts.flops.backward : amounts.flops.forward, part, program.costs[item.index]);
    } else if (item.kind == ItemKind::post || item.kind == ItemKind::call) {
      const ProgramCall& call = program.calls[item.index];
      if (update && call.purpose != Purpose::weights) continue;  // the norm
      amounts.received[backward ? 1 : 0][static_cast<std::size_t>(call.purpose)] +=
          static_cast<long double>(call.received_by_all) / static_cast<long double>(program.groups.at(call.group).size());
    }
  }
  return amounts;
}

std::vector<RankClass> classes_of(const MeshSetting& of) {
  // Replicas do the same, but where data ranks have parts, and ranks that have the same part sum its gradients.
  const bool copies = !tokens_way(of.layout).shares_weights || of.layout.cuts_vocabulary_over_tensor();
  const bool in_replica = of.layout.shares_weights() && of.layout.sequence() > 1 && copies;
  const int sharers = of.layout.sharers();
  const int replicas = in_replica || of.layout.data() > sharers ? sharers : 1;
  const int ranks = of.layout.replica() * replicas;
  const Zigzag zigzag(of.setting.sequence, of.layout.sequence());
  const auto place = [&](int rank) { return place_of(of.layout, rank); };
  std::map<std::array<int, 3>, Sizes> sizes;  // by place on the data, the sequence and the tensor axis
  for (int rank = 0; rank < ranks; ++rank)
    sizes[{place(rank).data, place(rank).sequence, place(rank).tensor}] = sizes_of(of, zigzag, place(rank));
  const int D = of.layout.sequence();
  const int T = of.layout.tensor();
  const int first = fullest(of);
  const std::vector<double> pairs = attention_pairs(of.setting, of.layout);
  struct Members {
    RankClass of;
    double pairs = 0;
  };
  std::map<std::pair<Sizes, std::array<Carried, 4>>, Members> classes;
  for (int rank = 0; rank < ranks; ++rank) {
    const int t = place(rank).tensor;
    const int s = place(rank).sequence;
    const int r = place(rank).data;
    // Neighbours on the rings of the sequence axis and of the ranks among which the vocabulary may be cut.
    const int holder = s * T + t;
    const auto held_at = [&](int at) { return carried(sizes.at({r, (at + D * T) % (D * T) / T, (at + D * T) % T})); };
    Members& members =
        classes[{sizes.at({r, s, t}), {held_at(holder - T), held_at(holder + T), held_at(holder - 1), held_at(holder + 1)}}];
    const double here = pairs[static_cast<std::size_t>(s)];
    if (members.of.count++ == 0 || here > members.pairs || (here == members.pairs && rank == first)) {
      members.of.rank = rank;
      members.pairs = here;
    }
  }
  std::vector<RankClass> result;
  for (const auto& [like, members] : classes) {
    result.push_back(members.of);
    result.back().count *= of.layout.data() / replicas;
  }
  return result;
}

StepCounts step_counts(const MeshSetting& of, const PeakOptions& options, const RankAmounts* of_fullest) {
  StepCounts counts;
  std::array<std::array<long double, kPurposes>, 2> received{};
  const int known = of_fullest == nullptr ? -1 : fullest(of);
  for (const RankClass& each : classes_of(of)) {
    const RankAmounts amounts =
        each.rank == known ? *of_fullest : amounts_of(record_step(of, each.rank, options, 1, true).program);
    for (std::size_t pass = 0; pass < received.size(); ++pass) {
      for (std::size_t purpose = 0; purpose < kPurposes; ++purpose)
        received[pass][purpose] += amounts.received[pass][purpose] * each.count;
    }
    if (amounts.flops.total() > counts.flops.total()) counts.flops = amounts.flops;
  }
  for (int i = 0; i < kPurposes; ++i) {
    const auto of_all = [&](std::size_t pass) {
      return static_cast<std::uint64_t>(std::llround(received[pass][static_cast<std::size_t>(i)]));
    };
    counts.traffic.forward[static_cast<Purpose>(i)] = of_all(0);
    counts.traffic.backward[static_cast<Purpose>(i)] = of_all(1);
  }
  return counts;
}

}  // namespace tsprun::detail::theory
