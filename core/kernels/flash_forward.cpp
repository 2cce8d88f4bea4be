// Flash attention, forward. A task is a block of queries of one head: it walks over tiles of keys with a running maximum and sum
// (online softmax) and an unnormalised output in workspace.
//
// Tiles are computed transposed, keys × queries: scores = K·Qᵀ and O += scoresᵀ·V are what OpenBLAS packs well without help
// (within 5% of pre-packed operands for 512 keys × 256 queries).
#include "core/kernels/flash.h"

#include "core/kernels/blas.h"
#include "core/kernels/flash_dropout.h"
#include "core/kernels/flash_rows.h"
#include "core/kernels/flash_tiles.h"

#include <array>
#include <cmath>
#include <limits>

namespace tsp::kernels {

namespace {

using flash::head;
using flash::Rows;
using flash::Visibility;

constexpr char kKernel[] = "flash_forward";
constexpr std::size_t kKeys = 512;
/// Tiles on the diagonal have fewer keys, and leave out queries that see none of them.
constexpr std::size_t kDiagonalKeys = 128;
constexpr std::size_t kVector = 16;

/// Queries of a task: tiles of scores, keys, values and outputs share an L2 of 1 MB.
std::size_t block_queries(DType dtype, std::size_t head_dim) { return dtype == DType::f64 || head_dim > 128 ? 128 : 256; }

/// A thread's workspace.
template <class T>
struct Scratch {
  T* scores;
  T* output;
  T* maximum;
  T* sum;
  T* factor;
  T* q = nullptr;  // bf16 only, widened
  T* k = nullptr;
  T* v = nullptr;

