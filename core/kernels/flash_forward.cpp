// Flash attention, forward. A task is a block of queries of one head. It walks over tiles of keys with a running maximum and sum
// (online softmax) and an unnormalised output in workspace. Within a tile of keys it goes from one panel of queries to the next;
// a panel's scores stay in the L1 cache from the product that makes them to the product with V.
#include "core/kernels/flash.h"

#include "core/kernels/flash_dropout.h"
#include "core/kernels/flash_forward_panels.h"
#include "core/kernels/flash_pairs.h"
#include "core/kernels/flash_panels.h"
#include "core/kernels/flash_rows.h"
#include "core/kernels/flash_single.h"
#include "core/kernels/flash_tiles.h"

#include <cmath>
#include <limits>
#include <optional>

namespace tsprun::detail::kernels {

namespace {

using flash::head;
using flash::PanelWidths;
using flash::Visibility;

constexpr char kKernel[] = "flash_forward";
/// Keys of a tile. At AVX2, a panel of scores and one of values together fit an L1 cache of 32 KB.
constexpr std::size_t kKeys = 192;
/// Largest number of query heads that share keys in attend_single().
constexpr std::size_t kMostSingles = 64;

/// Returns the largest number of queries per task, a multiple of every panel width. With more queries, keys and values are read
/// less often from a view whose rows lie far apart: with 16 heads of d = 64 and 240 queries, that took more than a quarter of the
/// time. block_queries() takes fewer where there would be too few tasks for threads to finish together.
std::size_t most_queries(DType dtype, std::size_t head_dim) { return dtype == DType::f64 || head_dim > 128 ? 480 : 960; }
std::size_t block_queries(const ConstTensor& q) {
  constexpr std::size_t kTasks = 32;
  constexpr std::size_t kLeast = 240;
  std::size_t queries = most_queries(q.dtype(), q.size(3));
  while (queries > kLeast && q.size(0) * q.size(1) * q.size(2) < kTasks * queries) queries /= 2;
  return queries;
}

/// Workspace of one thread. Head dims are rounded up to whole panels of any level.
template <class Panels>
struct Scratch {
  using T = typename Panels::Sum;
  Panels panels;
  T* scores;   // one panel of queries
  T* factors;  // of dropout, likewise
  T* output;   // rows
  T* maximum;
  T* sum;
  T* factor;

