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
  Count h, L, n_h, n_kv, d, f, V;
  Count a, k, g;               // n_h·d, n_kv·d, query heads for a K/V head
  Count matrices;              // of an MLP: W1, W3, W2; without a gate two
  Count beta, beta_a, beta_l;  // bytes of an element, of an accumulated one, of a log-sum-exp
  bool tied;
  Recompute recompute;

  explicit Symbols(const Setting& of, int data = 1)
      : B(of.batch / (as_count(data) * of.micro_batches)),
        S(of.sequence),
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
        matrices(of.model.mlp == Mlp::swiglu ? 3 : 2),
        beta(of.bytes.element),
        beta_a(of.bytes.accumulated),
        beta_l(of.bytes.lse),
        tied(of.model.tied_embeddings),
        recompute(of.recompute) {}

  Count P_attn() const { return 2 * h * d * (n_h + n_kv); }
  Count P_mlp() const { return matrices * f * h; }
  Count P_L() const { return P_attn() + P_mlp(); }
  Count KV() const { return 2 * B * S * n_kv * d; }
  Count BSh() const { return B * S * h; }
};

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
inline Count copied_elements(const Symbols& s, int T) { return 2 * s.h * s.d * (copies_read(s, T) - s.n_kv); }

// --- the table "Exact traffic": one block ------------------------------------------------------------------------------------

/// K/V gathered forward and backward, and dK/dV scattered to their tokens' ranks, over D ranks in each of T slices.
inline Traffic kv_gathered(const Symbols& s, int D, int T = 1) {
  const Count kv = 2 * s.B * s.S * s.d * copies_read(s, T) * (as_count(D) - 1);
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

/// TP's activations, and those sums.
inline Traffic slices_summed(const Symbols& s, int T, bool gathered_again, int groups = 1) {
  Traffic traffic;
  const Count moved = s.BSh() * s.beta * (as_count(T) - 1);
  traffic.forward[Purpose::activations] = 4 * moved;
  traffic.backward[Purpose::activations] = (gathered_again ? 6 : 4) * moved;
  traffic.backward[Purpose::gradients] = copies_summed(s, T, groups);
  return traffic;
}

/// Ring attention's K/V; full recomputation needs all of K and V once more before backward's own round begins.
inline Traffic kv_round_the_ring(const Symbols& s, int D, int T = 1) {
  Traffic traffic = kv_gathered(s, D, T);
  if (s.recompute == Recompute::full) traffic.backward[Purpose::kv] += traffic.forward[Purpose::kv];
  return traffic;
}

/// Ulysses: for every token, heads go to the ranks that compute them: Q there and O back, K and V there; dO there and dQ back, dK
/// and dV back, in β_a bytes where several ranks' terms of a head are summed. Δ isn't in the table; it is counted as `other`.
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
      k += others_tokens * read_by(s, own).count;
      dk += others_tokens * read_by(s, own).count * (summed ? s.beta_a : s.beta);
    }
  }
  Traffic traffic;
  const Count forward = (2 * q + 2 * k) * s.beta;
  traffic.forward[Purpose::activations] = forward;
  traffic.backward[Purpose::activations] = 2 * q * s.beta + 2 * dk;
  if (s.recompute == Recompute::selective) traffic.backward[Purpose::activations] += (q + 2 * k) * s.beta;
  if (s.recompute == Recompute::full) traffic.backward[Purpose::activations] += forward;
  return traffic;
}

