// Packed operands of flash attention's backward and the five products of a panel, which is up to one panel of keys on a tile of
// queries. WideGradients computes in the type of sums, T, into which bf16 is widened; PairGradients computes bf16 operands in
// bf16 units. Both have the same functions. They live in workspace, and use one thread's part of it each.
#pragma once

#include "core/kernels/flash_pairs.h"
#include "core/kernels/flash_panels.h"
#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <algorithm>
#include <cstddef>

namespace tsprun::detail::kernels::flash {

/// Place of a panel in its tile of queries and of keys.
struct GradientPanel {
  std::size_t query = 0;    ///< first query, a multiple of kQueryAlign
  std::size_t queries = 0;  ///< number of queries
  std::size_t key = 0;      ///< first key, a multiple of the panel's width
  std::size_t keys = 0;     ///< number of keys
};

/// Panels in f32 or f64.
template <class T>
class WideGradients {
 public:
  using Sum = T;
  /// A panel's first query is a multiple of it.
  static constexpr std::size_t kQueryAlign = 1;

  /// Takes workspace for tiles of `queries` queries and `keys` keys.
  WideGradients(Carver& carver, std::size_t queries, std::size_t keys, std::size_t head_dim)
      : d_(head_dim),
        k_transposed_(carver.take<T>(keys * most_padded<T>(head_dim))),
        v_transposed_(carver.take<T>(keys * most_padded<T>(head_dim))),
        k_(carver.take<T>(keys * most_padded<T>(head_dim))),
        q_(carver.take<T>(queries * most_padded<T>(head_dim))),
        d_o_(carver.take<T>(queries * most_padded<T>(head_dim))) {}

  /// Returns the head dim rounded up to the width in which gradients are stored, and the width of its panels.
  std::size_t padded_d() const { return round_up(d_, width_.head); }
  std::size_t head_width() const { return width_.head; }

  /// Packs a tile's keys and values [keys, d].
  void pack_keys(const ConstTensor& k, const ConstTensor& v) {
    keys_ = k.size(0);
    pack_transposed(k_transposed_, width_.tile, k);
    pack_transposed(v_transposed_, width_.tile, v);
    pack_panels(k_, width_.head, k);
  }
  /// Packs a tile's queries and gradients of outputs [queries, d].
  void pack_queries(const ConstTensor& q, const ConstTensor& d_o) {
    queries_ = q.size(0);
    pack_panels(q_, width_.head, q);
    pack_panels(d_o_, width_.head, d_o);
  }
  /// Returns whether what was packed of keys, queries and gradients of outputs is all finite.
  bool finite() const {
    return all_finite(k_, keys_ * padded_d()) && all_finite(q_, queries_ * padded_d()) && all_finite(d_o_, queries_ * padded_d());
  }

