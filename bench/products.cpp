// Times products. In a round each library computes a product, one after the other; which is the first rotates.
#include "products.h"

#include "core/kernels/gemm.h"
#include "core/kernels/gemm_library.h"
#include "core/kernels/level.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <random>
#include <string>
#include <vector>

namespace tsprun::bench {

namespace {

using detail::ConstTensor;
using detail::Tensor;
namespace kernels = detail::kernels;
using kernels::GemmLibrary;

/// Ways to compute a product. `bare`: one call of OpenBLAS for all of it, on one thread, without tiles and ticks.
enum class Way : std::uint8_t { tsprun, openblas, bare };
constexpr std::size_t kWays = 3;

/// A product C [m, n] = A [m, k] · B [k, n] as a block has it.
struct Shape {
  std::string what;
  DType dtype;
  std::size_t m, n, k;
  bool a_transposed;
  bool b_transposed;
};

/// Returns the products of blocks: x·Wᵀ of the forward pass, dy·W and dyᵀ·x of the backward pass, for m tokens.
std::vector<Shape> shapes(const ProductOptions& options) {
  std::vector<Shape> all;
  const auto add = [&](DType dtype, std::size_t tokens, std::size_t out, std::size_t in) {
    const std::string weight = fmt::format("m {} W {}x{}", tokens, out, in);
    all.push_back({"x·Wᵀ " + weight, dtype, tokens, out, in, false, true});
    if (tokens < 64) return;  // decoding has no backward pass
    all.push_back({"dy·W " + weight, dtype, tokens, in, out, false, false});
    all.push_back({"dyᵀ·x " + weight, dtype, out, in, tokens, true, false});
  };
  for (const std::size_t hidden : options.hidden) {
    for (const std::size_t tokens : {1U, 4U, 8U, 16U, 64U, 256U, 1024U, 4096U}) add(DType::f32, tokens, hidden, hidden);
    for (const std::size_t tokens : {64U, 1024U}) {
      add(DType::f64, tokens, hidden, hidden);
      if (hidden != 1024) continue;
      add(DType::f32, tokens, 2816, 1024);
      add(DType::f32, tokens, 1024, 2816);
    }
  }
  return all;
}

/// Returns a clock's time. One thread's is that of the processor, which other programs change less.
double seconds_now(std::size_t threads) {
  timespec now{};
  ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Random memory for the largest of the shapes, which all use.
class Matrices {
 public:
  explicit Matrices(const std::vector<Shape>& shapes) {
    std::size_t most = 0;
    for (const Shape& each : shapes)
      most = std::max({most, each.m * each.n * size_of(each.dtype), each.m * each.k * size_of(each.dtype),
                       each.k * each.n * size_of(each.dtype)});
    std::minstd_rand generator(1);
    std::uniform_real_distribution<double> distribution(-1, 1);
    for (std::vector<double>* numbers : {&a_, &b_, &c_}) {
      numbers->resize(most / sizeof(double) + 1);
      std::ranges::generate(*numbers, [&] { return distribution(generator); });
    }
  }

  /// Multiplies `repeats` times. Returns the seconds of one product.
  double seconds(const Shape& shape, Way way, const kernels::Compute& on, int repeats) {
    const Tensor c(reinterpret_cast<std::byte*>(c_.data()), shape.dtype, {shape.m, shape.n});
    const ConstTensor a = operand(a_, shape.dtype, shape.m, shape.k, shape.a_transposed);
    const ConstTensor b = operand(b_, shape.dtype, shape.k, shape.n, shape.b_transposed);
    kernels::set_gemm_library(way == Way::tsprun ? GemmLibrary::tsprun : GemmLibrary::openblas);
    const double start = seconds_now(on.threads());
    for (int i = 0; i < repeats; ++i) {
      if (way != Way::bare) kernels::gemm(on, c, a, b);
      else if (shape.dtype == DType::f64) multiply_bare<double>(shape);
      else multiply_bare<float>(shape);
    }
    return (seconds_now(on.threads()) - start) / repeats;
  }

 private:
  template <class T>
  void multiply_bare(const Shape& shape) {
    kernels::multiply(kernels::OpenBlasProduct<T>{.m = shape.m,
                                                  .n = shape.n,
                                                  .k = shape.k,
                                                  .a = reinterpret_cast<const T*>(a_.data()),
                                                  .a_step = shape.a_transposed ? shape.m : shape.k,
                                                  .a_transposed = shape.a_transposed,
                                                  .b = reinterpret_cast<const T*>(b_.data()),
                                                  .b_step = shape.b_transposed ? shape.k : shape.n,
                                                  .b_transposed = shape.b_transposed,
                                                  .c = reinterpret_cast<T*>(c_.data()),
                                                  .c_step = shape.n});
  }
  static ConstTensor operand(const std::vector<double>& numbers, DType dtype, std::size_t rows, std::size_t columns,
                             bool transposed) {
    const auto* data = reinterpret_cast<const std::byte*>(numbers.data());
    if (!transposed) return {data, dtype, {rows, columns}};
    return ConstTensor(data, dtype, {columns, rows}).transposed(0, 1);
  }

  std::vector<double> a_, b_, c_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Returns how often a product is repeated so that its time can be measured: some 20 ms at 100 GFLOP/s.
int repeats_of(double flops) { return std::max(1, static_cast<int>(2e9 / flops)); }

}  // namespace

nlohmann::json compare_products(const ProductOptions& options, int rounds) {
  kernels::set_gemm_library(GemmLibrary::openblas);
  const std::string openblas = kernels::load_gemm_library();
  const std::vector<Shape> all = shapes(options);
  Matrices matrices(all);
  std::vector<std::byte> workspace(std::size_t{32} << 20);
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("kernels {}, {}, {} rounds, GFLOP/s\n", name(kernels::level()), openblas, rounds);
  fmt::print("{:<28} {:>5} {:>7} {:>8} {:>8} {:>8} {:>7}\n", "", "dtype", "threads", "tsprun", "openblas", "bare", "ratio");
  for (const std::size_t threads : options.threads) {
    kernels::Pool pool(threads);
    const kernels::Compute on{.pool = &pool, .workspace = workspace, .tick = {}};
    for (const Shape& shape : all) {
      const double flops = 2 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
      std::array<std::vector<double>, kWays> seconds;
      for (int round = -1; round < rounds; ++round) {
        for (std::size_t turn = 0; turn < kWays; ++turn) {
          const std::size_t way = (turn + static_cast<std::size_t>(round + 1)) % kWays;
          const double taken = matrices.seconds(shape, static_cast<Way>(way), on, round < 0 ? 1 : repeats_of(flops));
          if (round >= 0) seconds[way].push_back(taken);  // the first only warms up
        }
      }
      std::array<double, kWays> speed{};
      for (std::size_t way = 0; way < kWays; ++way) speed[way] = flops / median(seconds[way]) * 1e-9;
      // gemm() leaves products of a few rows to tsprun's kernels.
      const double best = shape.m <= 4 ? speed[2] : threads == 1 ? std::max(speed[1], speed[2]) : speed[1];
      fmt::print("{:<28} {:>5} {:>7} {:>8.1f} {:>8.1f} {:>8.1f} {:>7.2f}\n", shape.what, name(shape.dtype), threads, speed[0],
                 speed[1], speed[2], speed[0] / best);
      rows.push_back({{"product", shape.what},
                      {"dtype", name(shape.dtype)},
                      {"threads", threads},
                      {"tsprun_gflops", speed[0]},
                      {"openblas_gflops", speed[1]},
                      {"bare_gflops", speed[2]}});
    }
  }
  return {{"kernels", name(kernels::level())}, {"openblas", openblas}, {"products", rows}};
}

}  // namespace tsprun::bench
