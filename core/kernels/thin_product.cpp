// The loops of thin_product(), for 1 to 4 rows of A at once, and how they are cut into tasks.
#include "core/kernels/thin_product.h"

#include "core/kernels/check.h"
#include "core/kernels/elementwise.h"

#include <algorithm>
#include <array>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/thin_product.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

#ifndef TSP_KERNELS_THIN_PRODUCT_TYPES
#define TSP_KERNELS_THIN_PRODUCT_TYPES
namespace tsprun::detail::kernels {
namespace {

constexpr std::size_t kPageBytes = 4096;

/// A task's part of a product. Pointers are to f64 if B is f64; otherwise x and y are to f32, and w to f32 or bf16.
struct Stretch {
  std::size_t m = 0;        // rows of A
  std::size_t rows = 0;     // stored rows of B
  std::size_t columns = 0;  // and their elements
  const void* x = nullptr;  // of A
  std::size_t x_step = 0;
  const void* w = nullptr;  // of B
  std::size_t w_step = 0;
  void* y = nullptr;  // of C or of a partial sum
  std::size_t y_step = 0;
};

}  // namespace
}  // namespace tsprun::detail::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

/// Asks for the lines of B's elements [from, from + count) that lie a page ahead, into the second cache: the processor itself
/// doesn't look beyond a page, and the first cache's few fetches at a time are left for what is read next.
template <class B>
HWY_INLINE void fetch_ahead(const B* from, std::size_t count) {
  constexpr int kIntoSecondCache = 2;
  for (std::size_t at = 0; at < count; at += kLine / sizeof(B)) {
    __builtin_prefetch(from + at + kPageBytes / sizeof(B), 0, kIntoSecondCache);
  }
}

/// y[m, row] = Σ_i x[m, i]·w[row, i]. Four sums in turns hide the latency of an addition.
template <std::size_t M, class B>
void dot_rows(const Stretch& of) {
  using T = Accumulator<B>;
  const Tag<B> d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kSums = 4;
  const auto* x = static_cast<const T*>(of.x);
  auto* y = static_cast<T*>(of.y);
  for (std::size_t row = 0; row < of.rows; ++row) {
    const B* w = static_cast<const B*>(of.w) + row * of.w_step;
    hn::Vec<decltype(d)> sums[M][kSums];
    for (auto& turns : sums) {
      for (auto& sum : turns) sum = hn::Zero(d);
    }
    std::size_t i = 0;
    for (; i + kSums * lanes <= of.columns; i += kSums * lanes) {
      fetch_ahead(w + i, kSums * lanes);
      for (std::size_t s = 0; s < kSums; ++s) {
        const auto weights = load_full(d, w + i + s * lanes);
        for (std::size_t m = 0; m < M; ++m) {
          sums[m][s] = hn::MulAdd(weights, load_full(d, x + m * of.x_step + i + s * lanes), sums[m][s]);
        }
      }
    }
    for (; i < of.columns; i += lanes) {
      const std::size_t count = HWY_MIN(lanes, of.columns - i);
      const auto weights = load(d, w + i, count);
      for (std::size_t m = 0; m < M; ++m) {
        sums[m][0] = hn::MulAdd(weights, load(d, x + m * of.x_step + i, count), sums[m][0]);
      }
    }
    for (std::size_t m = 0; m < M; ++m) {
      const auto sum = hn::Add(hn::Add(sums[m][0], sums[m][1]), hn::Add(sums[m][2], sums[m][3]));
      y[m * of.y_step + row] = sum_of_lanes(d, sum);
    }
  }
}

/// y[m, :] = Σ_row x[m, row]·w[row, :], row by row: so B is read as one stream, while y stays in the caches.
template <std::size_t M, class B>
void sum_rows(const Stretch& of) {
  using T = Accumulator<B>;
  const Tag<B> d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kVectors = 4;
  const auto* x = static_cast<const T*>(of.x);
  for (std::size_t row = 0; row < of.rows; ++row) {
    const B* w = static_cast<const B*>(of.w) + row * of.w_step;
    const auto add = [&](std::size_t i, std::size_t count) HWY_ATTR {
      const auto weights = load(d, w + i, count);
      for (std::size_t m = 0; m < M; ++m) {
        T* y = static_cast<T*>(of.y) + m * of.y_step + i;
        const auto sum = row == 0 ? hn::Zero(d) : load(d, y, count);
        store(d, hn::MulAdd(weights, hn::Set(d, x[m * of.x_step + row]), sum), y, count);
      }
    };
    std::size_t i = 0;
    for (; i + kVectors * lanes <= of.columns; i += kVectors * lanes) {
      fetch_ahead(w + i, kVectors * lanes);
      for (std::size_t vector = 0; vector < kVectors; ++vector) add(i + vector * lanes, lanes);
    }
    for (; i < of.columns; i += lanes) add(i, HWY_MIN(lanes, of.columns - i));
  }
}

template <std::size_t M, class B>
void multiply_rows(const Stretch& of, bool dots) {
  if (dots) return dot_rows<M, B>(of);
  sum_rows<M, B>(of);
}

template <class B>
void multiply_any_rows(const Stretch& of, bool dots) {
  switch (of.m) {
    case 1: return multiply_rows<1, B>(of, dots);
    case 2: return multiply_rows<2, B>(of, dots);
    case 3: return multiply_rows<3, B>(of, dots);
    default: return multiply_rows<4, B>(of, dots);
  }
}

