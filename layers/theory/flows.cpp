// Lists the flows of a step: those of the blocks (ways.h), of the vocabulary and the norms, and over dp.
#include "layers/theory/flows.h"

#include "layers/theory/ways.h"

namespace tsprun::detail::theory {

namespace {

constexpr bool kForward = false;
constexpr bool kBackward = true;
constexpr bool kExposed = false;
constexpr bool kHidden = true;

/// Collects the flows of one replica and one micro-batch, and multiplies them at the end.
class Counter : BlockFlows {
 public:
  Counter(const MeshSetting& of, const Setting& micro_batch) : BlockFlows(micro_batch, of.layout), of_(of) {}

  std::vector<Flow> step() {
    add_block_flows(*this);
    vocabulary();
    norm_gains();
    for (Flow& flow : flows) {
      const std::uint64_t times = flow.once ? 1 : of_.setting.micro_batches;
      if (!flow.by_part || !layout.shares_weights()) flow.bytes *= static_cast<std::uint64_t>(layout.data());
      else if (groups() > 1) flow.bytes = 0;  // summed with those of other replicas: shared_weights()
      flow.bytes *= times;
      flow.messages *= times;
    }
    if (layout.data() > 1) data_axis();
    std::erase_if(flows, [](const Flow& flow) { return flow.bytes == 0; });
    return std::move(flows);
  }

 private:
  /// Ranks among which something moves: an axis, and whether the ranks of tp belong to it, too.
  struct Among {
    Among(AxisKind kind, bool tensors_too = false) : axis(kind), with_tensors(tensors_too) {}
    AxisKind axis;
    bool with_tensors;
  };
  Flow& add(Among among, Purpose purpose, Pattern pattern, Phase phase, bool backward, bool hidden, std::uint64_t bytes,
            std::uint64_t messages) {
    flows.push_back({among.axis, among.with_tensors, purpose, pattern, phase, backward, hidden, bytes, messages});
    return flows.back();
  }
  /// Returns the ranks over which tokens are cut between layers.
  Among token_cutters() const {
    if (D == 1) return layout.tensor_axis();
    return {layout.token_axis(), layout.slices_tokens()};
  }

  void vocabulary() {
    if (layout.cuts_vocabulary_over_tensor()) {
      vocabulary_over_tensors();
      return;
    }
    const int ranks = layout.vocabulary_ranks();
    if (ranks == 1) return;
    const Among among = token_cutters();
    add_embedding(among, setting.tokens() - setting.tokens() / static_cast<std::uint64_t>(ranks));
    const HeadPlan plan = head_plan(setting);
    const Traffic traffic = head(setting, ranks, plan);
    const bool rotated = plan == HeadPlan::rotate_weights;
    add_head(among, rotated ? Pattern::ring : Pattern::collective, rotated ? hops(ranks) : 2, rotated,
             traffic.forward[Purpose::head], traffic.backward[Purpose::head]);
  }

  void vocabulary_over_tensors() {
    const std::uint64_t V = model.vocabulary;
    const int tensors = layout.tensor();
    add(layout.tensor_axis(), Purpose::embedding, Pattern::collective, Phase::pass, kForward, kExposed,
        tp_embedding(setting, tensors).forward[Purpose::embedding] / model.hidden * embedded_width(), 2);
    const Traffic traffic = tp_head(setting, tensors);
    add_head(layout.tensor_axis(), Pattern::collective, 2, kExposed, traffic.forward[Purpose::head],
             traffic.backward[Purpose::head]);
    if (D == 1) return;
    const auto sum_copies = [&](Purpose purpose, bool hidden, std::uint64_t width) {
      Flow& flow =
          add(layout.token_axis(), purpose, Pattern::collective, Phase::pass, kBackward, hidden, 2 * V * width * a * (D - 1), 2);
      flow.once = flow.by_part = true;
    };
    sum_copies(Purpose::embedding, kExposed, embedded_width());  // complete only when the backward pass ends
    if (!model.tied_embeddings) sum_copies(Purpose::head, kHidden, model.hidden);
  }

