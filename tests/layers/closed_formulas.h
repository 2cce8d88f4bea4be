// The oracle of exact counts: bytes received, parameters held and activations saved in a training step, as closed formulas of the
// symbols of docs/algorithms.md ("Exact traffic", "Memory"), in integers. It is written from that page and from the paper, and
// includes nothing that it judges: a test (tests/house/includes.py) forbids layers/theory, layers/schedules and layers/model
// here.
//
// Bytes are summed over all ranks of the job, so that a mean per rank times the number of ranks, x·ρ·D, is x·(D − 1). Where n_kv,
// f, V or S don't divide by the degree, heads, rows and tokens are counted one by one, by the few functions that come first.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "tsprun/types.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

namespace tsprun::detail::formulas {

using Count = std::uint64_t;

// --- bytes by purpose --------------------------------------------------------------------------------------------------------

/// Bytes by purpose; anything else that is indexed by Purpose converts to it, so that counts can be held against it.
class PurposeBytes {
 public:
  PurposeBytes() = default;
  template <class Counted>
  requires requires(const Counted& of) { of[Purpose::weights] == Count{}; }
  PurposeBytes(const Counted& of) {
    for (int i = 0; i < kPurposes; ++i) (*this)[static_cast<Purpose>(i)] = of[static_cast<Purpose>(i)];
  }
  Count& operator[](Purpose purpose) { return bytes_[static_cast<std::size_t>(purpose)]; }
  Count operator[](Purpose purpose) const { return bytes_[static_cast<std::size_t>(purpose)]; }
  Count total() const {
    Count sum = 0;
    for (const Count each : bytes_) sum += each;
    return sum;
  }
  PurposeBytes& operator+=(const PurposeBytes& other) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] += other.bytes_[i];
    return *this;
  }
  friend bool operator==(const PurposeBytes& one, const PurposeBytes& other) { return one.bytes_ == other.bytes_; }
  friend void PrintTo(const PurposeBytes& of, std::ostream* out) {
    for (int i = 0; i < kPurposes; ++i) *out << name(static_cast<Purpose>(i)) << ' ' << of[static_cast<Purpose>(i)] << ' ';
  }

 private:
  std::array<Count, kPurposes> bytes_{};
};

/// Bytes of a forward and a backward pass; converts likewise.
struct Traffic {
  PurposeBytes forward = {};
  PurposeBytes backward = {};

  Traffic() = default;
  template <class Counted>
  requires requires(const Counted& of) { PurposeBytes(of.forward), PurposeBytes(of.backward); }
  Traffic(const Counted& of) : forward(of.forward), backward(of.backward) {}

  Count total() const { return forward.total() + backward.total(); }
  Traffic& operator+=(const Traffic& other) {
    forward += other.forward;
    backward += other.backward;
    return *this;
  }
  friend Traffic operator+(Traffic one, const Traffic& other) { return one += other; }
  friend Traffic operator*(Traffic one, Count several) {
    for (PurposeBytes* pass : {&one.forward, &one.backward}) {
      for (int i = 0; i < kPurposes; ++i) (*pass)[static_cast<Purpose>(i)] *= several;
    }
    return one;
  }
  friend bool operator==(const Traffic& one, const Traffic& other) {
    return one.forward == other.forward && one.backward == other.backward;
  }
  friend void PrintTo(const Traffic& of, std::ostream* out) {
    *out << "forward: ";
    PrintTo(of.forward, out);
    *out << "backward: ";
    PrintTo(of.backward, out);
  }
};

// --- symbols, and how things are cut -----------------------------------------------------------------------------------------

inline Count as_count(int degree) { return static_cast<Count>(degree); }

