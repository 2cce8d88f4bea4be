// Flash attention, backward. The scores of a tile are computed again, and five matrix products follow from them. The order of
// every output's sum is fixed: dq over ascending key tiles, dk and dv over ascending query heads and query tiles.
//
// Two schedules keep these orders. If there are enough K/V heads for the threads, a task is a whole K/V head. Otherwise the
// threads share one head: its tiles (key tile i, query tile j) run in waves of equal i + j, and within a wave no two tiles touch
// the same output.
#include "core/kernels/flash.h"
#include "core/kernels/flash_dropout.h"
#include "core/kernels/flash_gradient_panels.h"
#include "core/kernels/flash_pairs.h"
#include "core/kernels/flash_panels.h"
#include "core/kernels/flash_rows.h"
#include "core/kernels/flash_tiles.h"

#include <cstring>
#include <limits>

namespace tsprun::detail::kernels {

namespace {

using flash::head;
using flash::PanelWidths;
using flash::Visibility;

constexpr char kKernel[] = "flash_backward";
/// Keys and queries of a tile, both multiples of every panel width. With more keys a tile, dq is read and written less often, and
/// so are the queries read from views whose rows lie far apart.
constexpr std::size_t kKeys = 576;
constexpr std::size_t kQueries = 96;

/// Workspace of one thread. Head dims are rounded up to whole panels of any level.
template <class Panels>
struct Scratch {
  using T = typename Panels::Sum;
  Panels panels;
  // Gradients of a tile of keys, rows:
  T* dk;
  T* dv;
  // Of a tile of queries:
  T* dq;  // rows
  T* maximum;
  T* log_sum;
  T* delta;
  // Scores of a tile of queries and one panel of keys:
  T* p;
  T* ds;
  T* factors;  // dropout factors

  Scratch(Carver& carver, std::size_t head_dim)
      : panels(carver, kQueries, kKeys, head_dim),
        dk(carver.take<T>(kKeys * flash::most_padded<T>(head_dim))),
        dv(carver.take<T>(kKeys * flash::most_padded<T>(head_dim))),
        dq(carver.take<T>(kQueries * flash::most_padded<T>(head_dim))),
        maximum(carver.take<T>(kQueries)),
        log_sum(carver.take<T>(kQueries)),
        delta(carver.take<T>(kQueries)),
        p(carver.take<T>(kQueries * flash::kMostTileWidth<T>)),
        ds(carver.take<T>(kQueries * flash::kMostTileWidth<T>)),
        factors(carver.take<T>(kQueries * flash::kMostTileWidth<T>)) {}
};

/// Returns the bytes of one thread. In bf16 they serve either kind of panels: a forecast doesn't know the ranks' level.
std::size_t thread_bytes(DType dtype, std::size_t head_dim) {
  if (dtype == DType::f64) return carved_bytes<Scratch<flash::WideGradients<double>>>(head_dim);
  const std::size_t wide = carved_bytes<Scratch<flash::WideGradients<float>>>(head_dim);
  return dtype == DType::bf16 ? std::max(wide, carved_bytes<Scratch<flash::PairGradients>>(head_dim)) : wide;
}

/// Views and parameters of one call.
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

/// Range of the view's query heads that read one K/V head of the view.
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

/// Copies the elements of a strided vector to contiguous memory.
template <class T>
void gather(const ConstTensor& values, T* to) {
  const T* from = values.template as<T>();
  for (std::size_t i = 0; i < values.size(0); ++i) to[i] = from[i * values.stride(0)];
}

/// Copies rows that are `step` elements apart in workspace to the rows of a matrix.
template <class T>
void store_rows(const Tensor& view, const T* from, std::size_t step) {
  T* to = view.template as<T>();
  for (std::size_t i = 0; i < view.size(0); ++i) std::memcpy(to + i * view.stride(0), from + i * step, view.size(1) * sizeof(T));
}

/// One tile of keys of one K/V head. Between begin() and end() its packed operands and its gradients are in workspace.
template <class Panels>
class KeyTile {
 public:
  using T = typename Panels::Sum;
  KeyTile(const Operands& all, Scratch<Panels>& scratch, std::size_t batch, std::size_t kv, std::size_t key)
      : all_(all),
        scratch_(scratch),
        batch_(batch),
        kv_(kv),
        key_(key),
        keys_(std::min(kKeys, all.k.size(1) - key)),
        padded_d_(scratch.panels.padded_d()),
        visible_(all.attention.mask, all.k.size(1), batch) {}