  /// Returns the elements of a token in the embedding and in the table of layers' own inputs.
  std::uint64_t embedded_width() const { return model.hidden + L * model.layer_input; }
  /// Returns the number of tables, each a pack, of layers' own inputs: none or one.
  std::uint64_t input_tables() const { return model.layer_input == 0 ? 0 : 1; }
  void add_embedding(Among among, std::uint64_t rows) {
    add(among, Purpose::embedding, Pattern::all_to_all, Phase::pass, kForward, kExposed, rows * embedded_width() * e, 1);
    add(among, Purpose::embedding, Pattern::all_to_all, Phase::pass, kBackward, kExposed, rows * embedded_width() * a, 1);
  }
  void add_head(Among among, Pattern pattern, std::uint64_t messages, bool hidden, std::uint64_t forward,
                std::uint64_t backward) {
    add(among, Purpose::head, pattern, Phase::head, kForward, hidden, forward, messages);
    add(among, Purpose::head, pattern, Phase::head, kBackward, hidden, backward, messages);
  }

  /// Adds the all-reduces of gains, biases and learned positions over the ranks whose tokens differ.
  void norm_gains() {
    const std::uint64_t gains = model.replicated_parameters();
    const bool tensors_too = layout.slices_tokens();
    const std::uint64_t over = tensors_too ? T * D : D;
    const std::uint64_t groups = tensors_too ? 1 : T;
    const auto all_reduced = [&](Among among, std::uint64_t elements, std::uint64_t ranks, std::uint64_t of_them) {
      if (ranks == 1 || elements == 0) return;
      add(among, Purpose::other, Pattern::collective, Phase::pass, kBackward, kExposed, 2 * elements * a * (ranks - 1) * of_them,
          2)
          .once = true;
    };
    all_reduced(token_cutters(), gains, over, groups);
    // Under plain tp, the ranks of the tensor axis have the same tokens, but each computes its own slice of the projections'
    // biases.
    if (!tensors_too) all_reduced(layout.tensor_axis(), model.projection_vectors(), T, D);
  }

  // --- dp

  /// Returns what the ranks of a replica hold together, and under --dp zero3 those of all replicas.
  RankParameters all_parameters() const {
    const MeshSetting whole{of_.setting, layout.shares_weights() ? layout.with(DataSharing::zero1) : layout};
    RankParameters all;
    for (int t = 0; t < layout.tensor(); ++t) {
      for (int p = 0; p < layout.sequence(); ++p) {
        const RankParameters each = held(whole, {.tensor = t, .sequence = p});
        all.attention += each.attention;
        all.mlp += each.mlp;
        all.vocabulary += each.vocabulary;
        all.norms += each.norms;
        all.inputs += each.inputs;
      }
    }
    return all;
  }

  /// Adds the sums of gradients over the data axes, of each micro-batch or once a step. Where each rank needs a part, they are
  /// scattered over the ranks with other parts, which is half of an all_reduce.
  void sum_over_data(Purpose purpose, Phase phase, bool hidden, std::uint64_t elements, std::uint64_t messages, bool once) {
    const std::uint64_t times = once ? 1 : of_.setting.micro_batches;
    if (!layout.shares_states()) {
      add(layout.data_axis(), purpose, Pattern::collective, phase, kBackward, hidden,
          times * 2 * elements * a * static_cast<std::uint64_t>(layout.data() - 1), messages)
          .once = once;
      return;
    }
    add(layout.sharing_axis(), purpose, Pattern::collective, phase, kBackward, hidden, times * elements * a * scattered(),
        times * messages)
        .once = once;
  }
  /// Adds the sums, once a step, over ranks with the same part: those of dp beside shard, and `copies` in a replica.
  void sum_parts(Purpose purpose, bool hidden, std::uint64_t elements, std::uint64_t copies, std::uint64_t messages) {
    const std::uint64_t with_part = groups() * copies;
    add(layout.data_axis(), purpose, Pattern::collective, Phase::pass, kBackward, hidden,
        2 * elements / copies * a * (with_part - 1), messages)
        .once = true;
  }
  /// Adds weights that the ranks with other parts gather.
  void gather_over_data(Phase phase, bool backward, bool hidden, std::uint64_t elements, std::uint64_t messages, bool once) {
    const std::uint64_t times = once ? 1 : of_.setting.micro_batches;
    add(layout.sharing_axis(), Purpose::weights, Pattern::collective, phase, backward, hidden, times * elements * e * scattered(),
        times * messages)
        .once = once;
  }
  /// Groups of ranks over which packs are cut; and how often all of them together receive what is scattered or gathered.
  std::uint64_t groups() const { return static_cast<std::uint64_t>(layout.data() / layout.sharers()); }
  std::uint64_t scattered() const { return static_cast<std::uint64_t>(layout.sharers() - 1) * groups(); }