/// Symbols of docs/algorithms.md for one micro-batch of one replica.
struct Symbols {
  Count B, S;  // sequences, tokens of each
  Count W;     // positions that a query of the first layer sees, its own included; 0: all up to its own
  Count h, L, n_h, n_kv, d, f, V;
  Count a, k, g;   // n_h·d, n_kv·d, query heads for a K/V head
  Count matrices;  // of an MLP: W1, W3, W2; without a gate two
  // Of the first layer: whether it has k and v of its own, whether others take them, and how many matrices it has of W_K and W_V.
  bool own, lends;
  Count m;
  Count beta, beta_a, beta_l;  // bytes of an element, of an accumulated one, of a log-sum-exp
  bool tied;
  Recompute recompute;

  explicit Symbols(const Setting& of, int data = 1)
      : B(of.batch / (as_count(data) * of.micro_batches)),
        S(of.sequence),
        W(of.model.layer(0).window),
        h(of.model.hidden),
        L(of.model.layers),
        n_h(of.model.query_heads),
        n_kv(of.model.kv_heads),
        d(of.model.head_dim),
        f(of.model.intermediate),
        V(of.model.vocabulary),
        a(n_h * d),
        k(n_kv * d),
        g(n_h / n_kv),
        matrices(of.model.mlp == Mlp::gelu || of.model.mlp == Mlp::gelu_tanh ? 2 : 3),
        own(of.model.layer(0).layers_to_lender == 0),
        lends(of.model.layer(0).lends),
        m(own ? (of.model.layer(0).value_is_key ? 1 : 2) : 0),
        beta(of.bytes.element),
        beta_a(of.bytes.accumulated),
        beta_l(of.bytes.lse),
        tied(of.model.tied_embeddings),
        recompute(of.recompute) {}

  Count P_attn() const { return h * d * (2 * n_h + m * n_kv); }
  Count P_mlp() const { return matrices * f * h; }
  Count P_L() const { return P_attn() + P_mlp(); }
  Count KV() const { return 2 * B * S * n_kv * d; }
  Count BSh() const { return B * S * h; }
};

/// Returns the setting of a model that has this layer alone, whose sizes are the model's.
inline Setting layer_alone(const Setting& of, const LayerSpec& layer) {
  Setting one = of;
  one.model.layers = 1;
  LayerSpec spec = layer;
  if (spec.head_dim != 0) one.model.head_dim = spec.head_dim;
  if (spec.kv_heads != 0) one.model.kv_heads = spec.kv_heads;
  if (spec.intermediate != 0) one.model.intermediate = spec.intermediate;
  spec.head_dim = spec.kv_heads = spec.intermediate = 0;
  one.model.specs = spec;
  return one;
}
/// Returns the sum over all layers of what `count` says of the symbols of one.
template <class Counted>
Count sum_of_layers(const Setting& of, Counted&& count) {
  Count all = 0;
  for (std::size_t layer = 0; layer < of.model.layers; ++layer) all += count(Symbols(layer_alone(of, of.model.layer(layer))));
  return all;
}

/// Returns the size of part `i` of `n` into which `all` is cut; the first (all mod n) are one longer.
inline Count part_of(Count all, int n, int i) { return all / as_count(n) + (as_count(i) < all % as_count(n) ? 1 : 0); }
/// Returns where that part begins.
inline Count begin_of(Count all, int n, int i) {
  Count begin = 0;
  for (int before = 0; before < i; ++before) begin += part_of(all, n, before);
  return begin;
}
/// Returns S_p: of 2D chunks, rank p has chunks p and 2D − 1 − p.
inline Count tokens_of(Count S, int D, int p) { return part_of(S, 2 * D, p) + part_of(S, 2 * D, 2 * D - 1 - p); }
/// Returns the rank that has a position of a sequence of S tokens.
inline int owner_of(Count S, int D, Count position) {
  int chunk = 0;
  while (begin_of(S, 2 * D, chunk) + part_of(S, 2 * D, chunk) <= position) ++chunk;
  return chunk < D ? chunk : 2 * D - 1 - chunk;
}

