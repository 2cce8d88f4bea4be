// K and V of some heads over whole sequences, gathered from the ranks that share them, and their gradients on the way back.
//
// A gathered bucket lies in natural order: [S, {K, V}, B, b·d] for b heads. Two gathers bring the zigzag chunks to their final
// places: one for the chunks of the first half of the sequence (rank p has number p) and one for the second (2D − 1 − p).
// Gradients leave the same way, summed in canonical order.
//
// Where a window hides keys (layers/layout/seen_keys.h), a bucket has the keys that this rank's queries see alone, and these come
// as messages, the last tokens of a chunk each, from and to ranks p − t and p + t for t = 1, 2, …. Gradients go back as such
// messages, and their owner sums them in the same canonical order, in which ranks that don't see a key have no term.
#pragma once

#include "core/rank/rank.h"
#include "layers/layout/seen_keys.h"
#include "layers/layout/token_layout.h"

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

namespace tsprun::detail {

/// A bucket. Order of calls: gather(), arrive(), and in the backward pass make_gradients(), scatter(), finish(), take_sum().
class KvBucket {
 public:
  /// Begins to gather `k` and `v` [B, S_p, b, d] of this rank's tokens, as far as `window` shows them to other ranks. They are
  /// copied, so the caller may change them.
  void gather(Rank& rank, Communicator& axis, const TokenLayout& tokens, std::size_t window, const ConstTensor& k,
              const ConstTensor& v);
  /// Returns whether gather() was called and K and V are still held.
  bool begun() const { return kv_.exists(); }
  /// Returns when K and V have arrived.
  void arrive(Rank& rank);
  /// Views of K and V, [B, keys, b, d]: of the keys that this rank takes.
  Tensor K() const { return part_of(kv_, 0); }
  Tensor V() const { return part_of(kv_, 1); }
  /// Returns which keys these are. Call it after gather().
  const SeenKeys& keys() const { return *keys_; }

  /// Allocates the gradients of K and V in the type of sums, and fills them with zeros.
  void make_gradients(Rank& rank);
  Tensor dK() const { return part_of(gradients_, 0); }
  Tensor dV() const { return part_of(gradients_, 1); }
  /// Frees K and V and begins to reduce-scatter their gradients to the ranks of their tokens.
  void scatter(Rank& rank, Communicator& axis, const TokenLayout& tokens);
  /// Returns when the sums have arrived.
  void finish(Rank& rank, const TokenLayout& tokens);
  /// Copies the summed gradient of this rank's tokens, of K (`which` 0) or V (1), to `to` [B, S_p, b, d]. Call it after finish().
  void take_sum(Rank& rank, const TokenLayout& tokens, std::size_t which, const Tensor& to) const;

 private:
  Tensor part_of(const OwnedTensor& both, std::size_t which) const;
  Tensor rows_of(const OwnedTensor& both, const TokenLayout& tokens, const LocalChunk& chunk) const;
  void send_seen(Communicator& axis, const TokenLayout& tokens);
  void send_gradients(Rank& rank, Communicator& axis, const TokenLayout& tokens);

  std::size_t head_dim_ = 0;
  std::optional<SeenKeys> keys_;
  OwnedTensor kv_;
  OwnedTensor gradients_;
  std::array<std::vector<OwnedTensor>, kHalves> terms_;  // of the gradients of this rank's chunks, in canonical order
  std::vector<Work> arriving_;
  std::vector<Work> leaving_;
};

/// Returns the number of K/V heads in a bucket: as many as `bytes` hold, K and V of whole sequences together, but at least one
/// and at most `heads`. `element`: bytes of an element.
std::size_t kv_bucket_heads(std::size_t bytes, std::size_t batch, std::size_t sequence, std::size_t head_dim, std::size_t element,
                            std::size_t heads);

}  // namespace tsprun::detail