void multiply(const Stretch& of, DType weights, bool dots) {
  if (weights == DType::f64) return multiply_any_rows<double>(of, dots);
  if (weights == DType::bf16) return multiply_any_rows<bf16>(of, dots);
  multiply_any_rows<float>(of, dots);
}

/// Adds `count` partial sums of `elements` each, one behind the other, in order; the sum replaces the first.
template <class T>
void add_up(T* sums, std::size_t count, std::size_t elements) {
  const hn::ScalableTag<T> d;
  for_lanes(d, elements, [&](std::size_t i, std::size_t lanes) HWY_ATTR {
    auto total = load(d, sums + i, lanes);
    for (std::size_t sum = 1; sum < count; ++sum) total = hn::Add(total, load(d, sums + sum * elements + i, lanes));
    store(d, total, sums + i, lanes);
  });
}

void add_partial_sums(const Tensor& sums) {
  if (sums.dtype() == DType::f64) return add_up(sums.as<double>(), sums.size(0), sums.size(1));
  add_up(sums.as<float>(), sums.size(0), sums.size(1));
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(multiply);
HWY_EXPORT(add_partial_sums);

namespace {

constexpr std::size_t kThinRows = 4;
/// Elements of B of a task by dots: few, so that threads finish together. (A task by sums may have more, as each costs a partial
/// sum.)
constexpr std::size_t kDotElements = 65536;
/// Columns of a partial sum that stay in the first cache beside the rows that stream through it.
constexpr std::size_t kColumns = 4096;
/// Most partial sums of an output.
constexpr std::size_t kPartialSums = 32;

/// How a product is cut into tasks. By dots a task is a stretch of B's stored rows [N, K], otherwise a stretch of its stored rows
/// [K, N] by a stretch of columns.
struct Cut {
  ConstTensor stored;
  bool dots;
  std::size_t rows;     // of a task
  std::size_t columns;  // of a task
  std::size_t partial_sums;

  explicit Cut(const ConstTensor& b) : stored(b), dots(!dense_rows(b) || (b.size(1) == 1 && b.stride(0) == 1)) {
    if (dots) stored = b.transposed(0, 1);
    columns = dots ? stored.size(1) : std::min(stored.size(1), kColumns);
    rows = dots ? std::max<std::size_t>(1, kDotElements / columns) : rows_per_task(columns);
    if (!dots) rows = std::max(rows, pieces(stored.size(0), kPartialSums));
    partial_sums = dots ? 1 : pieces(stored.size(0), rows);
  }
  std::size_t down() const { return pieces(stored.size(0), rows); }
  std::size_t across() const { return pieces(stored.size(1), columns); }
  /// Returns whether tasks write to C itself.
  bool in_place(const ConstTensor& c, DType sums, Write write) const {
    return partial_sums == 1 && write == Write::replace && c.dtype() == sums;
  }
};

}  // namespace

bool thin(const ConstTensor& a, const ConstTensor& b) {
  return a.size(0) > 0 && a.size(0) <= kThinRows && dense_rows(a) && a.size(1) > 0 && b.size(1) > 0;
}

std::size_t thin_product_workspace(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b) {
  const DType sums = summed_in(c.dtype());
  const Cut cut(b);
  std::size_t bytes = kLine;
  if (a.dtype() != sums) bytes += round_up(a.elements() * size_of(sums), kLine);
  // Enough for Write::add, too.
  bytes += round_up(cut.partial_sums * c.elements() * size_of(sums), kLine);
  return bytes;
}

void thin_product(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write) {
  check_workspace(on, "gemm", thin_product_workspace(c, a, b));
  const DType sums = summed_in(c.dtype());
  const std::size_t size = size_of(sums);
  const Cut cut(b);
  const std::size_t m = c.size(0);
  const std::size_t n = c.size(1);
  Carver carver(on.workspace);
  ConstTensor x = a;
  if (a.dtype() != sums) {
    const Tensor wide(carver.take<std::byte>(a.elements() * size), sums, {m, a.size(1)});
    convert({}, wide, a);
    x = wide;
  }
  const bool in_place = cut.in_place(c, sums, write);
  std::byte* partial = in_place ? c.data() : carver.take<std::byte>(cut.partial_sums * m * n * size);
  const std::size_t y_step = in_place && m > 1 ? c.stride(0) : n;
  on.run(cut.down() * cut.across(), [&](std::size_t task, std::size_t) {
    const std::size_t down = task / cut.across();
    const std::size_t row = down * cut.rows;
    const std::size_t column = task % cut.across() * cut.columns;
    Stretch of;
    of.m = m;
    of.rows = std::min(cut.rows, cut.stored.size(0) - row);
    of.columns = std::min(cut.columns, cut.stored.size(1) - column);
    of.x = x.data() + (cut.dots ? 0 : row * size);
    of.x_step = m > 1 ? x.stride(0) : 0;
    of.w = cut.stored.slice(0, row, of.rows).slice(1, column, of.columns).data();
    of.w_step = of.rows > 1 ? cut.stored.stride(0) : 0;
    of.y = partial + (cut.dots ? row : down * m * n + column) * size;
    of.y_step = y_step;
    HWY_DYNAMIC_DISPATCH(multiply)(of, b.dtype(), cut.dots);
  });
  if (in_place) return;
  if (cut.partial_sums > 1) HWY_DYNAMIC_DISPATCH(add_partial_sums)(Tensor(partial, sums, {cut.partial_sums, m * n}));
  const ConstTensor total(partial, sums, {m, n});
  if (write == Write::add) {
    add({}, c, c, total);
  } else {
    convert({}, c, total);
  }
}

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