/// Returns M, the keys of a sequence that D ranks take from each other in a layer whose queries see W positions, 0: all. With
/// each of its chunks a rank looks W − 1 positions back from the first token, as far as the sequence, or its other chunk, goes:
/// M = Σ_p min(start(p), W − 1) + min(start(2D − 1 − p) − end(p), W − 1). Where W ≥ S, as without a window, every rank takes all
/// keys: M = S·(D − 1); so it does if D > 8 and W − 1 > 2·⌊S/2D⌋.
inline bool all_taken(Count S, int D, Count W) { return W == 0 || W >= S || (D > 8 && W - 1 > 2 * (S / (2 * as_count(D)))); }
inline Count keys_taken(Count S, int D, Count W) {
  if (all_taken(S, D, W)) return S * as_count(D - 1);
  const auto start = [&](int chunk) { return begin_of(S, 2 * D, chunk); };
  const auto end = [&](int chunk) { return start(chunk) + part_of(S, 2 * D, chunk); };
  Count keys = 0;
  for (int p = 0; p < D; ++p) {
    const int late = 2 * D - 1 - p;
    if (end(p) > start(p)) keys += std::min(start(p), W - 1);
    if (end(late) > start(late)) keys += std::min(start(late) - end(p), W - 1);
  }
  return keys;
}

/// Heads, counted from the first.
struct Heads {
  Count first;
  Count count;
  Count end() const { return first + count; }
};
/// Returns the query heads of slice t of T.
inline Heads queries_of(const Symbols& s, int T, int t) { return {begin_of(s.n_h, T, t), part_of(s.n_h, T, t)}; }
/// Returns the K/V heads that these query heads read: head ⌊q / g⌋ for query head q.
inline Heads read_by(const Symbols& s, const Heads& queries) {
  if (queries.count == 0) return {queries.first / s.g, 0};
  const Count first = queries.first / s.g;
  return {first, (queries.end() - 1) / s.g + 1 - first};
}
/// Returns m(x), the copies of K/V heads that x slices of the query heads read in all.
inline Count copies_read(const Symbols& s, int x) {
  Count copies = 0;
  for (int slice = 0; slice < x; ++slice) copies += read_by(s, queries_of(s, x, slice)).count;
  return copies;
}
/// Returns the elements of W_K and W_V beyond the first copy of each head, if T ranks have the heads that they read.
inline Count copied_elements(const Symbols& s, int T) { return s.m * s.h * s.d * (copies_read(s, T) - s.n_kv); }

// --- the table "Exact traffic": one block ------------------------------------------------------------------------------------

/// Returns the sum over all layers of what `block` says that one moves. It gets the setting with a layer alone.
template <class Block>
Traffic over_layers(const Setting& of, Block&& block) {
  Traffic all;
  for (std::size_t layer = 0; layer < of.model.layers; ++layer) all += block(layer_alone(of, of.model.layer(layer)));
  return all;
}

/// K/V gathered forward and backward, and dK/dV scattered to their tokens' ranks, over D ranks in each of T slices.
inline Traffic kv_gathered(const Symbols& s, int D, int T = 1) {
  const Count kv = 2 * s.B * s.d * copies_read(s, T) * keys_taken(s.S, D, s.W);
  Traffic traffic;
  traffic.forward[Purpose::kv] = kv * s.beta;
  traffic.backward[Purpose::kv] = kv * (s.beta + s.beta_a);
  return traffic;
}

/// "TSP attention weights; dW to owners", "TSP MLP weights; dW": the parts of T slices, each over D ranks.
inline Traffic weights_shared(const Symbols& s, int D, int T = 1) {
  const Count elements = (s.P_L() + copied_elements(s, T)) * (as_count(D) - 1);
  Traffic traffic;
  traffic.forward[Purpose::weights] = traffic.backward[Purpose::weights] = elements * s.beta;
  traffic.backward[Purpose::gradients] = elements * s.beta_a;
  return traffic;
}

/// 2·N·β_a·ρ: gradients of weights that D ranks have copies of.
inline Count summed_over(const Symbols& s, Count elements, int D) { return 2 * elements * s.beta_a * (as_count(D) - 1); }

