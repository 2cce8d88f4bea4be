// How the tokens of one pass lie on a rank: B sequences of S tokens, cut by zigzag over the ranks of an axis. Rows of a rank's
// tensors [B, S_p, …] are its tokens, sequence by sequence, each in zigzag's own order.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/config.h"
#include "layers/zigzag.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tsp {

/// A rank's tokens lie in two stretches of the sequence.
inline constexpr std::size_t kHalves = 2;
struct LocalChunk {
  std::size_t start;  ///< position of its first token in the sequence
  std::size_t first;  ///< the same token among the rank's own
  std::size_t count;
  std::size_t end() const { return start + count; }
};

class TokenLayout {
 public:
  /// `part` of `parts` ranks that share each sequence. Takes the memory of the rotation table.
  TokenLayout(Rank& rank, const ModelConfig& config, DType dtype, std::size_t batch, std::size_t sequence, int part, int parts);

  std::size_t batch() const { return batch_; }              ///< B
  std::size_t sequence() const { return cut_.sequence(); }  ///< S
  int part() const { return part_; }
  const Zigzag& cut() const { return cut_; }
  std::size_t local() const { return cut_.tokens(part_); }  ///< S_p
  std::size_t rows() const { return batch_ * local(); }     ///< B·S_p
  /// This rank's chunks of each sequence, either of which may be empty.
  std::array<LocalChunk, kHalves> chunks() const { return chunks_of(part_); }
  std::array<LocalChunk, kHalves> chunks_of(int part) const;
  /// [S_p, d]: RoPE at the global positions of this rank's tokens.
  const Tensor& rope_table() const { return rope_; }
  /// Takes `part`'s tokens out of [B, S] in natural order.
  template <class T>
  std::vector<T> take(int part, std::span<const T> natural) const {
    const std::size_t count = cut_.tokens(part);
    std::vector<T> rows(batch_ * count);
    for (std::size_t b = 0; b < batch_; ++b) {
      cut_.cut(part, natural.subspan(b * sequence(), sequence()), std::span(rows).subspan(b * count, count));
    }
    return rows;
  }

 private:
  std::size_t batch_;
  int part_;
  Zigzag cut_;
  OwnedTensor rope_;
};

}  // namespace tsp