  /// Returns whether any query of the view sees any of the keys.
  bool seen() const {
    const auto [begin, end] = visible_.queries_of(key_, keys_, 0, all_.q.size(1));
    return begin < end;
  }
  /// Returns whether any query of the tile that begins with `query` does.
  bool seen_from(std::size_t query) const {
    if (!visible_.dealt()) return first_query(query) < end_query(query_end(query));
    const auto [begin, end] = visible_.queries_of(key_, keys_, query, query_end(query));
    return begin < end;
  }

  void begin() {
    scratch_.panels.pack_keys(rows(all_.k), rows(all_.v));
    flash::pack_panels(scratch_.dk, padded_d_, rows(all_.dk));
    flash::pack_panels(scratch_.dv, padded_d_, rows(all_.dv));
  }
  void end() {
    store_rows(rows(all_.dk), scratch_.dk, padded_d_);
    store_rows(rows(all_.dv), scratch_.dv, padded_d_);
  }
  /// Adds to dq, dk and dv what the query tile that begins with `query`, of query head `number`, contributes.
  void add(std::size_t number, std::size_t query);

 private:
  /// Adds what the panel of keys that begins with key `at` of the tile contributes, for queries [first + begin, first + end).
  void add_panel(const flash::TileDropout& dropout, std::size_t at, std::size_t first, std::size_t begin, std::size_t end);
  void add_seen(std::size_t column, std::size_t query, std::size_t queries, std::size_t at, std::size_t keys);
  template <class View>
  View rows(const View& view) const {
    return head(view, batch_, kv_).slice(0, key_, keys_);
  }
  std::size_t query_end(std::size_t query) const { return std::min(query + kQueries, all_.q.size(1)); }
  /// Return the first query from `query` on, and the end of those before `end`, that see any of the keys.
  std::size_t first_query(std::size_t query) const { return std::max(query, visible_.first_query_of(key_)); }
  std::size_t end_query(std::size_t end) const { return std::min(end, visible_.end_query_of(key_ + keys_ - 1)); }