inline Traffic gradients_summed(const Symbols& s, int D, int T = 1) {
  Traffic traffic;
  traffic.backward[Purpose::gradients] = summed_over(s, s.P_L() + copied_elements(s, T), D);
  return traffic;
}

/// The sums of gradients of K/V heads' copies under TP; `groups`: ranks of another axis that each have a copy of a slice.
inline Count copies_summed(const Symbols& s, int T, int groups) {
  return 2 * copied_elements(s, T) * s.beta_a * as_count(groups);
}

/// RMSNorms over all heads under TP, in the layers that have them: an all_reduce of each row's sum of squares for q and one for
/// k, 4BS·β_a·ρ; backward of a second number, too, 8BS·β_a·ρ, and of the first again where q and k are projected again.
inline Traffic rows_normed(const Setting& of, int T) {
  const Symbols s(of);
  Traffic traffic;
  for (std::size_t layer = 0; layer < of.model.layers; ++layer) {
    if (of.model.layer(layer).query_key_norm != QueryKeyNorm::rows) continue;
    const Count norms = of.model.layer(layer).layers_to_lender == 0 ? 2 : 1;
    const Count numbers = 2 * norms * s.B * s.S * s.beta_a * (as_count(T) - 1);
    traffic.forward[Purpose::activations] += numbers;
    traffic.backward[Purpose::activations] += (s.recompute == Recompute::none ? 2 : 3) * numbers;
  }
  return traffic;
}

/// TP's activations, and those sums.
inline Traffic slices_summed(const Symbols& s, int T, bool gathered_again, int groups = 1) {
  Traffic traffic;
  const Count moved = s.BSh() * s.beta * (as_count(T) - 1);
  traffic.forward[Purpose::activations] = 4 * moved;
  traffic.backward[Purpose::activations] = (gathered_again ? 6 : 4) * moved;
  traffic.backward[Purpose::gradients] = copies_summed(s, T, groups);
  return traffic;
}

/// Ring attention's K/V; full recomputation needs all of K and V once more before backward's own round begins. Where a window
/// hides keys there are no rounds.
inline Traffic kv_round_the_ring(const Symbols& s, int D, int T = 1) {
  Traffic traffic = kv_gathered(s, D, T);
  if (s.recompute == Recompute::full && all_taken(s.S, D, s.W)) traffic.backward[Purpose::kv] += traffic.forward[Purpose::kv];
  return traffic;
}

/// Ulysses: for every token, heads go to the ranks that compute them: Q there and O back, K and V there; dO there and dQ back, dK
/// and dV back, in β_a bytes where several ranks' terms of a head are summed; K, V, dK and dV of layers that have their own, and
/// K and V that are lent are kept. Δ isn't in the table; it is counted as `other`.
inline Traffic heads_exchanged(const Symbols& s, int D, int T = 1) {
  Count q = 0;
  Count k = 0;
  Count dk = 0;  // bytes
  for (int t = 0; t < T; ++t) {
    const Heads slice = queries_of(s, T, t);
    Count read_in_all = 0;
    for (int p = 0; p < D; ++p)
      read_in_all += read_by(s, {slice.first + begin_of(slice.count, D, p), part_of(slice.count, D, p)}).count;
    const bool summed = read_in_all > read_by(s, slice).count;
    for (int p = 0; p < D; ++p) {
      const Heads own{slice.first + begin_of(slice.count, D, p), part_of(slice.count, D, p)};
      const Count others_tokens = s.B * (s.S - tokens_of(s.S, D, p)) * s.d;
      q += others_tokens * own.count;
      if (s.own) k += others_tokens * read_by(s, own).count;
      if (s.own) dk += others_tokens * read_by(s, own).count * (summed ? s.beta_a : s.beta);
    }
  }
  Traffic traffic;
  const Count forward = (2 * q + 2 * k) * s.beta;
  traffic.forward[Purpose::activations] = forward;
  traffic.backward[Purpose::activations] = 2 * q * s.beta + 2 * dk;
  const Count again = s.lends ? 0 : k;
  if (s.recompute == Recompute::selective) traffic.backward[Purpose::activations] += (q + 2 * again) * s.beta;
  if (s.recompute == Recompute::full) traffic.backward[Purpose::activations] += (2 * q + 2 * again) * s.beta;
  return traffic;
}

