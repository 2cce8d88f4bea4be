// Flash attention, backward. The scores of a tile are computed again, and five products follow from them. For every output the
// order of its sum is fixed: dq over ascending key tiles, dk and dv over ascending query heads and query tiles.
//
// Two orders of work keep that order of sums. Where there are enough K/V heads for the threads, a task is a whole K/V head. Else
// threads share a head: its tiles (key tile i, query tile j) are run in waves of equal i + j, within which no two tiles touch the
// same output.
#include "core/kernels/blas.h"
#include "core/kernels/flash.h"
#include "core/kernels/flash_dropout.h"
#include "core/kernels/flash_rows.h"
#include "core/kernels/flash_tiles.h"

#include <array>
#include <limits>

namespace tsp::kernels {

namespace {

using flash::head;
using flash::Rows;
using flash::Visibility;

constexpr char kKernel[] = "flash_backward";
/// Tiles of scores, their gradients, and seven stretches of operands and results share an L2 of 1 MB.
constexpr std::size_t kKeys = 128;
constexpr std::size_t kQueries = 128;
constexpr std::size_t kVector = 16;

/// A thread's workspace.
template <class T>
struct Scratch {
  T* p;
  T* ds;
  T* lse;
  T* delta;
  T* q = nullptr;  // bf16 only, widened
  T* d_o = nullptr;
  T* k = nullptr;
  T* v = nullptr;

  Scratch(std::span<std::byte> space, std::size_t head_dim, bool widen) {
    Carver carver(space);
    p = carver.take<T>(kKeys * kQueries);
    ds = carver.take<T>(kKeys * kQueries);
    lse = carver.take<T>(kQueries);
    delta = carver.take<T>(kQueries);
    if (!widen) return;
    q = carver.take<T>(kQueries * head_dim);
    d_o = carver.take<T>(kQueries * head_dim);
    k = carver.take<T>(kKeys * head_dim);
    v = carver.take<T>(kKeys * head_dim);
  }
  static std::size_t bytes(std::size_t head_dim, bool widen) {
    const auto array = [](std::size_t count) { return round_up(count * sizeof(T), kLine); };
    const std::size_t own = 2 * array(kKeys * kQueries) + 2 * array(kQueries);
    return own + (widen ? 2 * array(kQueries * head_dim) + 2 * array(kKeys * head_dim) : 0);
  }
};

std::size_t thread_bytes(DType dtype, std::size_t head_dim) {
  if (dtype == DType::f64) return Scratch<double>::bytes(head_dim, false);
  return Scratch<float>::bytes(head_dim, dtype == DType::bf16);
}

/// All views of a call.
struct Operands {
  const Attention& attention;
  const Tensor& dq;
  const Tensor& dk;
  const Tensor& dv;
  const ConstTensor& d_o;
  const ConstTensor& lse;
  const ConstTensor& delta;
  const ConstTensor& q;
  const ConstTensor& k;
  const ConstTensor& v;

  std::size_t query_tiles() const { return (q.size(1) + kQueries - 1) / kQueries; }
  std::size_t key_tiles() const { return (k.size(1) + kKeys - 1) / kKeys; }
};

/// The query heads of the view that read a K/V head of the view.
struct HeadRange {
  std::size_t first;
  std::size_t end;

