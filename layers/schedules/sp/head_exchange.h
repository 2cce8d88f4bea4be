// The exchange of tokens for heads, an all_to_all over the ranks that share sequences, and its inverse.
//
//   tokens [B, S_p, all heads, e]   ⇄   heads [S, B, own heads, e], natural order
//
// There are two exchanges, one per half of the sequence: the chunks of the first half (rank p has number p) in the order of
// ranks, those of the second (2D − 1 − p) in reverse order, so that in both the chunks of [S, …] are contiguous in the order in
// which they are sent or received.
#pragma once

#include "layers/layout/heads.h"
#include "layers/schedules/sp/sequence_attention.h"

#include <array>
#include <cstddef>
#include <vector>

namespace tsprun::detail {

/// Ranges of heads by rank. Several ranks may have the same head.
using HeadRanges = std::vector<HeadRange>;

/// Exchanges tensors whose element has e numbers per token and head.
class HeadExchange {
 public:
  /// Borrows the axis's rank and group.
  explicit HeadExchange(const SequenceAxis& axis);

  /// An exchange under way. `packed` is what is sent or what arrives, in the order of the half's group: a chunk [tokens, B,
  /// heads, e] per rank.
  struct Move {
    std::array<OwnedTensor, kHalves> packed;
    std::array<Work, kHalves> work;
  };
  /// Begins to send `all` [B, S_p, heads of all ranks, e] of this rank's tokens and to receive `whole` [S, B, own heads, e],
  /// which is complete after wait().
  Move to_heads(const TokenLayout& tokens, const Tensor& whole, const ConstTensor& all, const HeadRanges& of,
                const CallOptions& options);
  /// Begins to send `whole` [S, B, own heads, e] back to the ranks of its tokens; unpack() completes it.
  Move to_tokens(const TokenLayout& tokens, const Tensor& whole, const HeadRanges& of, const CallOptions& options);
  void wait(const Move& move) const;
  /// Waits for to_tokens() and writes what arrived to `all` [B, S_p, heads of all ranks, e]. If heads are on several ranks
  /// (`copied`), they are summed over ranks p + 1, p + 2, …, p.
  void unpack(const TokenLayout& tokens, const Tensor& all, Move& move, const HeadRanges& of, bool copied) const;

 private:
  /// Elements of one half's exchange with each member of its group.
  struct Counts {
    std::vector<std::size_t> own_tokens;  // this rank's tokens, the member's heads
    std::vector<std::size_t> own_heads;   // the member's tokens, this rank's heads
  };
  Counts counts(const TokenLayout& tokens, std::size_t half, const HeadRanges& of, std::size_t e) const;
  Communicator& group(std::size_t half) { return half == 0 ? axis_.group : reversed_; }
  int member(std::size_t half, int i) const { return half == 0 ? i : axis_.D() - 1 - i; }

  SequenceAxis axis_;
  Communicator reversed_;
};

}  // namespace tsprun::detail
