// Layout of one pass's tokens on a rank: B sequences of S tokens, cut by zigzag over the ranks of an axis. Rows of a rank's
// tensors [B, S_p, …] are its tokens, sequence by sequence, each in zigzag's own order.
//
// Under Megatron's sequence parallelism the ranks of the tensor axis cut these B·S_p rows once more, into *slices* that differ by
// at most one row: norms and residuals work on a slice, sublayers on all rows. A *holder* is a rank that has tokens of its own,
// numbered by (part, slice).
#pragma once

#include "core/collectives/chunks.h"
#include "core/rank/rank.h"
#include "layers/io/config.h"
#include "layers/layout/mesh.h"
#include "layers/layout/rotary_tables.h"
#include "layers/layout/zigzag.h"

#include <array>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Number of chunks of a sequence that a rank has.
inline constexpr std::size_t kHalves = 2;
/// A chunk of a sequence that a rank has.
struct LocalChunk {
  std::size_t start;  ///< position of its first token in the sequence
  std::size_t first;  ///< index of that token among the rank's own
  std::size_t count;
  std::size_t end() const { return start + count; }
};

/// The layout of B sequences of S tokens on one rank.
class TokenLayout {
 public:
  /// Describes rank `part` of the `parts` ranks that share each sequence, and slice `slice` of the `slices` that share its rows.
  /// Allocates the tables of rotations that layers of the model need. `longest`: tokens of the run's longest sequence, by which
  /// scalings of rotary positions choose, if it is longer than these. `packed`: sequences have several documents. Borrows `rank`
  /// and `config`, which must outlive it.
  TokenLayout(Rank& rank, const ModelConfig& config, DType dtype, std::size_t batch, std::size_t sequence, int part, int parts,
              int slice = 0, int slices = 1, std::size_t longest = 0, bool packed = false);
  /// Describes a rank of a mesh, in the same way.
  TokenLayout(Rank& rank, const Mesh& mesh, const ModelConfig& config, DType dtype, std::size_t batch, std::size_t sequence,
              std::size_t longest = 0, bool packed = false)
      : TokenLayout(rank, config, dtype, batch, sequence, mesh.place(mesh.layout().token_axis()), mesh.layout().sequence(),
                    mesh.layout().slices_tokens() ? mesh.place(mesh.layout().tensor_axis()) : 0,
                    mesh.layout().slices_tokens() ? mesh.layout().tensor() : 1, longest, packed) {}

  std::size_t batch() const { return batch_; }              ///< B
  std::size_t sequence() const { return cut_.sequence(); }  ///< S
  int part() const { return part_; }
  const Zigzag& cut() const { return cut_; }
  std::size_t local() const { return cut_.tokens(part_); }  ///< S_p
  std::size_t rows() const { return batch_ * local(); }     ///< B·S_p
  /// Returns how the B·S_p rows are cut over the slices.
  Chunks slices() const { return slices_of(part_); }
  /// Returns the two chunks of each sequence that this rank, or another, has; either may be empty.
  std::array<LocalChunk, kHalves> chunks() const { return chunks_of(part_); }
  std::array<LocalChunk, kHalves> chunks_of(int part) const;
  bool packed() const { return packed_; }  ///< whether sequences have several documents
  /// Returns the rotations of this rank's tokens, by their positions in the whole sequence; if sequences are packed, those of all
  /// positions 0 to S − 1, of which documents say which are the tokens' (packed_documents.h).
  const RotaryTables& rotations() const { return rotations_; }

  /// Returns the number of ranks that have different tokens.
  int holders() const { return cut_.ranks() * slice_count_; }
  /// Returns this rank's number among the holders.
  int holder() const { return part_ * slice_count_ + slice_; }
  /// Returns the number of tokens of a holder, over all sequences.
  std::size_t held_rows(int holder) const { return slices_of(holder / slice_count_).count(holder % slice_count_); }
  /// Returns the number of this rank's tokens, which is the number of rows of its residual.
  std::size_t held_rows() const { return held_rows(holder()); }
  /// Returns where this rank's rows begin among the B·S_p.
  std::size_t first_held() const { return slices().offset(slice_); }
  /// Returns a tensor of this rank's residual with `width` channels: [B, S_p, width], or [1, rows of the slice, width].
  OwnedTensor residual(Rank& rank, Category category, DType dtype, std::size_t width, std::string_view what) const;

  /// Returns a holder's part of values for all tokens, [B, S] in natural order.
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
  bool packed_;
  RotaryTables rotations_;  // of S_p tokens, or S
};

}  // namespace tsprun::detail
