// Exact traffic, scheme by scheme: payload bytes received in one forward and one backward pass, summed over the ranks of the
// axis, by purpose. The sum is an integer that any correct schedule must meet to the byte. Bytes sent aren't counted, since they
// depend on the tree of a broadcast.
//
// Divided by the ranks, the counts of one block are the formulas of the table "Exact traffic" in docs/algorithms.md, with ρ =
// (D−1)/D. The table's m(D) and c(D) are counted head by head here, so the counts also hold where n_kv and D don't divide each
// other.
#pragma once

#include "layers/layout/setting.h"
#include "layers/schedules/head_plan.h"
#include "transport/message.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun::detail::theory {

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

/// Bytes received in a forward and a backward pass, by purpose.
struct Traffic {
  PurposeBytes forward;
  PurposeBytes backward;

  std::uint64_t total() const { return forward.total() + backward.total(); }
  Traffic& operator+=(const Traffic& other);
  /// Returns these bytes multiplied by `factor`.
  Traffic times(std::uint64_t factor) const;
  bool operator==(const Traffic&) const = default;
};

// --- one block (attention and MLP, without its norm gains), over all ranks of the axes ---------------------------------------

/// Returns TSP's traffic: weights are broadcast (attention) or rotated (MLP), their gradients summed to their owners, K/V
/// gathered and dK/dV scattered. No recomputation mode adds to it.
Traffic tsp_block(const Setting& setting, int ranks);
/// Returns plain tensor parallelism's traffic: four all-reduces of [B, S, h], two in each pass, and the sums of the gradients of
/// K/V heads that are copied.
Traffic tp_block(const Setting& setting, int ranks);
/// Returns the traffic of Megatron's sequence parallelism. In backward the gathered inputs are gathered once more, unless they
/// were kept.
Traffic tp_sequence_block(const Setting& setting, int ranks, bool gathered_inputs_kept);
/// Returns the traffic of sequence parallelism that gathers K and V (`--sp gather`).
Traffic sp_gather_block(const Setting& setting, int ranks);
/// Returns the traffic of ring attention (`--sp ring`). Full recomputation adds one round of K and V.
Traffic sp_ring_block(const Setting& setting, int ranks);
/// Returns the traffic of Ulysses (`--sp ulysses`). If several ranks read a K/V head, its gradients are summed, so dK and dV
/// travel with β_a bytes an element. Δ of the backward pass isn't included; it is counted as `other` (other.h).
Traffic sp_ulysses_block(const Setting& setting, int ranks);
/// Returns the traffic of tensor parallelism over T ranks with an all-gather of K/V over Σ, summed over all T·Σ ranks.
Traffic tp_sp_block(const Setting& setting, int tensor_ranks, int sequence_ranks);
/// Returns the traffic of ZeRO-3 and `--sp gather` over the same ranks; equal to TSP's.
Traffic zero3_block(const Setting& setting, int ranks);
/// Returns data parallelism's traffic: gradients of whole blocks, all-reduced. Independent of the batch.
Traffic dp_block(const Setting& setting, int ranks);

// --- what else a model has, where the tokens differ between the ranks of one axis --------------------------------------------

/// Returns the traffic of all-reducing one norm gain's gradient.
Traffic norm_gain(const Setting& setting, int ranks);
/// Returns the embedding's traffic. `remote_rows` is R, the number of tokens whose embedding row lives on another rank, as
/// counted from the ids.
Traffic embedding(const Setting& setting, std::uint64_t remote_rows);

/// Returns the output head's traffic. `gathered_kept`: whether gathered activations are kept for backward rather than gathered
/// again; ignored by rotate_weights.
Traffic head(const Setting& setting, int ranks, HeadPlan plan, bool gathered_kept = true);
/// Returns the traffic of the vocabulary-parallel embedding, or output head, of plain tensor parallelism.
Traffic tp_embedding(const Setting& setting, int ranks);
Traffic tp_head(const Setting& setting, int ranks);

/// Returns the traffic of a whole training step under TSP: blocks, norm gains (with biases and learned positions, if there are
/// any), embedding and head.
Traffic tsp_step(const Setting& setting, int ranks, std::uint64_t remote_rows);

// --- one rank's part ---------------------------------------------------------------------------------------------------------

/// Path of sums to their owner: read from every peer at the end, or passed on around the ring. The totals over ranks are the
/// same.
enum class SumPath { direct, ring };
/// Returns the part of tsp_block() that `rank` receives. `attention` is the path of attention's weight gradients and of dK/dV;
/// the MLP's weight gradients always go round the ring.
Traffic tsp_block_of_rank(const Setting& setting, int ranks, int rank, SumPath attention);

/// Returns the number of tokens B·S from which on TSP moves no more than TP, if K/V heads aren't copied: in forward and backward,
/// or in forward only. Infinity if it never does. Independent of D.
double tsp_tp_break_even(const Setting& setting, bool with_backward);

}  // namespace tsprun::detail::theory
