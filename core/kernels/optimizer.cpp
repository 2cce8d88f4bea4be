// AdamW and sums of squares, in tasks of fixed size.
#include "core/kernels/optimizer.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#ifndef TSP_KERNEL_BATCH  // see core/CMakeLists.txt
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/optimizer.cpp"
#include <hwy/foreach_target.h>
#endif
// After foreach_target.h, as Highway asks.
#include "core/kernels/lanes-inl.h"

#ifndef TSP_KERNELS_OPTIMIZER_TYPES
#define TSP_KERNELS_OPTIMIZER_TYPES
namespace tsprun::detail::kernels {
/// A piece of an update. `updated` is the master copy or the parameters themselves; `rounded` is the bf16 parameters or null.
struct UpdatePiece {
  std::size_t first;
  std::size_t count;
  Row updated;
  Row rounded;
  Row m;
  Row v;
  ConstRow gradient;
  double keep;        // 1 − lr·decay
  double rate;        // lr / (1 − β1^step)
  double correction;  // 1 / √(1 − β2^step)
};
}  // namespace tsprun::detail::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tsprun::detail::kernels {
namespace HWY_NAMESPACE {

template <class T>
void update_typed(const AdamW& options, const UpdatePiece& piece) {
  const hn::ScalableTag<T> d;
  const auto constant = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const auto beta1 = constant(options.beta1);
  const auto beta2 = constant(options.beta2);
  const auto rest1 = constant(1 - options.beta1);
  const auto rest2 = constant(1 - options.beta2);
  const auto epsilon = constant(options.epsilon);
  const auto scale = constant(options.gradient_scale);
  const auto keep = constant(piece.keep);
  const auto rate = constant(piece.rate);
  const auto correction = constant(piece.correction);
  for_lanes(d, piece.count, [&](std::size_t at, std::size_t n) HWY_ATTR {
    const std::size_t i = piece.first + at;
    const auto g = hn::Mul(scale, load(d, piece.gradient, i, n));
    const auto m = hn::MulAdd(beta1, load(d, ConstRow(piece.m), i, n), hn::Mul(rest1, g));
    const auto v = hn::MulAdd(beta2, load(d, ConstRow(piece.v), i, n), hn::Mul(rest2, hn::Mul(g, g)));
    const auto step = hn::Div(hn::Mul(rate, m), hn::MulAdd(hn::Sqrt(v), correction, epsilon));
    const auto p = hn::Sub(hn::Mul(keep, load(d, ConstRow(piece.updated), i, n)), step);
    store(d, m, piece.m, i, n);
    store(d, v, piece.v, i, n);
    store(d, p, piece.updated, i, n);
    if (piece.rounded.data != nullptr) store(d, p, piece.rounded, i, n);
  });
}

void update(const AdamW& options, const UpdatePiece& piece) {
  piece.m.dtype == DType::f64 ? update_typed<double>(options, piece) : update_typed<float>(options, piece);
}

/// Returns the sums of each lane and the squares of x, whose first element belongs to the first lane. Elements are widened to f64
/// before they are squared.
template <class D, class T>
HWY_INLINE hn::Vec<D> plus_squares(D d, hn::Vec<D> sum, const T* x, std::size_t count) {
  for_lanes(d, count, [&](std::size_t i, std::size_t n) HWY_ATTR {
    alignas(64) double wide[HWY_LANES(double)] = {};
    for (std::size_t lane = 0; lane < HWY_MIN(n, hn::Lanes(d)); ++lane) wide[lane] = static_cast<double>(x[i + lane]);
    const auto value = hn::Load(d, wide);
    sum = hn::MulAdd(value, value, sum);
  });
  return sum;
}

template <class T>
double squares_typed(const T* x, std::size_t count) {
  const hn::ScalableTag<double> d;
  return sum_of_lanes(d, plus_squares(d, hn::Zero(d), x, count));
}

/// Adds the squares of x to the lanes of a block of which it is elements `first`, first + 1, …
template <class T>
void add_squares_typed(double* lanes, const T* x, std::size_t first, std::size_t count) {
  const hn::ScalableTag<double> d;
  static_assert(HWY_LANES(double) <= std::tuple_size_v<SquareLanes>);
  auto sum = hn::LoadU(d, lanes);
  const std::size_t lane = first % hn::Lanes(d);
  const std::size_t head = lane == 0 ? 0 : HWY_MIN(hn::Lanes(d) - lane, count);
  alignas(64) double wide[HWY_LANES(double)] = {};
  for (std::size_t i = 0; i < head; ++i) wide[lane + i] = static_cast<double>(x[i]);
  const auto value = hn::Load(d, wide);
  sum = plus_squares(d, hn::MulAdd(value, value, sum), x + head, count - head);
  hn::StoreU(sum, d, lanes);
}

void add_squares_of(double* lanes, const ConstRow& x, std::size_t at, std::size_t first, std::size_t count) {
  if (x.dtype == DType::f64) add_squares_typed(lanes, reinterpret_cast<const double*>(x.data) + at, first, count);
  else add_squares_typed(lanes, reinterpret_cast<const float*>(x.data) + at, first, count);
}

double sum_of_square_lanes(const double* lanes) {
  const hn::ScalableTag<double> d;
  return sum_of_lanes(d, hn::LoadU(d, lanes));
}

double squares(const ConstRow& x, std::size_t first, std::size_t count) {
  switch (x.dtype) {
    case DType::f64: return squares_typed(reinterpret_cast<const double*>(x.data) + first, count);
    case DType::f32: return squares_typed(reinterpret_cast<const float*>(x.data) + first, count);
    default: {
      // bf16 is widened to f32 in blocks of 1024 elements.
      const hn::ScalableTag<float> d;
      alignas(64) float wide[1024];
      double sum = 0;
      for (std::size_t at = 0; at < count; at += 1024) {
        const std::size_t some = HWY_MIN(count - at, std::size_t{1024});
        for_lanes(d, some, [&](std::size_t i, std::size_t n) HWY_ATTR { store(d, load(d, x, first + at + i, n), wide + i, n); });
        sum += squares_typed(wide, some);
      }
      return sum;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsprun::detail::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tsprun::detail::kernels {

HWY_EXPORT(update);
HWY_EXPORT(squares);
HWY_EXPORT(add_squares_of);
HWY_EXPORT(sum_of_square_lanes);

namespace {

std::size_t blocks_of(std::size_t elements) { return pieces(elements, kTaskElements); }

}  // namespace

void adamw(const Compute& on, const AdamW& options, const Tensor& parameters, const Tensor& master, const Tensor& m,
           const Tensor& v, const ConstTensor& gradient) {
  constexpr char kKernel[] = "adamw";
  require(parameters.contiguous() && computes(parameters.dtype()), kKernel, "the parameters must be contiguous, of a float type",
          parameters);
  const bool rounded = parameters.dtype() == DType::bf16;
  for (const ConstTensor& state : {ConstTensor(m), ConstTensor(v), gradient, rounded ? ConstTensor(master) : gradient}) {
    require(state.contiguous() && state.elements() == parameters.elements() && state.dtype() == summed_in(parameters.dtype()),
            kKernel, "master copy, moments and gradient must be contiguous, as many as the parameters, of the type of sums",
            state);
  }
  require(rounded || master.dims() == 0, kKernel, "only bf16 parameters have a master copy", master);
  const auto step = static_cast<double>(options.step);
  UpdatePiece whole{};
  whole.updated = rounded ? Row{master.data(), master.dtype()} : Row{parameters.data(), parameters.dtype()};
  if (rounded) whole.rounded = {parameters.data(), parameters.dtype()};
  whole.m = {m.data(), m.dtype()};
  whole.v = {v.data(), v.dtype()};
  whole.gradient = {gradient.data(), gradient.dtype()};
  whole.keep = 1 - options.learning_rate * options.weight_decay;
  whole.rate = options.learning_rate / (1 - std::pow(options.beta1, step));
  whole.correction = 1 / std::sqrt(1 - std::pow(options.beta2, step));
  const std::size_t elements = parameters.elements();
  on.run(blocks_of(elements), [&](std::size_t task, std::size_t) {
    UpdatePiece piece = whole;
    piece.first = task * kTaskElements;
    piece.count = std::min(kTaskElements, elements - piece.first);
    HWY_DYNAMIC_DISPATCH(update)(options, piece);
  });
}

double sum_of_squares(const Compute& on, const ConstTensor& x) {
  constexpr char kKernel[] = "sum_of_squares";
  require(x.contiguous() && computes(x.dtype()), kKernel, "the tensor must be contiguous, of a float type", x);
  const std::size_t elements = x.elements();
  check_workspace(on, kKernel, sum_of_squares_workspace(elements));
  if (elements == 0) return 0;
  double* sums = Carver(on.workspace).take<double>(blocks_of(elements));
  on.run(blocks_of(elements), [&](std::size_t task, std::size_t) {
    const std::size_t first = task * kTaskElements;
    sums[task] = HWY_DYNAMIC_DISPATCH(squares)({x.data(), x.dtype()}, first, std::min(kTaskElements, elements - first));
  });
  double sum = 0;
  for (std::size_t block = 0; block < blocks_of(elements); ++block) sum += sums[block];
  return sum;
}

std::size_t sum_of_squares_workspace(std::size_t elements) { return workspace_bytes(blocks_of(elements) * sizeof(double), 1); }

void add_squares(const Compute& on, std::span<SquareLanes> blocks, const ConstTensor& x, std::size_t first) {
  constexpr char kKernel[] = "add_squares";
  require(x.contiguous() && (x.dtype() == DType::f32 || x.dtype() == DType::f64), kKernel,
          "the tensor must be contiguous, of f32 or f64", x);
  const std::size_t end = first + x.elements();
  const std::size_t before = first / kSquaresBlock;
  require(blocks.size() == pieces(end, kSquaresBlock) - std::min(before, pieces(end, kSquaresBlock)), kKernel,
          "there must be lanes for each block that the tensor has elements of", x);
  on.run(blocks.size(), [&](std::size_t task, std::size_t) {
    const std::size_t block = (before + task) * kSquaresBlock;
    const std::size_t from = std::max(first, block);
    HWY_DYNAMIC_DISPATCH(add_squares_of)
    (blocks[task].data(), {x.data(), x.dtype()}, from - first, from - block, std::min(end, block + kSquaresBlock) - from);
  });
}

double sum_of(const SquareLanes& lanes) { return HWY_DYNAMIC_DISPATCH(sum_of_square_lanes)(lanes.data()); }

double clip_factor(double norm, double limit) { return limit == 0 ? 1 : std::min(1.0, limit / (norm + 1e-6)); }

}  // namespace tsprun::detail::kernels

#endif  // HWY_ONCE
