// Packed operands of flash attention's forward and the two products of a tile, which is one panel of queries on a tile of keys.
// WidePanels computes in the type of sums, T, into which bf16 is widened; PairPanels computes bf16 operands in bf16 units. Both
// have the same functions. They live in workspace, and use one thread's part of it each.
#pragma once

#include "core/kernels/flash_pairs.h"
#include "core/kernels/flash_panels.h"
#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <algorithm>
#include <cstddef>

namespace tsprun::detail::kernels::flash {

/// Panels in f32 or f64.
template <class T>
class WidePanels {
 public:
  using Sum = T;
  /// Takes workspace for blocks of `queries` queries and tiles of `keys` keys.
  WidePanels(Carver& carver, std::size_t queries, std::size_t keys, std::size_t head_dim)
      : d_(head_dim),
        padded_d_(round_up(head_dim, width_.head)),
        q_(carver.take<T>(queries * most_padded<T>(head_dim))),
        k_(carver.take<T>(keys * most_padded<T>(head_dim))),
        v_(carver.take<T>(keys * most_padded<T>(head_dim))) {}

  /// Returns the head dim rounded up to the width in which outputs are stored.
  std::size_t padded_d() const { return padded_d_; }
  /// Packs a block's queries [queries, d].
  void pack_queries(const ConstTensor& q) { pack_transposed(q_, width_.tile, q); }
  /// Packs a tile's keys and values [keys, d].
  void pack_keys(const ConstTensor& k, const ConstTensor& v) {
    packed_ = k.size(0);
    pack_panels(k_, padded_d_, k);
    pack_panels(v_, width_.head, v);
  }
  /// Returns whether the packed values are all finite.
  bool finite_values() const { return all_finite(v_, packed_ * padded_d_); }

  /// Computes q·k, [keys, tile width], of `keys` keys from the tile's key `first` on, which is even, and `vectors` vectors of
  /// queries from `query` on, which is a multiple of the tile's width.
  void scores(T* scores, std::size_t query, std::size_t first, std::size_t keys, std::size_t vectors) const {
    multiply({.rows = keys,
              .columns = vectors * width_.lanes,
              .depth = d_,
              .a = k_ + first * padded_d_,
              .a_step = padded_d_,
              .b = q_ + query * d_,
              .b_step = width_.tile,
              .c = scores,
              .c_step = width_.tile});
  }
  /// Takes probabilities [keys, tile width] of `queries` queries and the keys from the tile's key `first` on, which is even, for
  /// add_values(), where they must still be then.
  void take_probabilities(const T* probabilities, std::size_t first, std::size_t /* keys */, std::size_t /* queries */) {
    p_ = probabilities;
    first_ = first;
  }
  /// Adds, to `rows` rows of the outputs [tile width, padded_d()] from `query` on, their probabilities times the values of keys
  /// [begin, end), counted from the first whose probabilities were taken. Several rows must start at 0 and take all these keys.
  void add_values(T* output, std::size_t query, std::size_t rows, std::size_t begin, std::size_t end) const {
    for (std::size_t column = 0; column < padded_d_; column += width_.head) {
      multiply({.rows = rows,
                .columns = width_.head,
                .depth = end - begin,
                .a = p_ + query + begin * width_.tile,
                .a_step = width_.tile,
                .a_transposed = true,
                .b = v_ + column * packed_ + (first_ + begin) * width_.head,
                .b_step = width_.head,
                .c = output + query * padded_d_ + column,
                .c_step = padded_d_,
                .add = true});
    }
  }

 private:
  std::size_t d_;
  PanelWidths<T> width_;
  std::size_t padded_d_;
  T* q_;  // transposed, panels of queries
  T* k_;  // rows
  T* v_;  // panels of the head dim
  const T* p_ = nullptr;
  std::size_t first_ = 0;
  std::size_t packed_ = 0;
};

/// Panels in bf16 for bf16 units; sums in f32.
class PairPanels {
 public:
  using Sum = float;
  PairPanels(Carver& carver, std::size_t queries, std::size_t keys, std::size_t head_dim)
      : d_(head_dim),
        q_(carver.take<bf16>(pairs::packed_elements(queries, head_dim, pairs::kPairColumns))),
        k_(carver.take<bf16>(keys * head_dim)),
        v_(carver.take<bf16>(pairs::packed_elements(head_dim, keys, pairs::kWideColumns))),
        p_(carver.take<bf16>(pairs::packed_elements(pairs::kPairColumns, keys, pairs::kPairRows))) {}

  std::size_t padded_d() const { return round_up(d_, pairs::kPairRows); }
  void pack_queries(const ConstTensor& q) { pairs::pack(q_, pairs::kPairColumns, q.transposed(0, 1)); }
  void pack_keys(const ConstTensor& k, const ConstTensor& v) {
    packed_ = k.size(0);
    copy_rows(k_, k);
    pairs::pack(v_, pairs::kWideColumns, v);
  }
  bool finite_values() const { return all_finite(v_, pairs::packed_elements(d_, packed_, pairs::kWideColumns)); }

  void scores(float* scores, std::size_t query, std::size_t first, std::size_t keys, std::size_t vectors) const {
    pairs::multiply({.rows = keys,
                     .columns = vectors * pairs::kPairRows,
                     .depth = d_,
                     .a = k_ + first * d_,
                     .a_step = d_,
                     .b = q_ + pairs::packed_elements(query, d_, pairs::kPairColumns),
                     .c = scores,
                     .c_step = pairs::kPairColumns});
  }
  void take_probabilities(const float* probabilities, std::size_t first, std::size_t keys, std::size_t queries) {
    round_turned(p_, probabilities, keys, queries, pairs::kPairColumns);
    first_ = first;
    taken_ = keys;
  }
  void add_values(float* output, std::size_t query, std::size_t rows, std::size_t begin, std::size_t end) const {
    if (begin == end) return;
    const bf16* p = p_ + pairs::packed_elements(query / pairs::kPairRows * pairs::kPairRows, taken_, pairs::kPairRows) +
                    query % pairs::kPairRows * 2;
    for (std::size_t column = 0; column < padded_d(); column += pairs::kWideColumns) {
      pairs::multiply({.rows = rows,
                       .columns = std::min(pairs::kWideColumns, padded_d() - column),
                       .depth = end,
                       .skip = begin,
                       .a = p,
                       .a_turned = true,
                       .b = v_ + pairs::packed_elements(column, packed_, pairs::kWideColumns) + first_ * pairs::kWideColumns,
                       .b_width = pairs::kWideColumns,
                       .c = output + query * padded_d() + column,
                       .c_step = padded_d(),
                       .add = true});
    }
  }

 private:
  std::size_t d_;
  bf16* q_;  // pairs of the head dim, panels of queries
  bf16* k_;  // rows
  bf16* v_;  // pairs of keys, panels of the head dim
  bf16* p_;  // pairs of keys, turned
  std::size_t packed_ = 0;
  std::size_t first_ = 0;
  std::size_t taken_ = 0;
};

}  // namespace tsprun::detail::kernels::flash
