// How the tokens of one pass lie on a rank: B sequences of S tokens, cut by zigzag over the ranks of an axis. Rows of a rank's
// tensors [B, S_p, …] are its tokens, sequence by sequence, each in zigzag's own order.
//
// Under Megatron's sequence parallelism the ranks of the tensor axis cut these B·S_p rows once more, into *slices* that differ by
// at most one row: norms and residuals work on a slice, sublayers on all rows. A *holder* is a rank that has tokens of its own.
#pragma once

#include "core/collectives/chunks.h"
#include "core/rank/rank.h"
#include "layers/model/config.h"
#include "layers/zigzag.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun {

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
  /// `part` of `parts` ranks that share each sequence; `slice` of `slices` that share its rows. Takes the memory of the rotation
  /// table, if the model rotates.
  TokenLayout(Rank& rank, const ModelConfig& config, DType dtype, std::size_t batch, std::size_t sequence, int part, int parts,
              int slice = 0, int slices = 1);

  std::size_t batch() const { return batch_; }              ///< B
  std::size_t sequence() const { return cut_.sequence(); }  ///< S
  int part() const { return part_; }
  const Zigzag& cut() const { return cut_; }
  std::size_t local() const { return cut_.tokens(part_); }  ///< S_p
  std::size_t rows() const { return batch_ * local(); }     ///< B·S_p
  /// How the B·S_p rows are cut over the slices.
  Chunks slices() const { return slices_of(part_); }
  std::size_t head_dim() const { return head_dim_; }  ///< d
  /// This rank's chunks of each sequence, either of which may be empty.
  std::array<LocalChunk, kHalves> chunks() const { return chunks_of(part_); }
  std::array<LocalChunk, kHalves> chunks_of(int part) const;
  /// RoPE at the global positions of this rank's tokens: x [B, S_p, heads, d] in place. Nothing where positions are learned.
  void rotate(ComputeStream& compute, const Tensor& x, kernels::Rotation rotation) const {
    if (rope_.exists()) compute.rope(x, rope_, rotation);
  }

  int holders() const { return cut_.ranks() * slice_count_; }
  int holder() const { return part_ * slice_count_ + slice_; }
  /// Tokens of a holder, over all sequences.
  std::size_t held_rows(int holder) const { return slices_of(holder / slice_count_).count(holder % slice_count_); }
  /// Those of this rank: the rows of its residual.
  std::size_t held_rows() const { return held_rows(holder()); }
  /// Where they begin among the B·S_p.
  std::size_t first_held() const { return slices().offset(slice_); }
  /// A tensor of this rank's residual, of so many channels: [B, S_p, width], or [1, rows of the slice, width].
  OwnedTensor residual(Rank& rank, Category category, DType dtype, std::size_t width, std::string_view what) const;

  /// Takes a holder's tokens out of [B, S] in natural order.
  template <class T>
  std::vector<T> take(int holder, std::span<const T> natural) const {
    const int part = holder / slice_count_;
    const std::size_t count = cut_.tokens(part);
    std::vector<T> rows(batch_ * count);
    for (std::size_t b = 0; b < batch_; ++b) {
      cut_.cut(part, natural.subspan(b * sequence(), sequence()), std::span(rows).subspan(b * count, count));
    }
    if (slice_count_ == 1) return rows;
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(slices_of(part).offset(holder % slice_count_));
    return {first, first + static_cast<std::ptrdiff_t>(held_rows(holder))};
  }

 private:
  Chunks slices_of(int part) const { return Chunks::balanced(slice_count_, batch_ * cut_.tokens(part)); }

  std::size_t batch_;
  int part_;
  int slice_;
  int slice_count_;
  Zigzag cut_;
  std::size_t head_dim_;
  OwnedTensor rope_;  // [S_p, d]
};

}  // namespace tsprun