  /// Computes q·k and dO·v of the panel's queries and `vectors` vectors of keys, [queries, tile width] each.
  void scores(T* qk, T* dov, const GradientPanel& panel, std::size_t vectors) const {
    const auto multiply_rows = [&](const T* a, const T* b, T* c) {
      multiply({.rows = panel.queries,
                .columns = vectors * width_.lanes,
                .depth = d_,
                .a = a + panel.query * width_.head,
                .a_step = width_.head,
                .a_columns = width_.head,
                .a_panel = queries_ * width_.head,
                .b = b + panel.key * d_,
                .b_step = width_.tile,
                .c = c,
                .c_step = width_.tile});
    };
    multiply_rows(q_, k_transposed_, qk);
    multiply_rows(d_o_, v_transposed_, dov);
  }
  /// Takes a panel's probabilities and dS [queries, tile width] for the functions below, where they must still be then.
  void take(const T* p, const T* ds, const GradientPanel& panel) {
    p_ = p;
    ds_ = ds;
    panel_ = panel;
  }
  /// Adds Pᵀ·dO to columns [column, column + head_width()) of `some` rows of dv and dSᵀ·Q to those of dk. Both hold the tile's
  /// keys [keys, padded_d()]; the rows are those of the panel's keys from `key` on, which is 0 where there are several. The sum
  /// runs over queries [begin, end) of the panel.
  void add_over_queries(T* dv, T* dk, std::size_t column, std::size_t key, std::size_t some, std::size_t begin,
                        std::size_t end) const {
    const auto add = [&](const T* a, const T* b, T* c) {
      multiply({.rows = some,
                .columns = width_.head,
                .depth = end - begin,
                .a = a + begin * width_.tile + key,
                .a_step = width_.tile,
                .a_transposed = true,
                .b = b + column * queries_ + (panel_.query + begin) * width_.head,
                .b_step = width_.head,
                .c = c + (panel_.key + key) * padded_d() + column,
                .c_step = padded_d(),
                .add = true});
    };
    add(p_, d_o_, dv);
    add(ds_, q_, dk);
  }
  /// Adds dS·K to the same columns of `some` rows of dq, which holds the tile's queries [queries, padded_d()]: those of the
  /// panel's queries from `query` on. The sum runs over keys [begin, end) of the panel.
  void add_over_keys(T* dq, std::size_t column, std::size_t query, std::size_t some, std::size_t begin, std::size_t end) const {
    multiply({.rows = some,
              .columns = width_.head,
              .depth = end - begin,
              .a = ds_ + query * width_.tile + begin,
              .a_step = width_.tile,
              .b = k_ + column * keys_ + (panel_.key + begin) * width_.head,
              .b_step = width_.head,
              .c = dq + (panel_.query + query) * padded_d() + column,
              .c_step = padded_d(),
              .add = true});
  }

 private:
  std::size_t d_;
  PanelWidths<T> width_;
  // Operands of a tile of keys; the first two in panels of keys, the third in panels of the head dim:
  T* k_transposed_;
  T* v_transposed_;
  T* k_;
  // Operands of a tile of queries, in panels of the head dim:
  T* q_;
  T* d_o_;
  std::size_t keys_ = 0;
  std::size_t queries_ = 0;
  GradientPanel panel_;
  const T* p_ = nullptr;
  const T* ds_ = nullptr;
};

/// Panels in bf16 for bf16 units; sums in f32.
class PairGradients {
 public:
  using Sum = float;
  static constexpr std::size_t kQueryAlign = 2;

  PairGradients(Carver& carver, std::size_t queries, std::size_t keys, std::size_t head_dim)
      : d_(head_dim),
        k_turned_(carver.take<bf16>(pairs::packed_elements(keys, head_dim, kTile))),
        v_turned_(carver.take<bf16>(pairs::packed_elements(keys, head_dim, kTile))),
        k_(carver.take<bf16>(pairs::packed_elements(head_dim, keys, kHead))),
        q_rows_(carver.take<bf16>(queries * head_dim)),
        d_o_rows_(carver.take<bf16>(queries * head_dim)),
        q_(carver.take<bf16>(pairs::packed_elements(head_dim, queries, kHead))),
        d_o_(carver.take<bf16>(pairs::packed_elements(head_dim, queries, kHead))),
        p_turned_(carver.take<bf16>(pairs::packed_elements(kTile, queries, pairs::kPairRows))),
        ds_turned_(carver.take<bf16>(pairs::packed_elements(kTile, queries, pairs::kPairRows))),
        ds_rows_(carver.take<bf16>(queries * kTile)) {}

  std::size_t padded_d() const { return round_up(d_, pairs::kPairRows); }
  std::size_t head_width() const { return kHead; }

  void pack_keys(const ConstTensor& k, const ConstTensor& v) {
    keys_ = k.size(0);
    pairs::pack(k_turned_, kTile, k.transposed(0, 1));
    pairs::pack(v_turned_, kTile, v.transposed(0, 1));
    pairs::pack(k_, kHead, k);
  }
  void pack_queries(const ConstTensor& q, const ConstTensor& d_o) {
    queries_ = q.size(0);
    copy_rows(q_rows_, q);
    copy_rows(d_o_rows_, d_o);
    pairs::pack(q_, kHead, q);
    pairs::pack(d_o_, kHead, d_o);
  }
  bool finite() const {
    return all_finite(k_, pairs::packed_elements(d_, keys_, kHead)) && all_finite(q_rows_, queries_ * d_) &&
           all_finite(d_o_rows_, queries_ * d_);
  }