  Scratch(Carver& carver, std::size_t queries, std::size_t head_dim)
      : panels(carver, queries, kKeys, head_dim),
        scores(carver.take<T>(kKeys * flash::kMostTileWidth<T>)),
        factors(carver.take<T>(kKeys * flash::kMostTileWidth<T>)),
        output(carver.take<T>(queries * flash::most_padded<T>(head_dim))),
        maximum(carver.take<T>(queries)),
        sum(carver.take<T>(queries)),
        factor(carver.take<T>(queries)) {}
};

/// Returns the bytes of one thread. In bf16 they serve either kind of panels: a forecast doesn't know the ranks' level.
std::size_t thread_bytes(DType dtype, std::size_t head_dim) {
  const std::size_t queries = most_queries(dtype, head_dim);
  std::size_t blocks = dtype == DType::f64 ? carved_bytes<Scratch<flash::WidePanels<double>>>(queries, head_dim)
                                           : carved_bytes<Scratch<flash::WidePanels<float>>>(queries, head_dim);
  if (dtype == DType::bf16) blocks = std::max(blocks, carved_bytes<Scratch<flash::PairPanels>>(queries, head_dim));
  return std::max(blocks, flash::single_workspace(kMostSingles, head_dim, summed_in(dtype)));
}

/// Computes attention of queries [first, first + queries) of one head, up to the division by the sum (finish_block()).
template <class Panels>
void forward_block(const Attention& attention, const Visibility& visible, flash::TileDropout& dropout, const ConstTensor& q,
                   const ConstTensor& k, const ConstTensor& v, std::size_t first, std::size_t queries, Scratch<Panels>& scratch,
                   const Tick& tick) {
  using T = typename Panels::Sum;
  const PanelWidths<T> width;
  Panels& panels = scratch.panels;
  const std::size_t padded_queries = round_up(queries, width.tile);
  const std::size_t padded_d = panels.padded_d();
  panels.pack_queries(q.slice(0, first, queries));
  std::fill_n(scratch.output, padded_queries * padded_d, T{0});
  std::fill_n(scratch.sum, padded_queries, T{0});
  std::fill_n(scratch.maximum, padded_queries, std::numeric_limits<T>::lowest());

  // Whether the packed values are all finite; looked up once per tile of keys, and only where it matters.
  bool looked_up = false;
  bool finite_values = true;
  /// Processes queries [at, at + width.tile) of the block on `keys` keys, the first of which is `key`, number `in_tile` of its
  /// tile.
  const auto panel = [&](std::size_t at, std::size_t key, std::size_t in_tile, std::size_t keys) {
    const std::size_t count = std::min(width.tile, queries - at);
    const std::size_t vectors = (count + width.lanes - 1) / width.lanes;
    panels.scores(scratch.scores, at, in_tile, keys, vectors);
    flash::online_softmax({.scores = scratch.scores,
                           .keys = keys,
                           .queries = vectors * width.lanes,
                           .step = width.tile,
                           .diagonal = visible.diagonal(key, first + at, keys),
                           .window = visible.window(),
                           .documents = visible.starts(key, first + at, count),
                           .dealt = visible.dealt_documents(first + at, count, key, keys),
                           .scale = static_cast<T>(attention.scale),
                           .bound = static_cast<T>(attention.bound()),
                           .maximum = scratch.maximum + at,
                           .sum = scratch.sum + at,
                           .factor = scratch.factor + at});
    if (dropout.any()) {
      dropout.take_queries(first + at, count);
      dropout.factors_by_key(key, keys, scratch.factors, width.tile);
      flash::multiply_all(scratch.scores, scratch.factors, keys * width.tile);
    }
    panels.take_probabilities(scratch.scores, in_tile, keys, count);
    T* output = scratch.output + at * padded_d;
    flash::scale_rows(output, count, padded_d, padded_d, scratch.factor + at);
    // Of these keys, query i of the panel sees [begin_of(i), end_of(i)).
    const auto number = [&](std::size_t of_view) { return std::clamp(of_view, key, key + keys) - key; };
    const auto begin_of = [&](std::size_t query) { return number(visible.first_key_of(first + at + query)); };
    const auto end_of = [&](std::size_t query) { return number(visible.end_key_of(first + at + query)); };
    if (!visible.dealt() && begin_of(count - 1) == 0 && end_of(0) == keys) return panels.add_values(output, 0, count, 0, keys);
    if (!looked_up) finite_values = panels.finite_values();
    looked_up = true;
    if (finite_values) return panels.add_values(output, 0, count, 0, keys);
    // A probability of zero times infinity or NaN would carry a hidden value to queries that don't see it.
    for (std::size_t query = 0; query < count; ++query) {
      if (!visible.dealt()) {
        panels.add_values(output, query, 1, std::min(begin_of(query), end_of(query)), end_of(query));
        continue;
      }
      const auto sees = [&](std::size_t j) { return visible.sees(first + at + query, key + j); };
      flash::for_seen(keys, sees, [&](std::size_t from, std::size_t to) { panels.add_values(output, query, 1, from, to); });
    }
  };

  const std::size_t end = visible.end_key_of(first + queries - 1);
  for (std::size_t key = visible.first_key_of(first); key < end;) {
    const std::size_t keys = std::min(kKeys, end - key);
    if (visible.dealt() && visible.keys_of(first, queries, key, key + keys).end <= key) {
      key += keys;
      continue;
    }
    panels.pack_keys(k.slice(0, key, keys), v.slice(0, key, keys));
    looked_up = false;
    for (std::size_t at = 0; at < queries; at += width.tile) {
      const auto [begin, seen] = visible.keys_of(first + at, std::min(width.tile, queries - at), key, key + keys);
      const std::size_t in_tile = (std::max(begin, key) - key) / 2 * 2;  // even, as panels ask
      if (seen > key + in_tile && in_tile < keys) panel(at, key + in_tile, in_tile, std::min(key + keys, seen) - key - in_tile);
    }
    key += keys;
    if (key < end) tick();
  }
}

/// Computes o [queries, d] = output / sum, and the log-sum-exps, of the queries from `first` on.
template <class Panels>
void finish_block(const Tensor& o, const Tensor& lse, const Scratch<Panels>& scratch, double scale, const Visibility& visible,
                  std::size_t first) {
  using T = typename Panels::Sum;
  using Lse = flash::LogSumExp<T>;
  const std::size_t queries = o.size(0);
  const std::size_t padded_d = scratch.panels.padded_d();
  T* lse_data = lse.template as<T>();
  const std::size_t numbers = lse.dims();  // [queries] or [queries, 2]
  std::optional<bool> sees;
  for (std::size_t i = 0; i < queries; ++i) {
    sees = visible.sees_any(first + i, sees);
    // The sum over keys is at least 1, unless all their scores are −∞ (too large for T) or one is NaN: then o and lse are NaN.
    (*sees ? Lse::of(scratch.maximum[i], scratch.sum[i]) : Lse::of_nothing()).store(lse_data + i * lse.stride(0), numbers, scale);
    scratch.factor[i] = *sees ? T{1} / scratch.sum[i] : T{0};
  }
  flash::scale_rows(scratch.output, queries, padded_d, padded_d, scratch.factor);
  const Tensor padded(reinterpret_cast<std::byte*>(scratch.output), dtype_of<T>(), {queries, padded_d});
  convert({}, o, padded.slice(1, 0, o.size(1)));
}

/// Returns whether each query sees all keys and is the only one of its head, as in decoding.
bool is_single(const Attention& attention, const ConstTensor& q) {
  return q.size(1) == 1 && q.size(2) > 0 && !attention.mask.causal && attention.dropout.draw.probability == 0 &&
         attention.heads.group <= kMostSingles;
}

void run_single(const Compute& on, const Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                const ConstTensor& k, const ConstTensor& v) {
  const std::size_t bytes = thread_bytes(q.dtype(), q.size(3));
  const std::size_t group = attention.heads.group;
  const std::size_t first_query = attention.heads.first_query;
  const std::size_t end = first_query + q.size(2);
  const std::size_t first_head = first_query / group;
  const std::size_t kv_heads = (end - 1) / group + 1 - first_head;
  on.run(q.size(0) * kv_heads, [&](std::size_t task, std::size_t thread) {
    const std::size_t number = first_head + task % kv_heads;
    const std::size_t batch = task / kv_heads;
    const std::size_t first = std::max(number * group, first_query);
    const std::size_t count = std::min((number + 1) * group, end) - first;
    const auto rows = [&](const auto& view, std::size_t dim) {
      return view.select(0, batch).select(dim, 0).slice(0, first - first_query, count);
    };
    const std::size_t kv = number - attention.heads.first_kv;
    flash::attend_single(workspace_part(on.workspace, bytes, thread), attention.scale, attention.bound(), rows(o, 0),
                         rows(lse, 1), rows(q, 0), head(k, batch, kv), head(v, batch, kv));
  });
}

template <class Panels>
void run(const Compute& on, const Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
         const ConstTensor& k, const ConstTensor& v) {
  if (is_single(attention, q)) return run_single(on, attention, o, lse, q, k, v);
  const std::size_t d = q.size(3);
  const std::size_t heads = q.size(2);
  const std::size_t queries = block_queries(q);
  const std::size_t blocks = (q.size(1) + queries - 1) / queries;
  const std::size_t bytes = thread_bytes(q.dtype(), d);
  on.run(q.size(0) * heads * blocks, [&](std::size_t task, std::size_t thread) {
    // The last blocks see most keys. They come first, so that threads finish together.
    const std::size_t block = blocks - 1 - task % blocks;
    const std::size_t number = task / blocks % heads;
    const std::size_t batch = task / blocks / heads;
    const std::size_t first = block * queries;
    const std::size_t count = std::min(queries, q.size(1) - first);
    const std::size_t kv = (attention.heads.first_query + number) / attention.heads.group - attention.heads.first_kv;
    Carver carver(workspace_part(on.workspace, bytes, thread));
    Scratch<Panels> scratch(carver, queries, d);
    flash::TileDropout dropout(attention.dropout, batch, number);
    const Visibility visible(attention.mask, k.size(1), batch);
    forward_block(attention, visible, dropout, head(q, batch, number), head(k, batch, kv), head(v, batch, kv), first, count,
                  scratch, thread == 0 ? on.tick : Tick());
    finish_block(head(o, batch, number).slice(0, first, count), lse.select(0, batch).select(0, number).slice(0, first, count),
                 scratch, attention.scale, visible, first);
  });
}

}  // namespace

void flash_forward(const Compute& on, const Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                   const ConstTensor& k, const ConstTensor& v) {
  flash::check_operands(kKernel, attention, q, k, v);
  flash::check_lse(kKernel, lse, q);
  require(same_shape(o, q) && dense_rows(o) && (o.dtype() == q.dtype() || o.dtype() == summed_in(q.dtype())), kKernel,
          "o must have q's shape, and its type or that of sums", o);
  check_workspace(on, kKernel, flash_forward_workspace(q.dtype(), q.size(3), on.threads()));
  if (q.dtype() == DType::f64) {
    run<flash::WidePanels<double>>(on, attention, o, lse, q, k, v);
  } else if (flash::in_pairs(q.dtype())) {
    run<flash::PairPanels>(on, attention, o, lse, q, k, v);
  } else {
    run<flash::WidePanels<float>>(on, attention, o, lse, q, k, v);
  }
}

std::size_t flash_forward_workspace(DType dtype, std::size_t head_dim, std::size_t threads) {
  return workspace_bytes(thread_bytes(dtype, head_dim), threads);
}

}  // namespace tsprun::detail::kernels