  /// Adds what moves where data ranks have parts of the weights: a pack is gathered for each use, and its gradients are
  /// scattered with each micro-batch. Vectors and learned positions move as under --dp zero1.
  void shared_weights(const RankParameters& all) {
    const auto sublayer = [&](Phase phase, std::uint64_t elements) {
      for (const bool backward : {kForward, kBackward}) gather_over_data(phase, backward, kHidden, elements, L, false);
      sum_over_data(Purpose::gradients, phase, kHidden, elements, L, false);
    };
    sublayer(Phase::attention, all.attention);
    sublayer(Phase::mlp, all.mlp);
    const std::uint64_t table = all.vocabulary / (model.tied_embeddings ? 1 : 2);
    // The embedding's rows come before anything is computed, and its gradient is complete only when the backward pass ends.
    gather_over_data(Phase::pass, kForward, kExposed, table, 1, false);
    gather_over_data(Phase::pass, kForward, kHidden, table, 1, false);
    if (input_tables() > 0) gather_over_data(Phase::pass, kForward, kExposed, all.inputs, 1, false);
    sum_over_data(Purpose::embedding, Phase::pass, kExposed, table + all.inputs, 1 + input_tables(), false);
    if (!model.tied_embeddings) sum_over_data(Purpose::head, Phase::pass, kHidden, table, 1, false);
    sum_over_data(Purpose::other, Phase::pass, kExposed, all.norms, 2, true);
    gather_over_data(Phase::pass, kBackward, kExposed, all.norms, 1, true);
    if (groups() == 1) return;
    const std::uint64_t copies_of_blocks = tokens_way(layout).shares_weights ? 1 : D;
    const std::uint64_t copies_of_tables = layout.cuts_vocabulary_over_tensor() ? D : 1;
    sum_parts(Purpose::gradients, kHidden, all.attention + all.mlp, copies_of_blocks, 2 * L);
    sum_parts(Purpose::embedding, kExposed, table + all.inputs, copies_of_tables, 2 + 2 * input_tables());
    if (!model.tied_embeddings) sum_parts(Purpose::head, kHidden, table, copies_of_tables, 2);
    sum_parts(Purpose::other, kExposed, all.norms, 1, 2);
  }

  void data_axis() {
    const RankParameters all = all_parameters();
    if (layout.shares_weights()) {
      shared_weights(all);
      return;
    }
    const auto summed = [&](Purpose purpose, bool hidden, std::uint64_t elements, std::uint64_t messages) {
      sum_over_data(purpose, Phase::pass, hidden, elements, messages, true);
      if (layout.shares_states() && groups() > 1) sum_parts(purpose, hidden, elements, 1, messages);
    };
    summed(Purpose::gradients, kHidden, all.attention + all.mlp, 2 * L);
    const std::uint64_t tables = model.tied_embeddings ? 1 : 2;
    // The embedding's gradient is complete only when the backward pass ends.
    summed(Purpose::embedding, kExposed, all.vocabulary / tables + all.inputs, 2 + 2 * input_tables());
    if (!model.tied_embeddings) summed(Purpose::head, kHidden, all.vocabulary / tables, 2);
    summed(Purpose::other, kExposed, all.norms, 2);
    if (layout.shares_states())
      gather_over_data(Phase::pass, kBackward, kExposed, all.total(), 2 * L + tables + 1 + input_tables(), true);
  }

  const MeshSetting& of_;
};

}  // namespace

std::vector<Flow> step_flows(const Setting& setting, const Layout& layout) {
  const MeshSetting of{setting, layout};
  const Setting micro_batch = of.micro_batch();
  return Counter(of, micro_batch).step();
}

Traffic sum(const std::vector<Flow>& flows) {
  Traffic traffic;
  for (const Flow& flow : flows) (flow.backward ? traffic.backward : traffic.forward)[flow.purpose] += flow.bytes;
  return traffic;
}

Traffic mesh_block(const MeshSetting& of) {
  MeshSetting one = of;
  one.setting.model.layers = 1;
  Traffic traffic = sum(step_flows(one.setting, one.layout));
  for (const Purpose purpose : {Purpose::embedding, Purpose::head, Purpose::other})
    traffic.forward[purpose] = traffic.backward[purpose] = 0;
  return traffic;
}

}  // namespace tsprun::detail::theory