  const Operands& all_;
  Scratch<Panels>& scratch_;
  std::size_t batch_;
  std::size_t kv_;
  std::size_t key_;
  std::size_t keys_;
  PanelWidths<T> width_;
  std::size_t padded_d_;
  Visibility visible_;
  /// Set if hidden keys of the current query tile must be skipped: some are hidden, and its queries or the keys hold infinity or
  /// NaN, which a hidden probability of zero would turn into NaN.
  bool must_skip_hidden_ = false;
};

template <class Panels>
void KeyTile<Panels>::add(std::size_t number, std::size_t query) {
  const std::size_t first = first_query(query);
  const std::size_t queries = end_query(query_end(query)) - first;
  const auto query_rows = [&](const auto& view) { return head(view, batch_, number).slice(0, first, queries); };
  scratch_.panels.pack_queries(query_rows(all_.q), query_rows(all_.d_o));
  const Tensor dq = query_rows(all_.dq);
  flash::pack_panels(scratch_.dq, padded_d_, dq);
  const ConstTensor lse = all_.lse.select(0, batch_).select(0, number).slice(0, first, queries);
  if (lse.dims() == 2) {
    gather(lse.select(1, 0), scratch_.maximum);
    gather(lse.select(1, 1), scratch_.log_sum);
  } else {
    gather(lse, scratch_.maximum);
    std::fill_n(scratch_.log_sum, queries, T{0});
  }
  gather(all_.delta.select(0, batch_).select(0, number).slice(0, first, queries), scratch_.delta);
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  std::replace(scratch_.maximum, scratch_.maximum + queries, -kInfinity, kInfinity);
  flash::TileDropout dropout(all_.attention.dropout, batch_, number);
  if (dropout.any()) dropout.take_queries(first, queries);
  const bool some_hidden =
      visible_.dealt() || visible_.first_query_of(key_ + keys_ - 1) > first || visible_.end_query_of(key_) < first + queries;
  must_skip_hidden_ = some_hidden && !scratch_.panels.finite();

  for (std::size_t at = 0; at < keys_; at += width_.tile) {
    // Only queries [begin, end) see keys of this panel.
    const std::size_t count = std::min(width_.tile, keys_ - at);
    const auto [from, to] = visible_.queries_of(key_ + at, count, first, first + queries);
    if (from == first + queries) break;
    if (from >= to) continue;
    add_panel(dropout, at, first, (from - first) / Panels::kQueryAlign * Panels::kQueryAlign, to - first);
  }
  store_rows(dq, scratch_.dq, padded_d_);
}

template <class Panels>
void KeyTile<Panels>::add_panel(const flash::TileDropout& dropout, std::size_t at, std::size_t first, std::size_t begin,
                                std::size_t end) {
  const std::size_t rows = end - begin;
  const std::size_t count = std::min(width_.tile, keys_ - at);
  const std::size_t vectors = (count + width_.lanes - 1) / width_.lanes;
  const std::size_t step = width_.tile;
  T* p = scratch_.p;
  T* ds = scratch_.ds;
  Panels& panels = scratch_.panels;
  const flash::GradientPanel panel{.query = begin, .queries = rows, .key = at, .keys = count};
  panels.scores(p, ds, panel, vectors);
  if (dropout.any()) {
    dropout.factors_by_query(begin, rows, key_ + at, count, scratch_.factors, step);
    flash::multiply_all(ds, scratch_.factors, rows * step);
  }
  flash::score_gradients({.p = p,
                          .ds = ds,
                          .queries = rows,
                          .keys = vectors * width_.lanes,
                          .step = step,
                          .diagonal = visible_.diagonal(key_ + at, first + begin, keys_),
                          .window = visible_.window(),
                          .documents = visible_.starts(key_ + at, first + begin, rows),
                          .dealt = visible_.dealt_documents(first + begin, rows, key_ + at, count),
                          .scale = static_cast<T>(all_.attention.scale),
                          .bound = static_cast<T>(all_.attention.bound()),
                          .maximum = scratch_.maximum + begin,
                          .log_sum = scratch_.log_sum + begin,
                          .delta = scratch_.delta + begin});
  if (dropout.any()) flash::multiply_all(p, scratch_.factors, rows * step);
  panels.take(p, ds, panel);
  for (std::size_t column = 0; column < padded_d_; column += panels.head_width()) {
    if (!must_skip_hidden_) {
      panels.add_over_queries(scratch_.dv, scratch_.dk, column, 0, count, 0, rows);
      panels.add_over_keys(scratch_.dq, column, 0, rows, 0, count);
      continue;
    }
    const std::size_t query = first + begin;
    if (visible_.dealt()) {
      add_seen(column, query, rows, at, count);
      continue;
    }
    for (std::size_t key = 0; key < count; ++key) {
      const auto of_panel = [&](std::size_t of_view) { return std::clamp(of_view, query, query + rows) - query; };
      const std::size_t seen_by = of_panel(visible_.first_query_of(key_ + at + key));
      const std::size_t seen_before = of_panel(visible_.end_query_of(key_ + at + key));
      panels.add_over_queries(scratch_.dv, scratch_.dk, column, key, 1, std::min(seen_by, seen_before), seen_before);
    }
    for (std::size_t i = 0; i < rows; ++i) {
      const auto of_panel = [&](std::size_t of_view) { return std::clamp(of_view, key_ + at, key_ + at + count) - (key_ + at); };
      const std::size_t seen_from = of_panel(visible_.first_key_of(query + i));
      const std::size_t seen = of_panel(visible_.end_key_of(query + i));
      panels.add_over_keys(scratch_.dq, column, i, 1, std::min(seen_from, seen), seen);
    }
  }
}

/// Adds a panel's products for the pairs that dealt documents leave alone.
template <class Panels>
void KeyTile<Panels>::add_seen(std::size_t column, std::size_t query, std::size_t queries, std::size_t at, std::size_t keys) {
  for (std::size_t key = 0; key < keys; ++key) {
    const auto sees = [&](std::size_t i) { return visible_.sees(query + i, key_ + at + key); };
    flash::for_seen(queries, sees, [&](std::size_t from, std::size_t to) {
      scratch_.panels.add_over_queries(scratch_.dv, scratch_.dk, column, key, 1, from, to);
    });
  }
  for (std::size_t i = 0; i < queries; ++i) {
    const auto sees = [&](std::size_t key) { return visible_.sees(query + i, key_ + at + key); };
    flash::for_seen(keys, sees, [&](std::size_t from, std::size_t to) {
      scratch_.panels.add_over_keys(scratch_.dq, column, i, 1, from, to);
    });
  }
}

template <class Panels>
void run(const Compute& on, const Operands& all) {
  const std::size_t bytes = thread_bytes(all.q.dtype(), all.q.size(3));
  const std::size_t query_tiles = all.query_tiles();
  const std::size_t key_tiles = all.key_tiles();
  const std::size_t kv_heads = all.k.size(2);
  const std::size_t units = all.q.size(0) * kv_heads;
  const auto scratch_of = [&](std::size_t thread) {
    Carver carver(workspace_part(on.workspace, bytes, thread));
    return Scratch<Panels>(carver, all.q.size(3));
  };
  const auto heads_of = [&](std::size_t unit) { return HeadRange(all.attention.heads, unit % kv_heads, all.q.size(2)); };
  const auto key_tile = [&](std::size_t unit, std::size_t i, Scratch<Panels>& scratch) {
    return KeyTile<Panels>(all, scratch, unit / kv_heads, unit % kv_heads, i * kKeys);
  };
  // Query tile j of a K/V head is tile j % query_tiles of the (j / query_tiles)-th query head that reads it.
  if (units % on.threads() == 0 || units >= 4 * on.threads()) {
    on.run(units, [&](std::size_t unit, std::size_t thread) {
      Scratch<Panels> scratch = scratch_of(thread);
      const HeadRange heads = heads_of(unit);
      for (std::size_t i = 0; i < key_tiles; ++i) {
        KeyTile<Panels> keys = key_tile(unit, i, scratch);
        if (!keys.seen()) continue;
        keys.begin();
        for (std::size_t j = 0; j < heads.size() * query_tiles; ++j) {
          const std::size_t query = j % query_tiles * kQueries;
          if (!keys.seen_from(query)) continue;
          keys.add(heads.first + j / query_tiles, query);
          if (thread == 0) on.tick();
        }
        keys.end();
      }
    });
    return;
  }
  for (std::size_t unit = 0; unit < units; ++unit) {
    const HeadRange heads = heads_of(unit);
    const std::size_t tiles = heads.size() * query_tiles;
    for (std::size_t wave = 0; tiles > 0 && wave + 1 < key_tiles + tiles; ++wave) {
      const std::size_t first = wave < tiles ? 0 : wave - tiles + 1;
      const std::size_t last = std::min(wave, key_tiles - 1);
      on.run(last - first + 1, [&](std::size_t task, std::size_t thread) {
        const std::size_t i = first + task;
        const std::size_t j = wave - i;
        Scratch<Panels> scratch = scratch_of(thread);
        KeyTile<Panels> keys = key_tile(unit, i, scratch);
        const std::size_t query = j % query_tiles * kQueries;
        if (!keys.seen_from(query)) return;
        keys.begin();
        keys.add(heads.first + j / query_tiles, query);
        keys.end();
      });
    }
  }
}

}  // namespace

void flash_backward(const Compute& on, const Attention& attention, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                    const ConstTensor& d_o, const ConstTensor& lse, const ConstTensor& delta, const ConstTensor& q,
                    const ConstTensor& k, const ConstTensor& v, Write write) {
  flash::check_operands(kKernel, attention, q, k, v);
  flash::check_lse(kKernel, lse, q);
  flash::check_delta(kKernel, delta, q);
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
    run<flash::WideGradients<double>>(on, all);
  } else if (flash::in_pairs(q.dtype())) {
    run<flash::PairGradients>(on, all);
  } else {
    run<flash::WideGradients<float>>(on, all);
  }
}

std::size_t flash_backward_workspace(DType dtype, std::size_t head_dim, std::size_t threads) {
  return workspace_bytes(thread_bytes(dtype, head_dim), threads);
}

}  // namespace tsprun::detail::kernels