  Scratch(std::span<std::byte> space, std::size_t queries, std::size_t head_dim, bool widen) {
    Carver carver(space);
    scores = carver.take<T>(kKeys * queries);
    output = carver.take<T>(queries * head_dim);
    maximum = carver.take<T>(queries);
    sum = carver.take<T>(queries);
    factor = carver.take<T>(queries);
    if (!widen) return;
    q = carver.take<T>(queries * head_dim);
    k = carver.take<T>(kKeys * head_dim);
    v = carver.take<T>(kKeys * head_dim);
  }
  static std::size_t bytes(std::size_t queries, std::size_t head_dim, bool widen) {
    const auto array = [](std::size_t count) { return round_up(count * sizeof(T), kLine); };
    const std::size_t own = array(kKeys * queries) + array(queries * head_dim) + 3 * array(queries);
    return own + (widen ? array(queries * head_dim) + 2 * array(kKeys * head_dim) : 0);
  }
};

std::size_t thread_bytes(DType dtype, std::size_t head_dim) {
  const std::size_t queries = block_queries(dtype, head_dim);
  if (dtype == DType::f64) return Scratch<double>::bytes(queries, head_dim, false);
  return Scratch<float>::bytes(queries, head_dim, dtype == DType::bf16);
}

/// Keys of the tile that begins at `key`, for queries that all see keys [0, full) and none beyond `end`.
std::size_t tile_keys(std::size_t key, std::size_t full, std::size_t end) {
  const std::size_t open = full > key ? full - key : 0;
  if (open >= end - key) return std::min(kKeys, end - key);
  if (open >= kDiagonalKeys / 2) return std::min(kKeys, open / kVector * kVector);
  return std::min(kDiagonalKeys, end - key);
}

/// Probabilities [keys, queries] of a tile, after they were added up.
template <class T>
void drop(flash::TileDropout& dropout, std::size_t key, std::size_t keys, std::size_t query, std::size_t queries, T* scores) {
  std::array<T, flash::TileDropout::kMostQueries> factors;
  dropout.take_queries(query, queries);
  for (std::size_t j = 0; j < keys; ++j) {
    dropout.factors(key + j, factors.data());
    flash::multiply_row(scores + j * queries, factors.data(), queries);
  }
}

/// Attention of queries [first, first + queries) of one head.
template <class T>
void forward_block(const Attention& attention, flash::TileDropout& dropout, const ConstTensor& q, const ConstTensor& k,
                   const ConstTensor& v, std::size_t first, std::size_t queries, const Scratch<T>& scratch, const Tick& tick) {
  const std::size_t d = q.size(1);
  const Visibility visible(attention.mask, k.size(0));
  const Rows<T> q_rows(q.slice(0, first, queries), scratch.q);
  std::fill_n(scratch.output, queries * d, T{0});
  std::fill_n(scratch.sum, queries, T{0});
  std::fill_n(scratch.maximum, queries, -std::numeric_limits<T>::infinity());
  const std::size_t full = visible.keys_seen_by(first);
  const std::size_t end = visible.keys_seen_by(first + queries - 1);
  for (std::size_t key = 0; key < end;) {
    const std::size_t keys = tile_keys(key, full, end);
    // Queries before `skip` see none of these keys.
    const std::size_t sighted = visible.first_query_of(key);
    const std::size_t skip = sighted > first ? (sighted - first) / kVector * kVector : 0;
    const std::size_t count = queries - skip;
    const Rows<T> k_rows(k.slice(0, key, keys), scratch.k);
    blas::multiply({.m = keys,
                    .n = count,
                    .k = d,
                    .a = k_rows.data,
                    .a_step = k_rows.step,
                    .b = q_rows.data + skip * q_rows.step,
                    .b_step = q_rows.step,
                    .b_transposed = true,
                    .c = scratch.scores,
                    .c_step = count});
    flash::online_softmax({.scores = scratch.scores,
                           .keys = keys,
                           .queries = count,
                           .step = count,
                           .diagonal = visible.diagonal(key, first + skip, keys),
                           .scale = static_cast<T>(attention.scale),
                           .maximum = scratch.maximum + skip,
                           .sum = scratch.sum + skip,
                           .factor = scratch.factor + skip});
    if (dropout.any()) drop(dropout, key, keys, first + skip, count, scratch.scores);
    flash::scale_rows(scratch.output + skip * d, count, d, d, scratch.factor + skip);
    const Rows<T> v_rows(v.slice(0, key, keys), scratch.v);
    blas::multiply({.m = count,
                    .n = d,
                    .k = keys,
                    .a = scratch.scores,
                    .a_step = count,
                    .a_transposed = true,
                    .b = v_rows.data,
                    .b_step = v_rows.step,
                    .c = scratch.output + skip * d,
                    .c_step = d,
                    .add = true});
    key += keys;
    if (key < end) tick();
  }
}

/// o = output / sum, lse = maximum + ln sum.
template <class T>
void finish_block(const Tensor& o, const Tensor& lse, const Scratch<T>& scratch) {
  const std::size_t queries = o.size(0);
  const std::size_t d = o.size(1);
  T* lse_data = lse.template as<T>();
  for (std::size_t i = 0; i < queries; ++i) {
    const T sum = scratch.sum[i];
    lse_data[i * lse.stride(0)] = sum == T{0} ? -std::numeric_limits<T>::infinity()
                                              : static_cast<T>(flash::kExponentUnit<T>) * scratch.maximum[i] + std::log(sum);
    scratch.factor[i] = sum == T{0} ? T{0} : T{1} / sum;
  }
  flash::scale_rows(scratch.output, queries, d, d, scratch.factor);
  convert({}, o, Tensor(reinterpret_cast<std::byte*>(scratch.output), dtype_of<T>(), {queries, d}));
}

template <class T>
void run(const Compute& on, const Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
         const ConstTensor& k, const ConstTensor& v) {
  const std::size_t d = q.size(3);
  const std::size_t heads = q.size(2);
  const std::size_t queries = block_queries(q.dtype(), d);
  const std::size_t blocks = (q.size(1) + queries - 1) / queries;
  const std::size_t bytes = thread_bytes(q.dtype(), d);
  on.run(q.size(0) * heads * blocks, [&](std::size_t task, std::size_t thread) {
    // The last blocks see most: they come first, so that threads finish together.
    const std::size_t block = blocks - 1 - task % blocks;
    const std::size_t number = task / blocks % heads;
    const std::size_t batch = task / blocks / heads;
    const std::size_t first = block * queries;
    const std::size_t count = std::min(queries, q.size(1) - first);
    const std::size_t kv = (attention.heads.first_query + number) / attention.heads.group - attention.heads.first_kv;
    const Scratch<T> scratch(workspace_part(on.workspace, bytes, thread), queries, d, q.dtype() == DType::bf16);
    flash::TileDropout dropout(attention.dropout, batch, number);
    forward_block<T>(attention, dropout, head(q, batch, number), head(k, batch, kv), head(v, batch, kv), first, count, scratch,
                     thread == 0 ? on.tick : Tick());
    finish_block<T>(head(o, batch, number).slice(0, first, count), lse.select(0, batch).select(0, number).slice(0, first, count),
                    scratch);
  });
}

}  // namespace

void flash_forward(const Compute& on, const Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                   const ConstTensor& k, const ConstTensor& v) {
  flash::check_operands(kKernel, attention, q, k, v);
  flash::check_row_values(kKernel, lse, q);
  require(same_shape(o, q) && dense_rows(o) && (o.dtype() == q.dtype() || o.dtype() == summed_in(q.dtype())), kKernel,
          "o must have q's shape, and its type or that of sums", o);
  check_workspace(on, kKernel, flash_forward_workspace(q.dtype(), q.size(3), on.threads()));
  if (q.dtype() == DType::f64) {
    run<double>(on, attention, o, lse, q, k, v);
  } else {
    run<float>(on, attention, o, lse, q, k, v);
  }
}

std::size_t flash_forward_workspace(DType dtype, std::size_t head_dim, std::size_t threads) {
  return workspace_bytes(thread_bytes(dtype, head_dim), threads);
}

}  // namespace tsp::kernels