inline Traffic tsp_block(const Setting& of, int D) {
  const Symbols s(of);
  return weights_shared(s, D) + kv_gathered(s, D);
}
/// ZeRO-3 with `--sp gather` over the same ranks: (P_L + KV)·β·ρ and (P_L + KV)(β + β_a)ρ.
inline Traffic zero3_block(const Setting& of, int D) {
  const Symbols s(of);
  const Count kv = 2 * s.B * s.n_kv * s.d * keys_taken(s.S, D, s.W);  // KV·ρ·D without a window
  const Count both = s.P_L() * (as_count(D) - 1) + kv;
  Traffic traffic;
  traffic.forward[Purpose::kv] = kv * s.beta;
  traffic.forward[Purpose::weights] = (both - kv) * s.beta;
  traffic.backward[Purpose::kv] = kv * (s.beta + s.beta_a);
  traffic.backward[Purpose::weights] = (both - kv) * s.beta;
  traffic.backward[Purpose::gradients] = (both - kv) * s.beta_a;
  return traffic;
}
inline Traffic tp_block(const Setting& of, int T) { return slices_summed(Symbols(of), T, false); }
/// Megatron's sequence parallelism: 4BShβρ backward if gathered inputs are kept, else 6BShβρ.
inline Traffic tp_sequence_block(const Setting& of, int T, bool gathered_inputs_kept) {
  return slices_summed(Symbols(of), T, !gathered_inputs_kept);
}
inline Traffic sp_gather_block(const Setting& of, int D) {
  return kv_gathered(Symbols(of), D) + gradients_summed(Symbols(of), D);
}
inline Traffic sp_ring_block(const Setting& of, int D) {
  return kv_round_the_ring(Symbols(of), D) + gradients_summed(Symbols(of), D);
}
inline Traffic sp_ulysses_block(const Setting& of, int D) {
  return heads_exchanged(Symbols(of), D) + gradients_summed(Symbols(of), D);
}
/// TP×SP of T·Σ ranks: A + E, A(1 + β_a/β) + E + 2P_Tβ_a(Σ−1)/Σ + the replica term.
inline Traffic tp_sp_block(const Setting& of, int T, int sequence) {
  const Symbols s(of);
  return kv_gathered(s, sequence, T) + gradients_summed(s, sequence, T) + slices_summed(s, T, false, sequence);
}
/// TP×TSP: TSP of every slice with its copies of K/V heads; each copy's gradient lies on one rank of tsp and is summed once.
inline Traffic tp_tsp_block(const Setting& of, int T, int D) {
  const Symbols s(of);
  return weights_shared(s, D, T) + kv_gathered(s, D, T) + slices_summed(s, T, false);
}
/// DP: gradients of whole blocks, whatever the batch.
inline Traffic dp_block(const Setting& of, int data) { return gradients_summed(Symbols(of), data); }

// --- the table: what else a model has ----------------------------------------------------------------------------------------

/// One norm gain: half of the table's "two norm gains, 4hβ_aρ".
inline Traffic norm_gain(const Setting& of, int D) {
  const Symbols s(of);
  Traffic traffic;
  traffic.backward[Purpose::other] = summed_over(s, s.h, D);
  return traffic;
}

/// The embedding over ranks with different tokens. `remote_rows`: R, the tokens whose row lives on another rank.
inline Traffic embedding(const Setting& of, Count remote_rows) {
  const Symbols s(of);
  Traffic traffic;
  traffic.forward[Purpose::embedding] = remote_rows * s.h * s.beta;
  traffic.backward[Purpose::embedding] = remote_rows * s.h * s.beta_a;
  return traffic;
}