  HeadRange(const HeadMap& map, std::size_t kv, std::size_t query_heads) {
    const std::size_t from = (map.first_kv + kv) * map.group;
    const auto local = [&](std::size_t number) {
      return std::min(query_heads, number > map.first_query ? number - map.first_query : 0);
    };
    first = local(from);
    end = local(from + map.group);
  }
  std::size_t size() const { return end - first; }
};

/// values[i] of a strided vector, to contiguous elements.
template <class T>
void gather(const ConstTensor& values, T* to) {
  const T* from = values.template as<T>();
  for (std::size_t i = 0; i < values.size(0); ++i) to[i] = from[i * values.stride(0)];
}

/// The same with dropout, a key at a time: its factors are drawn once and used before and after.
template <class T>
void score_gradients_dropped(const flash::GradientTile<T>& tile, const flash::TileDropout& dropout, std::size_t key) {
  std::array<T, kQueries> factors;
  for (std::size_t j = 0; j < tile.keys; ++j) {
    flash::GradientTile<T> row = tile;
    row.p += j * tile.step;
    row.ds += j * tile.step;
    row.keys = 1;
    row.diagonal += static_cast<std::ptrdiff_t>(j);
    dropout.factors(key + j, factors.data());
    flash::multiply_row(row.ds, factors.data(), tile.queries);
    flash::score_gradients(row);
    flash::multiply_row(row.p, factors.data(), tile.queries);
  }
}

/// One tile of one query head: adds its part to dq, dk and dv. False if it is wholly masked.
template <class T>
bool backward_tile(const Operands& all, std::size_t batch, std::size_t kv, std::size_t number, std::size_t key, std::size_t query,
                   const Scratch<T>& scratch) {
  const Visibility visible(all.attention.mask, all.k.size(1));
  const std::size_t d = all.q.size(3);
  const std::size_t query_end = std::min(query + kQueries, all.q.size(1));
  const std::size_t key_end = std::min(key + kKeys, visible.keys_seen_by(query_end - 1));
  if (key_end <= key) return false;
  const std::size_t sighted = visible.first_query_of(key);
  const std::size_t first = sighted > query ? query + (sighted - query) / kVector * kVector : query;
  const std::size_t queries = query_end - first;
  const std::size_t keys = key_end - key;

  const auto query_rows = [&](const ConstTensor& view) { return head(view, batch, number).slice(0, first, queries); };
  const auto key_rows = [&](const ConstTensor& view) { return head(view, batch, kv).slice(0, key, keys); };
  const Rows<T> q(query_rows(all.q), scratch.q);
  const Rows<T> d_o(query_rows(all.d_o), scratch.d_o);
  const Rows<T> k(key_rows(all.k), scratch.k);
  const Rows<T> v(key_rows(all.v), scratch.v);
  gather(all.lse.select(0, batch).select(0, number).slice(0, first, queries), scratch.lse);
  gather(all.delta.select(0, batch).select(0, number).slice(0, first, queries), scratch.delta);
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  std::replace(scratch.lse, scratch.lse + queries, -kInfinity, kInfinity);

  const auto outer = [&](const Rows<T>& a, const Rows<T>& b, T* c) {  // c = a·bᵀ, keys × queries
    blas::multiply({.m = keys,
                    .n = queries,
                    .k = d,
                    .a = a.data,
                    .a_step = a.step,
                    .b = b.data,
                    .b_step = b.step,
                    .b_transposed = true,
                    .c = c,
                    .c_step = queries});
  };
  outer(k, q, scratch.p);
  outer(v, d_o, scratch.ds);
  const flash::GradientTile<T> tile{.p = scratch.p,
                                    .ds = scratch.ds,
                                    .keys = keys,
                                    .queries = queries,
                                    .step = queries,
                                    .diagonal = visible.diagonal(key, first, keys),
                                    .scale = static_cast<T>(all.attention.scale),
                                    .lse = scratch.lse,
                                    .delta = scratch.delta};
  flash::TileDropout dropout(all.attention.dropout, batch, number);
  if (dropout.any()) {
    dropout.take_queries(first, queries);
    score_gradients_dropped(tile, dropout, key);
  } else {
    flash::score_gradients(tile);
  }
  const auto over_queries = [&](const T* a, const Rows<T>& b, const Tensor& out) {  // out += a·b
    const Tensor c = head(out, batch, kv).slice(0, key, keys);
    blas::multiply({.m = keys,
                    .n = d,
                    .k = queries,
                    .a = a,
                    .a_step = queries,
                    .b = b.data,
                    .b_step = b.step,
                    .c = c.template as<T>(),
                    .c_step = c.stride(0),
                    .add = true});
  };
  over_queries(scratch.p, d_o, all.dv);
  over_queries(scratch.ds, q, all.dk);
  const Tensor c = head(all.dq, batch, number).slice(0, first, queries);
  blas::multiply({.m = queries,
                  .n = d,
                  .k = keys,
                  .a = scratch.ds,
                  .a_step = queries,
                  .a_transposed = true,
                  .b = k.data,
                  .b_step = k.step,
                  .c = c.template as<T>(),
                  .c_step = c.stride(0),
                  .add = true});
  return true;
}

template <class T>
void run(const Compute& on, const Operands& all) {
  const std::size_t bytes = thread_bytes(all.q.dtype(), all.q.size(3));
  const std::size_t query_tiles = all.query_tiles();
  const std::size_t key_tiles = all.key_tiles();
  const std::size_t kv_heads = all.k.size(2);
  const std::size_t units = all.q.size(0) * kv_heads;
  const auto scratch_of = [&](std::size_t thread) {
    return Scratch<T>(workspace_part(on.workspace, bytes, thread), all.q.size(3), all.q.dtype() == DType::bf16);
  };
  // Tile j of a K/V head: query tile j % query_tiles of the j / query_tiles-th query head that reads it.
  const auto tile = [&](std::size_t unit, std::size_t i, std::size_t j, const Scratch<T>& scratch) {
    const HeadRange heads(all.attention.heads, unit % kv_heads, all.q.size(2));
    return backward_tile<T>(all, unit / kv_heads, unit % kv_heads, heads.first + j / query_tiles, i * kKeys,
                            j % query_tiles * kQueries, scratch);
  };
  const auto tiles_of = [&](std::size_t unit) {
    return HeadRange(all.attention.heads, unit % kv_heads, all.q.size(2)).size() * query_tiles;
  };
  if (units % on.threads() == 0 || units >= 4 * on.threads()) {
    on.run(units, [&](std::size_t unit, std::size_t thread) {
      const Scratch<T> scratch = scratch_of(thread);
      for (std::size_t i = 0; i < key_tiles; ++i) {
        for (std::size_t j = 0; j < tiles_of(unit); ++j) {
          if (tile(unit, i, j, scratch) && thread == 0) on.tick();
        }
      }
    });
    return;
  }
  for (std::size_t unit = 0; unit < units; ++unit) {
    const std::size_t tiles = tiles_of(unit);
    for (std::size_t wave = 0; tiles > 0 && wave + 1 < key_tiles + tiles; ++wave) {
      const std::size_t first = wave < tiles ? 0 : wave - tiles + 1;
      const std::size_t last = std::min(wave, key_tiles - 1);
      on.run(last - first + 1,
             [&](std::size_t task, std::size_t thread) { tile(unit, first + task, wave - first - task, scratch_of(thread)); });
    }
  }
}

}  // namespace

void flash_backward(const Compute& on, const Attention& attention, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                    const ConstTensor& d_o, const ConstTensor& lse, const ConstTensor& delta, const ConstTensor& q,
                    const ConstTensor& k, const ConstTensor& v, Write write) {
  flash::check_operands(kKernel, attention, q, k, v);
  flash::check_row_values(kKernel, lse, q);
  flash::check_row_values(kKernel, delta, q);
  require(same_shape(d_o, q) && dense_rows(d_o) && d_o.dtype() == q.dtype(), kKernel, "do must have q's shape and type", d_o);
  const DType sums = summed_in(q.dtype());
  require(same_shape(dq, q) && dense_rows(dq) && dq.dtype() == sums, kKernel, "dq must have q's shape, of the type of sums", dq);
  for (const Tensor* gradient : {&dk, &dv}) {
    require(same_shape(*gradient, k) && dense_rows(*gradient) && gradient->dtype() == sums, kKernel,
            "dk and dv must have k's shape, of the type of sums", *gradient);
  }
  check_workspace(on, kKernel, flash_backward_workspace(q.dtype(), q.size(3), on.threads()));
  if (write == Write::replace) {
    for (const Tensor* gradient : {&dq, &dk, &dv}) fill_zero(on, *gradient);
  }
  if (q.empty() || k.empty()) return;
  const Operands all{attention, dq, dk, dv, d_o, lse, delta, q, k, v};
  if (q.dtype() == DType::f64) {
    run<double>(on, all);
  } else {
    run<float>(on, all);
  }
}

std::size_t flash_backward_workspace(DType dtype, std::size_t head_dim, std::size_t threads) {
  return workspace_bytes(thread_bytes(dtype, head_dim), threads);
}

}  // namespace tsp::kernels
