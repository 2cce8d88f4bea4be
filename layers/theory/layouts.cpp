#include "layers/theory/layouts.h"

#include "layers/slice.h"
#include "layers/theory/memory.h"
#include "layers/theory/shards.h"
#include "layers/theory/step.h"
#include "layers/zigzag.h"

#include <vector>

namespace tsp::theory {

namespace {

/// All-reduced over `ranks`, in as many groups as hold `elements` together.
std::uint64_t all_reduced(const Setting& setting, std::uint64_t elements, int ranks) {
  return 2 * elements * setting.bytes.accumulated * hops(ranks);
}

/// Elements of W_K and W_V rows that tensor ranks hold beyond the first copy.
std::uint64_t copied_elements(const Setting& setting, int tensor) {
  const ModelConfig& model = setting.model;
  const std::size_t read = HeadCut(model.query_heads, model.kv_heads, tensor).kv_heads_read_by_all();
  return 2 * model.hidden * model.head_dim * (read - model.kv_heads);
}

/// TSP of each tensor rank's part; activations summed over the tensor axis as under tp.
Traffic tp_tsp_block(const Setting& setting, int tensor, int sequence) {
  const Traffic dense = tp_sp_block(setting, tensor, sequence);
  const std::uint64_t copied = copied_elements(setting, tensor);
  const std::uint64_t weights = (setting.block_parameters() + copied) * hops(sequence);
  Traffic traffic;
  for (const Purpose purpose : {Purpose::kv, Purpose::activations}) {
    traffic.forward[purpose] = dense.forward[purpose];
    traffic.backward[purpose] = dense.backward[purpose];
  }
  traffic.forward[Purpose::weights] = traffic.backward[Purpose::weights] = weights * setting.bytes.element;
  // Summed to their owners, then the copies' among the tensor ranks that have them.
  traffic.backward[Purpose::gradients] = (weights + 2 * copied) * setting.bytes.accumulated;
  return traffic;
}

std::optional<Traffic> dense_block(const Setting& setting, const MeshShape& shape, SequenceExchange exchange) {
  const int T = shape.tensor;
  const int S = shape.sequence;
  if (T == 1) {
    if (exchange == SequenceExchange::ring) return sp_ring_block(setting, S);
    if (exchange == SequenceExchange::ulysses) return sp_ulysses_block(setting, S);
    return sp_gather_block(setting, S);
  }
  Traffic traffic = tp_sp_block(setting, T, S);
  if (S > 1 && exchange == SequenceExchange::ring && setting.recompute == Recompute::full) {
    traffic.backward[Purpose::kv] += traffic.forward[Purpose::kv];
  }
  if (S > 1 && exchange == SequenceExchange::ulysses) {
    traffic.forward[Purpose::kv] = traffic.backward[Purpose::kv] = 0;
    for (int t = 0; t < T; ++t) {
      const BlockSlice slice = BlockSlice::of(setting.model, t, T);
      if (!slice.uniform(setting.model)) return std::nullopt;
      Setting part = setting;
      part.model = slice.apply(setting.model);
      const Traffic exchanged = sp_ulysses_block(part, S);
      traffic.forward[Purpose::activations] += exchanged.forward[Purpose::activations];
      traffic.backward[Purpose::activations] += exchanged.backward[Purpose::activations];
    }
  }
  return traffic;
}

/// Rows of the vocabulary, by holder of tokens or by tensor rank.
std::uint64_t vocabulary_rows(const MeshSetting& of, MeshPlace place) {
  const std::size_t V = of.setting.model.vocabulary;
  if (of.cuts_vocabulary_over_tensor()) return Chunks::balanced(of.shape.tensor, V).count(place.tensor);
  if (of.shape.slices_tokens()) {
    return Chunks::balanced(of.shape.tensor * of.shape.sequence, V).count(place.sequence * of.shape.tensor + place.tensor);
  }
  return Chunks::balanced(of.shape.sequence, V).count(place.sequence);
}

}  // namespace

Setting MeshSetting::replica() const {
  Setting replica = setting;
  replica.batch /= static_cast<std::size_t>(shape.data);
  return replica;
}

std::uint64_t remote_rows(const MeshSetting& of, std::span<const std::int32_t> ids) {
  if (of.cuts_vocabulary_over_tensor()) return 0;
  const Setting replica = of.replica();
  const std::size_t count = replica.tokens();
  std::uint64_t sum = 0;
  for (int d = 0; d < of.shape.data; ++d) {
    const auto own = ids.subspan(static_cast<std::size_t>(d) * count, count);
    if (!of.shape.slices_tokens()) {
      sum += remote_rows_of_all(remote_rows(own, replica, of.shape.sequence));
      continue;
    }
    // Each sequence rank's rows are cut once more.
    const int T = of.shape.tensor;
    const Zigzag zigzag(replica.sequence, of.shape.sequence);
    const Chunks rows = Chunks::balanced(T * of.shape.sequence, replica.model.vocabulary);
    for (int s = 0; s < of.shape.sequence; ++s) {
      const std::size_t local = zigzag.tokens(s);
      std::vector<std::int32_t> held(replica.batch * local);
      for (std::size_t b = 0; b < replica.batch; ++b) {
        zigzag.cut(s, own.subspan(b * replica.sequence, replica.sequence), std::span(held).subspan(b * local, local));
      }
      const Chunks slices = Chunks::balanced(T, held.size());
      for (int t = 0; t < T; ++t) {
        const int holder = s * T + t;
        for (std::size_t i = slices.offset(t); i < slices.offset(t) + slices.count(t); ++i) {
          const auto id = static_cast<std::size_t>(held[i]);
          sum += id < rows.offset(holder) || id >= rows.offset(holder) + rows.count(holder);
        }
      }
    }
  }
  return sum;
}

std::optional<Traffic> mesh_block(const MeshSetting& of) {
  const Setting replica = of.replica();
  const MeshShape& shape = of.shape;
  std::optional<Traffic> block;
  if (shape.scheme == Scheme::zero3) block = zero3_block(replica, shape.sequence);
  else if (shape.scheme == Scheme::dense) block = dense_block(replica, shape, of.exchange);
  else if (shape.tensor > 1) block = tp_tsp_block(replica, shape.tensor, shape.sequence);
  else block = tsp_block(replica, shape.sequence);
  if (!block) return block;
  if (shape.slices_tokens()) {
    // Gathered inputs aren't kept.
    block->backward[Purpose::activations] += 2 * replica.hidden_elements() * replica.bytes.element * hops(shape.tensor);
  }
  block = block->times(static_cast<std::uint64_t>(shape.data));
  const int copies = shape.scheme == Scheme::dense ? shape.sequence : 1;
  const std::uint64_t elements =
      (replica.block_parameters() + copied_elements(replica, shape.tensor)) * static_cast<std::uint64_t>(copies);
  block->backward[Purpose::gradients] += all_reduced(replica, elements, shape.data);
  return block;
}

std::optional<Traffic> mesh_step(const MeshSetting& of, std::span<const std::int32_t> ids) {
  const std::optional<Traffic> block = mesh_block(of);
  if (!block) return block;
  const Setting replica = of.replica();
  const MeshShape& shape = of.shape;
  Traffic vocabulary;
  std::uint64_t copies = 1;
  if (of.cuts_vocabulary_over_tensor()) {
    vocabulary += tp_embedding(replica, shape.tensor);
    vocabulary += tp_head(replica, shape.tensor);
    copies = static_cast<std::uint64_t>(shape.sequence);
  } else {
    const int holders = shape.slices_tokens() ? shape.tensor * shape.sequence : shape.sequence;
    vocabulary += head(replica, holders, head_plan(replica));
  }
  vocabulary = vocabulary.times(static_cast<std::uint64_t>(shape.data));
  if (!of.cuts_vocabulary_over_tensor()) vocabulary += embedding(replica, remote_rows(of, ids));

  const std::uint64_t rows = static_cast<std::uint64_t>(replica.model.vocabulary) * replica.model.hidden;
  std::uint64_t summed = all_reduced(replica, rows * copies, shape.data);
  if (of.cuts_vocabulary_over_tensor()) {
    summed += all_reduced(replica, rows, shape.sequence) * static_cast<std::uint64_t>(shape.data);
  }
  vocabulary.backward[Purpose::embedding] += summed;
  if (!replica.model.tied_embeddings) vocabulary.backward[Purpose::head] += summed;

  Traffic step = block->times(replica.model.layers);
  step += vocabulary;
  return step;
}

// --- one rank ----------------------------------------------------------------------------------------------------------------

MeshPlace place_of(const MeshShape& shape, int rank) {
  const int within = rank % (shape.tensor * shape.sequence);
  if (shape.sequence_outside) return {.tensor = within % shape.tensor, .sequence = within / shape.tensor};
  return {.tensor = within / shape.sequence, .sequence = within % shape.sequence};
}

std::uint64_t block_elements(const MeshSetting& of, MeshPlace place) {
  const ModelConfig& model = of.setting.model;
  const BlockSlice slice = BlockSlice::of(model, place.tensor, of.shape.tensor);
  const std::uint64_t h = model.hidden;
  const std::uint64_t d = model.head_dim;
  if (of.shape.scheme == Scheme::tsp) {
    const TspShards shards(slice.apply(model), of.shape.sequence);
    return shards.attention(place.sequence) + shards.mlp(place.sequence);
  }
  const std::uint64_t attention_rows = 2 * (slice.queries.count + slice.kv.count) * d;
  const std::uint64_t mlp_rows = model.mlp_matrices() * slice.rows;
  if (of.shape.scheme == Scheme::dense) return (attention_rows + mlp_rows) * h;
  return (Chunks::balanced(of.shape.sequence, attention_rows).count(place.sequence) +
          Chunks::balanced(of.shape.sequence, mlp_rows).count(place.sequence)) *
         h;
}

std::uint64_t all_elements(const MeshSetting& of, MeshPlace place) {
  const ModelConfig& model = of.setting.model;
  const std::uint64_t h = model.hidden;
  return model.layers * block_elements(of, place) + model.replicated_parameters() +
         (model.tied_embeddings ? 1 : 2) * vocabulary_rows(of, place) * h;
}

std::uint64_t held_tokens(const MeshSetting& of, MeshPlace place) {
  const Setting replica = of.replica();
  const std::size_t rows = replica.batch * Zigzag(replica.sequence, of.shape.sequence).tokens(place.sequence);
  return of.shape.slices_tokens() ? Chunks::balanced(of.shape.tensor, rows).count(place.tensor) : rows;
}

std::uint64_t saved_bytes(const MeshSetting& of, MeshPlace place) {
  const Setting replica = of.replica();
  const ModelConfig& model = replica.model;
  const BlockSlice slice = BlockSlice::of(model, place.tensor, of.shape.tensor);
  Setting part = replica;
  part.model = slice.apply(model);
  const std::uint64_t inputs = 2 * model.hidden * replica.bytes.element;
  const std::uint64_t inside = saved_bytes_per_token(part) - inputs;
  const std::uint64_t inputs_all = held_tokens(of, place) * inputs;
  const std::uint64_t rows = replica.batch * Zigzag(replica.sequence, of.shape.sequence).tokens(place.sequence);
  const bool ulysses = of.shape.scheme == Scheme::dense && of.shape.sequence > 1 && of.exchange == SequenceExchange::ulysses;
  if (!ulysses || replica.recompute == Recompute::full) return inputs_all + rows * inside;
  // q, k, v and log-sum-exps of some heads and all tokens instead of some tokens and all heads.
  const HeadCut parts(slice.queries.count, slice.queries.count, of.shape.sequence);
  const HeadRange own = parts.query_heads(place.sequence);
  const std::size_t g = model.heads_per_kv_head();
  const std::size_t first = slice.queries.first + own.first;
  const std::uint64_t kv = (first + own.count - 1) / g + 1 - first / g;
  const std::uint64_t d = model.head_dim;
  const std::uint64_t lse = own.count * replica.tokens() * replica.bytes.lse;
  std::uint64_t bytes = inputs_all + rows * slice.queries.count * d * replica.bytes.element + lse;  // and o
  if (replica.recompute == Recompute::none) {
    bytes += replica.tokens() * (own.count + 2 * kv) * d * replica.bytes.element +
             rows * model.mlp_inputs() * slice.rows * replica.bytes.element;
  }
  return bytes;
}

std::uint64_t activation_bytes(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes) {
  const Setting& setting = of.setting;
  return setting.model.layers * saved_bytes(of, place) +
         held_tokens(of, place) * (setting.model.hidden * setting.bytes.element + setting.bytes.lse + id_bytes);
}

}  // namespace tsp::theory
