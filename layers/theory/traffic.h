// Exact traffic: payload bytes received in one forward and one backward pass, summed over the ranks of the axis, by purpose. The
// sum is an integer that any correct schedule must meet to the byte; what a rank sends depends on a broadcast's tree and isn't
// counted. Per rank and layer the means are the table's, with ρ = (D−1)/D; its m(D) and c(D) are here counted head by head, so
// they also hold where n_kv and D don't divide each other.
#pragma once

#include "layers/theory/setting.h"
#include "transport/message.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun::theory {

/// Bytes by purpose.
class PurposeBytes {
 public:
  std::uint64_t& operator[](Purpose purpose) { return bytes_[static_cast<std::size_t>(purpose)]; }
  std::uint64_t operator[](Purpose purpose) const { return bytes_[static_cast<std::size_t>(purpose)]; }
  std::uint64_t total() const;
  bool operator==(const PurposeBytes&) const = default;

 private:
  std::array<std::uint64_t, kPurposes> bytes_{};
};

struct Traffic {
  PurposeBytes forward;
  PurposeBytes backward;

  std::uint64_t total() const { return forward.total() + backward.total(); }
  Traffic& operator+=(const Traffic& other);
  Traffic times(std::uint64_t factor) const;
  bool operator==(const Traffic&) const = default;
};

// --- one block (attention and MLP, without its norm gains), over all ranks of the axes ---------------------------------------

/// Weights broadcast and rotated, gradients summed to their owners, K/V gathered and dK/dV scattered. No recomputation adds to
/// it.
Traffic tsp_block(const Setting& setting, int ranks);
/// Four all-reduces of [B, S, h]; the gradients of copied K/V heads are summed.
Traffic tp_block(const Setting& setting, int ranks);
/// Megatron's sequence parallelism; in backward the gathered inputs were kept, or are gathered once more.
Traffic tp_sequence_block(const Setting& setting, int ranks, bool gathered_inputs_kept);
Traffic sp_gather_block(const Setting& setting, int ranks);
Traffic sp_ring_block(const Setting& setting, int ranks);
/// Ulysses. K/V heads that several ranks read have their gradients summed, hence in β_a.
Traffic sp_ulysses_block(const Setting& setting, int ranks);
/// Tensor parallelism over T ranks, K/V all-gather over Σ; the sum is over all T·Σ ranks.
Traffic tp_sp_block(const Setting& setting, int tensor_ranks, int sequence_ranks);
/// ZeRO-3 and all-gather sequence parallelism over the same ranks.
Traffic zero3_block(const Setting& setting, int ranks);
/// Gradients of whole blocks, all-reduced. (B doesn't matter.)
Traffic dp_block(const Setting& setting, int ranks);

// --- what else a model has, where the tokens differ between the ranks of one axis --------------------------------------------

/// All-reduce of one norm gain's gradient.
Traffic norm_gain(const Setting& setting, int ranks);
/// `remote_rows`: tokens whose embedding row lives on another rank, R, counted from the ids.
Traffic embedding(const Setting& setting, std::uint64_t remote_rows);

enum class HeadPlan { rotate_weights, gather_activations };
/// Whichever moves less: activations are gathered iff BS·(h(2β+β_a) + 2β_l) < V·h·(2β+β_a). Made once for forward and backward.
HeadPlan head_plan(const Setting& setting);
/// With gathered activations: whether backward still has them, or gathers them again.
Traffic head(const Setting& setting, int ranks, HeadPlan plan, bool gathered_kept = true);
/// Vocabulary-parallel embedding and head of plain tensor parallelism.
Traffic tp_embedding(const Setting& setting, int ranks);
Traffic tp_head(const Setting& setting, int ranks);

/// A whole training step under TSP: blocks, norm gains (with biases and learned positions, where there are any), embedding, head.
Traffic tsp_step(const Setting& setting, int ranks, std::uint64_t remote_rows);

// --- one rank's part ---------------------------------------------------------------------------------------------------------

/// How sums reach their owner: read from every peer at the end, or handed on around the ring. Totals are the same.
enum class SumPath { direct, ring };
/// What `rank` receives of tsp_block(). `attention` tells how dW of attention and dK/dV travel; those of the MLP always go the
/// ring.
Traffic tsp_block_of_rank(const Setting& setting, int ranks, int rank, SumPath attention);

/// Tokens B·S from which TSP moves no more than TP, if K/V heads aren't copied: 0 at once, infinity never. Independent of D.
double tsp_tp_break_even(const Setting& setting, bool with_backward);

}  // namespace tsprun::theory