inline Traffic tsp_block(const Setting& of, int D) {
  const Symbols s(of);
  return weights_shared(s, D) + kv_gathered(s, D);
}
/// ZeRO-3 with `--sp gather` over the same ranks: (P_L + KV)·β·ρ and (P_L + KV)(β + β_a)ρ.
inline Traffic zero3_block(const Setting& of, int D) {
  const Symbols s(of);
  const Count both = (s.P_L() + s.KV()) * (as_count(D) - 1);
  const Count kv = s.KV() * (as_count(D) - 1);
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

/// Returns the elements that every rank has: 2L + 1 norms (LayerNorm's have a bias, too), biases, learned positions.
inline Count replicated_elements(const Setting& of) {
  const Symbols s(of);
  const ModelConfig& model = of.model;
  Count elements = (model.norm == Norm::layer ? 2 : 1) * (2 * s.L + 1) * s.h;
  if (model.biases.query_key_value) elements += s.L * (s.a + 2 * s.k);
  if (model.biases.output) elements += s.L * s.h;
  if (model.biases.up) elements += s.L * s.f;
  if (model.biases.down) elements += s.L * s.h;
  if (model.positions == PositionEncoding::learned) elements += model.max_positions * s.h;
  return elements;
}

// --- a whole step under any layout -------------------------------------------------------------------------------------------

/// Degrees and ways of a layout, as they are written.
struct Degrees {
  int dp, T, D;
  bool tsp, zero3, sequence;
  SequenceExchange exchange;

  explicit Degrees(const Layout& of)
      : dp(of.degree(AxisKind::dp)),
        T(of.degree(AxisKind::tp)),
        D(of.degree(AxisKind::sp) * of.degree(AxisKind::tsp) * of.degree(AxisKind::zero3)),
        tsp(of.degree(AxisKind::tsp) > 1),
        zero3(of.degree(AxisKind::zero3) > 1),
        sequence(T > 1 && static_cast<TensorExchange>(of.variant(AxisKind::tp)) == TensorExchange::sequence),
        exchange(static_cast<SequenceExchange>(of.variant(AxisKind::sp))) {}
  /// Returns whether ranks have parts of the weights that all of them compute with.
  bool shares_weights() const { return tsp || zero3; }
  bool plain_tensor() const { return T > 1 && !sequence; }
  /// Returns the number of ranks over which the vocabulary's rows are cut, and of ranks with copies of them.
  int cutters() const { return plain_tensor() ? T : sequence ? T * D : D; }
  int copies() const { return plain_tensor() ? D : 1; }
};

/// Returns R of one replica if every rank's tokens are spread evenly over the vocabulary's parts: of BS tokens of a micro-batch
/// BS − BS/n for n parts.
inline Count even_remote_rows(const Setting& of, const Layout& layout) {
  const Symbols s(of, Degrees(layout).dp);
  return of.micro_batches * (s.B * s.S - s.B * s.S / as_count(Degrees(layout).cutters()));
}

/// Returns what a block of one replica moves with each micro-batch. Sums of owned gradients are complete with each.
inline Traffic block_of_micro_batch(const Symbols& s, const Degrees& n) {
  Traffic traffic;
  if (n.D > 1) {
    if (n.shares_weights()) traffic += weights_shared(s, n.D, n.T);
    if (n.shares_weights() || n.exchange == SequenceExchange::gather) traffic += kv_gathered(s, n.D, n.T);
    else if (n.exchange == SequenceExchange::ring) traffic += kv_round_the_ring(s, n.D, n.T);
    else traffic += heads_exchanged(s, n.D, n.T);
  }
  if (n.T > 1) traffic += slices_summed(s, n.T, n.sequence, 0);
  return traffic;
}

/// Returns what a block of one replica moves once a step: gradients of weights, and of K/V heads, that ranks have copies of.
inline Traffic block_of_step(const Symbols& s, const Degrees& n) {
  Traffic traffic;
  if (n.D > 1 && !n.shares_weights()) traffic += gradients_summed(s, n.D, n.T);
  if (n.T > 1) traffic.backward[Purpose::gradients] += copies_summed(s, n.T, n.shares_weights() ? 1 : n.D);
  return traffic;
}

/// Returns the traffic of a training step, but for `other`, for which ranks choose algorithms. `remote_rows`: R of one replica,
/// of all its micro-batches; not used under plain tp.
inline Traffic step(const Setting& of, const Layout& layout, Count remote_rows) {
  const Degrees n(layout);
  Setting part = of;  // a micro-batch
  part.batch /= as_count(n.dp) * of.micro_batches;
  part.micro_batches = 1;
  const Symbols s(part);
  Traffic each = block_of_micro_batch(s, n) * s.L;
  Traffic once = block_of_step(s, n) * s.L;
  if (n.plain_tensor()) {
    each += tp_embedding(part, n.T) + tp_head(part, n.T);
  } else if (n.cutters() > 1) {
    each += head(part, n.cutters());
    once += embedding(part, remote_rows);
  }
  // Copies of the vocabulary's rows: gradients of each are summed.
  const Count rows = s.V * s.h;
  once.backward[Purpose::embedding] += summed_over(s, rows, n.copies());
  if (!s.tied) once.backward[Purpose::head] += summed_over(s, rows, n.copies());

  Traffic all = (each * of.micro_batches + once) * as_count(n.dp);
  // dp: gradients of all that the ranks of a replica hold.
  const Count block_elements = (s.P_L() + copied_elements(s, n.T)) * (n.shares_weights() ? 1 : as_count(n.D));
  all.backward[Purpose::gradients] += summed_over(s, s.L * block_elements, n.dp);
  all.backward[Purpose::embedding] += summed_over(s, rows * as_count(n.copies()), n.dp);
  if (!s.tied) all.backward[Purpose::head] += summed_over(s, rows * as_count(n.copies()), n.dp);
  return all;
}

/// Returns a whole step under TSP, norm gains, biases and learned positions among it.
inline Traffic tsp_step(const Setting& of, int D, Count remote_rows) {
  Traffic traffic = step(of, Layout::tsp(D), remote_rows);
  traffic.backward[Purpose::other] += summed_over(Symbols(of), replicated_elements(of), D);
  return traffic;
}

/// Returns R for ids [B, S] in natural order, in one replica. Rows are cut over the ranks with different tokens; with T slices of
/// tokens these are numbered (sequence, tensor), and a slice is a part of a rank's B·S_p rows.
inline Count remote_rows(std::span<const std::int32_t> ids, const Setting& of, const Layout& layout) {
  const Degrees n(layout);
  const int T = n.sequence ? n.T : 1;
  const Count S = of.sequence;
  std::vector<std::vector<Count>> ids_of(static_cast<std::size_t>(n.D));  // of each rank of the sequence axis
  for (std::size_t b = 0; b < ids.size() / S; ++b) {
    for (int p = 0; p < n.D; ++p) {
      for (Count position = 0; position < S; ++position) {
        if (owner_of(S, n.D, position) == p)
          ids_of[static_cast<std::size_t>(p)].push_back(static_cast<Count>(ids[b * S + position]));
      }
    }
  }
  Count remote = 0;
  for (int holder = 0; holder < n.D * T; ++holder) {
    const Count first = begin_of(of.model.vocabulary, n.D * T, holder);
    const Count end = first + part_of(of.model.vocabulary, n.D * T, holder);
    const std::vector<Count>& all = ids_of[static_cast<std::size_t>(holder / T)];
    const Count begin = begin_of(all.size(), T, holder % T);
    for (Count i = begin; i < begin + part_of(all.size(), T, holder % T); ++i) remote += all[i] < first || all[i] >= end;
  }
  return remote;
}

// --- memory of one rank: t on the tensor axis, p among the ranks with other tokens -------------------------------------------

/// Returns the parameters that a rank holds, in elements.
inline Count held_elements(const Setting& of, const Layout& layout, int t, int p) {
  const Symbols s(of);
  const Degrees n(layout);
  const Heads slice = queries_of(s, n.T, t);
  const Count slice_rows = part_of(s.f, n.T, t);
  Count attention = 0;  // of one layer
  Count mlp = s.matrices * slice_rows * s.h;
  if (n.tsp) {
    // A K/V head lies with the owner of the first of the slice's query heads that read it.
    const Heads own{slice.first + begin_of(slice.count, n.D, p), part_of(slice.count, n.D, p)};
    Count kv = 0;
    for (Count head = read_by(s, slice).first; head < read_by(s, slice).end(); ++head) {
      const Count reader = head * s.g < slice.first ? slice.first : head * s.g;
      kv += reader >= own.first && reader < own.end();
    }
    attention = 2 * (own.count + kv) * s.d * s.h;
    mlp = s.matrices * part_of(slice_rows, n.D, p) * s.h;
  } else {
    attention = 2 * (slice.count + read_by(s, slice).count) * s.d * s.h;
    if (n.zero3) {  // rows of width h, whatever they belong to
      attention = part_of(attention / s.h, n.D, p) * s.h;
      mlp = part_of(mlp / s.h, n.D, p) * s.h;
    }
  }
  const int cutter = n.plain_tensor() ? t : n.sequence ? p * n.T + t : p;
  return s.L * (attention + mlp) + (s.tied ? 1 : 2) * part_of(s.V, n.cutters(), cutter) * s.h + replicated_elements(of);
}

/// Returns the bytes that a layer saves for each local token: the table "Saved bytes per local token and layer".
inline Count saved_bytes_per_token(const Setting& of) {
  const Symbols s(of);
  const Count pre_activations = (s.matrices - 1) * s.f;
  switch (s.recompute) {
    case Recompute::none: return s.beta * (2 * s.h + 2 * s.a + 2 * s.k + pre_activations) + s.beta_l * s.n_h;
    case Recompute::selective: return s.beta * (2 * s.h + s.a) + s.beta_l * s.n_h;
    case Recompute::full: return s.beta * 2 * s.h;
  }
  return 0;
}

/// Returns the bytes of the activation category of a rank whose tokens have all heads and rows: B·S_p·(L·saved + hβ for the final
/// residual + β_l for the head's log-sum-exp) + ids. `id_bytes`: bytes of ids and labels per token.
inline Count activation_bytes(const Setting& of, Count local_tokens, Count id_bytes) {
  const Symbols s(of);
  return s.B * local_tokens * (s.L * saved_bytes_per_token(of) + s.h * s.beta + s.beta_l + id_bytes);
}

/// Returns the same for any rank of a layout: x1, x2, the final residual, log-sum-exp and ids of the tokens between sublayers,
/// the rest of the heads and rows that the rank computes. Ulysses keeps q, k, v and log-sum-exps of its heads over whole
/// sequences.
inline Count activation_bytes(const Setting& of, const Layout& layout, int t, int p, Count id_bytes) {
  const Degrees n(layout);
  const Symbols s(of, n.dp);
  const Heads queries = queries_of(s, n.T, t);
  const Count rows = s.B * tokens_of(s.S, n.D, p);
  const Count between = n.sequence ? part_of(rows, n.T, t) : rows;
  const Count pre_activations = (s.matrices - 1) * part_of(s.f, n.T, t);
  Count inside = 0;  // of one layer
  const bool by_heads = n.D > 1 && !n.shares_weights() && n.exchange == SequenceExchange::ulysses;
  const Heads computed =
      by_heads ? Heads{queries.first + begin_of(queries.count, n.D, p), part_of(queries.count, n.D, p)} : queries;
  const Count seen = by_heads ? s.B * s.S : rows;
  if (s.recompute != Recompute::full) inside += rows * queries.count * s.d * s.beta + seen * computed.count * s.beta_l;
  if (s.recompute == Recompute::none) {
    inside += seen * (computed.count + 2 * read_by(s, computed).count) * s.d * s.beta + rows * pre_activations * s.beta;
  }
  return s.L * (inside + between * 2 * s.h * s.beta) + between * (s.h * s.beta + s.beta_l + id_bytes);
}

}  // namespace tsprun::detail::formulas