/// Returns whether the head gathers X: BS(h(2β + β_a) + 2β_l) < Vh(2β + β_a).
inline bool head_gathers(const Setting& of) {
  const Symbols s(of);
  const Count element = 2 * s.beta + s.beta_a;
  return s.B * s.S * (s.h * element + 2 * s.beta_l) < s.V * s.h * element;
}
/// The head over D ranks with different tokens: shards that rotate.
inline Traffic head_rotated(const Setting& of, int D) {
  const Symbols s(of);
  Traffic traffic;
  traffic.forward[Purpose::head] = s.V * s.h * s.beta * (as_count(D) - 1);
  traffic.backward[Purpose::head] = s.V * s.h * (s.beta + s.beta_a) * (as_count(D) - 1);
  return traffic;
}
/// The head with X gathered; `kept`: until the backward pass.
inline Traffic head_gathered(const Setting& of, int D, bool kept = true) {
  const Symbols s(of);
  Traffic traffic;
  traffic.forward[Purpose::head] = s.B * s.S * (s.h * s.beta + 2 * s.beta_l) * (as_count(D) - 1);
  traffic.backward[Purpose::head] = s.BSh() * (s.beta_a + (kept ? 0 : s.beta)) * (as_count(D) - 1);
  return traffic;
}
/// The cheaper of the two.
inline Traffic head(const Setting& of, int D) { return head_gathers(of) ? head_gathered(of, D) : head_rotated(of, D); }

/// Embedding and head of plain tensor parallelism.
inline Traffic tp_embedding(const Setting& of, int T) {
  const Symbols s(of);
  Traffic traffic;
  traffic.forward[Purpose::embedding] = 2 * s.BSh() * s.beta * (as_count(T) - 1);
  return traffic;
}
inline Traffic tp_head(const Setting& of, int T) {
  const Symbols s(of);
  Traffic traffic;
  traffic.forward[Purpose::head] = 2 * s.B * s.S * s.beta_l * (as_count(T) - 1);
  traffic.backward[Purpose::head] = 2 * s.BSh() * s.beta * (as_count(T) - 1);
  return traffic;
}

/// Returns the elements of vectors of heads and MLP rows, which every rank has.
inline Count projection_elements(const Setting& of) {
  const ModelConfig& model = of.model;
  Count elements = model.head_bias ? model.vocabulary : 0;
  for (std::size_t number = 0; number < model.layers; ++number) {
    const LayerSpec& layer = model.layer(number);
    const Symbols s(layer_alone(of, layer));
    if (layer.biases.query) elements += s.a;
    if (layer.biases.key) elements += s.k;
    if (layer.biases.value) elements += s.k;
    if (layer.query_key_norm == QueryKeyNorm::heads) elements += s.own ? 2 * s.d : s.d;
    if (layer.query_key_norm == QueryKeyNorm::rows) elements += s.own ? s.a + s.k : s.a;
    if (layer.biases.up) elements += s.f;
  }
  return elements;
}
/// Returns all elements that every rank has: 2L + 1 norms (LayerNorm's may have a bias, too; four a layer where they stand around
/// sublayers, one where sublayers are side by side), biases, learned positions.
inline Count replicated_elements(const Setting& of) {
  const Symbols s(of);
  const ModelConfig& model = of.model;
  Count norms = 2 * s.L + 1;
  for (std::size_t number = 0; number < model.layers; ++number) {
    if (model.layer(number).norms == NormPlaces::around) norms += 2;
    if (model.layer(number).norms == NormPlaces::shared) norms -= 1;
  }
  Count elements = (model.norm == Norm::layer ? 2 : 1) * norms * s.h + projection_elements(of);
  for (std::size_t number = 0; number < model.layers; ++number) {
    if (model.layer(number).biases.output) elements += s.h;
    if (model.layer(number).biases.down) elements += s.h;
  }
  if (model.learned_positions) elements += model.max_positions * s.h;
  return elements;
}

}  // namespace tsprun::detail::formulas
