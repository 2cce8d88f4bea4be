// K and V of some heads over whole sequences, gathered from the ranks that share them, and their gradients on the way back.
//
// A gathered bucket lies in natural order: [S, {K, V}, B, b·d]. Its zigzag chunks arrive where they belong, by two gathers: of
// the chunks of the first half (rank p's is number p) and of the second (2D − 1 − p). Gradients leave the same way, summed in
// canonical order.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/token_layout.h"

#include <array>
#include <cstddef>

namespace tsprun {

class KvBucket {
 public:
  /// Begins to gather `k` and `v` [B, S_p, b, d] of this rank's tokens, which are copied.
  void gather(Rank& rank, Communicator& axis, const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v);
  bool begun() const { return kv_.exists(); }
  /// Returns when K and V are here.
  void arrive(Rank& rank);
  /// [B, S, b, d]
  Tensor K() const { return part_of(kv_, 0); }
  Tensor V() const { return part_of(kv_, 1); }

  /// Gradients become zeros in the type of sums.
  void make_gradients(Rank& rank);
  Tensor dK() const { return part_of(gradients_, 0); }
  Tensor dV() const { return part_of(gradients_, 1); }
  /// K and V aren't needed any more; the gradients begin to go to their tokens' ranks.
  void scatter(Communicator& axis, const TokenLayout& tokens);
  /// Returns when the sums are here.
  void finish(Rank& rank);
  /// After finish(): the sum for this rank's tokens, of K (0) or V (1), goes `to` [B, S_p, b, d].
  void take_sum(Rank& rank, const TokenLayout& tokens, std::size_t which, const Tensor& to) const;

 private:
  Tensor part_of(const OwnedTensor& both, std::size_t which) const;

  std::size_t head_dim_ = 0;
  OwnedTensor kv_;
  OwnedTensor gradients_;
  std::array<Work, kHalves> arriving_;
  std::array<Work, kHalves> leaving_;
};

/// K/V heads in a bucket: as many as 64 MiB hold, K and V of whole sequences; at least one, at most `heads`.
std::size_t kv_bucket_heads(std::size_t batch, std::size_t sequence, std::size_t head_dim, std::size_t element,
                            std::size_t heads);

}  // namespace tsprun