  void scores(float* qk, float* dov, const GradientPanel& panel, std::size_t vectors) const {
    const auto multiply_rows = [&](const bf16* a, const bf16* b, float* c) {
      pairs::multiply({.rows = panel.queries,
                       .columns = vectors * pairs::kPairRows,
                       .depth = d_,
                       .a = a + panel.query * d_,
                       .a_step = d_,
                       .b = b + pairs::packed_elements(panel.key, d_, kTile),
                       .b_width = kTile,
                       .c = c,
                       .c_step = kTile});
    };
    multiply_rows(q_rows_, k_turned_, qk);
    multiply_rows(d_o_rows_, v_turned_, dov);
  }
  void take(const float* p, const float* ds, const GradientPanel& panel) {
    panel_ = panel;
    round_turned(p_turned_, p, panel.queries, panel.keys, kTile);
    round_turned(ds_turned_, ds, panel.queries, panel.keys, kTile);
    round_rows(ds_rows_, ds, panel.queries, panel.keys, kTile);
  }
  void add_over_queries(float* dv, float* dk, std::size_t column, std::size_t key, std::size_t some, std::size_t begin,
                        std::size_t end) const {
    if (begin == end) return;
    const std::size_t of_key =
        pairs::packed_elements(key / pairs::kPairRows * pairs::kPairRows, panel_.queries, pairs::kPairRows) +
        key % pairs::kPairRows * 2;
    const auto add = [&](const bf16* a, const bf16* b, float* c) {
      pairs::multiply({.rows = some,
                       .columns = columns_from(column),
                       .depth = end,
                       .skip = begin,
                       .a = a + of_key,
                       .a_turned = true,
                       .b = b + pairs::packed_elements(column, queries_, kHead) + panel_.query * kHead,
                       .b_width = kHead,
                       .c = c + (panel_.key + key) * padded_d() + column,
                       .c_step = padded_d(),
                       .add = true});
    };
    add(p_turned_, d_o_, dv);
    add(ds_turned_, q_, dk);
  }
  void add_over_keys(float* dq, std::size_t column, std::size_t query, std::size_t some, std::size_t begin,
                     std::size_t end) const {
    if (begin == end) return;
    pairs::multiply({.rows = some,
                     .columns = columns_from(column),
                     .depth = end,
                     .skip = begin,
                     .a = ds_rows_ + query * kTile,
                     .a_step = kTile,
                     .b = k_ + pairs::packed_elements(column, keys_, kHead) + panel_.key * kHead,
                     .b_width = kHead,
                     .c = dq + (panel_.query + query) * padded_d() + column,
                     .c_step = padded_d(),
                     .add = true});
  }

 private:
  static constexpr std::size_t kTile = pairs::kPairColumns;
  static constexpr std::size_t kHead = pairs::kWideColumns;
  std::size_t columns_from(std::size_t column) const { return std::min(kHead, padded_d() - column); }

  std::size_t d_;
  // Operands of a tile of keys; the first two in pairs of the head dim and panels of keys, the third the other way round:
  bf16* k_turned_;
  bf16* v_turned_;
  bf16* k_;
  // Operands of a tile of queries, as rows, and in pairs of queries and panels of the head dim:
  bf16* q_rows_;
  bf16* d_o_rows_;
  bf16* q_;
  bf16* d_o_;
  // Rounded panels, turned in pairs of queries, and as rows:
  bf16* p_turned_;
  bf16* ds_turned_;
  bf16* ds_rows_;
  std::size_t keys_ = 0;
  std::size_t queries_ = 0;
  GradientPanel panel_;
};

}  // namespace tsprun::detail::kernels::flash
