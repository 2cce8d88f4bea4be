// Flash attention's two witnesses: the textbook's formula in f64, which holds all scores in memory and draws dropout's factors
// one by one, and random operands for it and the kernels.
#pragma once

#include "core/kernels/flash.h"
#include "tests/core/kernel_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tsprun::detail::test::flash {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  std::size_t batch, queries, keys, heads, kv_heads, d;
  kernels::Mask mask;
  kernels::HeadMap map;
  kernels::AttentionDropout dropout = {};
  double cap = 0;

  /// Returns whether query i sees key j in sequence b, as kernels::Mask says it.
  bool sees(std::size_t i, std::size_t j, std::size_t b = 0) const {
    if (!mask.causal) return true;
    const std::size_t query = mask.query_start + i;
    const std::size_t key = mask.key_start + j;
    if (mask.documents.any() && mask.documents.of(b)[query] != mask.documents.of(b)[key]) return false;
    const auto position = [&](std::size_t place) {
      return mask.documents.dealt() ? mask.documents.positions_of(b)[place] : place;
    };
    return key <= query && (mask.window == 0 || position(query) - position(key) < mask.window);
  }
};

/// Everything that attention has to do with, by name.
struct Problem {
  Case shape;
  kernels::Attention attention;
  Array q, k, v, d_o;

  Problem(const Case& wanted, DType dtype)
      : shape(wanted),
        attention{1 / std::sqrt(static_cast<double>(wanted.d)), wanted.mask, wanted.map, wanted.dropout, wanted.cap},
        q(Array::normal(dtype, {wanted.batch, wanted.queries, wanted.heads, wanted.d}, 1)),
        k(Array::normal(dtype, {wanted.batch, wanted.keys, wanted.kv_heads, wanted.d}, 2)),
        v(Array::normal(dtype, {wanted.batch, wanted.keys, wanted.kv_heads, wanted.d}, 3)),
        d_o(Array::normal(dtype, {wanted.batch, wanted.queries, wanted.heads, wanted.d}, 4)) {}
};

/// SplitMix64 as its authors publish it (prng.di.unimi.it/splitmix64.c), after n numbers.
inline std::uint64_t number(std::uint64_t x, std::uint64_t n) {
  x += n * 0x9e3779b97f4a7c15U;
  std::uint64_t z = (x += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

/// Returns what AttentionDropout says of one probability.
inline double factor(const kernels::AttentionDropout& of, std::size_t b, std::size_t head, std::size_t i, std::size_t j) {
  if (of.draw.probability == 0) return 1;
  const std::uint64_t key = number(number(of.draw.key, of.first_sequence + b), of.first_head + head);
  const double fraction = static_cast<double>(number(number(key, of.queries.of(i)), of.keys.of(j)) >> 11) / 9007199254740992.0;
  return fraction >= of.draw.probability ? 1 / (1 - of.draw.probability) : 0;
}

struct Expected {
  std::vector<double> o, lse, dq, dk, dv;  // lse in units of q·k
};

/// Returns the textbook's formula in f64. Its loops are most of what these tests compute, so they go over plain rows.
inline Expected naive(const Problem& problem) {
  const Case& s = problem.shape;
  const std::vector<double> q = problem.q.values();
  const std::vector<double> k = problem.k.values();
  const std::vector<double> v = problem.v.values();
  const std::vector<double> d_o = problem.d_o.values();
  Expected result{std::vector<double>(problem.q.count()), std::vector<double>(s.batch * s.heads * s.queries),
                  std::vector<double>(problem.q.count()), std::vector<double>(problem.k.count()),
                  std::vector<double>(problem.k.count())};
  for (std::size_t b = 0; b < s.batch; ++b) {
    for (std::size_t head = 0; head < s.heads; ++head) {
      const std::size_t kv = (s.map.first_query + head) / s.map.group - s.map.first_kv;
      const auto q_at = [&](std::size_t i) { return ((b * s.queries + i) * s.heads + head) * s.d; };
      const auto k_at = [&](std::size_t j) { return ((b * s.keys + j) * s.kv_heads + kv) * s.d; };
      for (std::size_t i = 0; i < s.queries; ++i) {
        const auto sees = [&](std::size_t j) { return s.sees(i, j, b); };
        const double* const qi = q.data() + q_at(i);
        const double* const d_oi = d_o.data() + q_at(i);
        double* const oi = result.o.data() + q_at(i);
        double* const dqi = result.dq.data() + q_at(i);
        std::vector<double> p(s.keys);
        std::vector<double> slope(s.keys, 1);  // of the soft cap
        double maximum = -kInfinity;
        for (std::size_t j = 0; j < s.keys; ++j) {
          if (!sees(j)) continue;
          const double* const kj = k.data() + k_at(j);
          double product = 0;
          for (std::size_t c = 0; c < s.d; ++c) product += qi[c] * kj[c];
          p[j] = product * problem.attention.scale;
          if (s.cap > 0) {
            const double tanh = std::tanh(p[j] / s.cap);
            p[j] = s.cap * tanh;
            slope[j] = 1 - tanh * tanh;
          }
          maximum = std::max(maximum, p[j]);
        }
        double sum = 0;
        for (std::size_t j = 0; j < s.keys; ++j) {
          p[j] = sees(j) ? std::exp(p[j] - maximum) : 0;
          sum += p[j];
        }
        result.lse[(b * s.heads + head) * s.queries + i] =
            sum == 0 ? -kInfinity : (maximum + std::log(sum)) / problem.attention.scale;
        double delta = 0;
        std::vector<double> dp(s.keys);
        for (std::size_t j = 0; j < s.keys; ++j) {
          if (sum != 0) p[j] /= sum;
          if (p[j] == 0) continue;
          const double kept = factor(s.dropout, b, head, i, j);
          const double* const vj = v.data() + k_at(j);
          double* const dvj = result.dv.data() + k_at(j);
          for (std::size_t c = 0; c < s.d; ++c) {
            oi[c] += kept * p[j] * vj[c];
            dvj[c] += kept * p[j] * d_oi[c];
            dp[j] += kept * d_oi[c] * vj[c];
          }
          delta += p[j] * dp[j];
        }
        for (std::size_t j = 0; j < s.keys; ++j) {
          if (p[j] == 0) continue;
          const double ds = problem.attention.scale * p[j] * (dp[j] - delta) * slope[j];
          const double* const kj = k.data() + k_at(j);
          double* const dkj = result.dk.data() + k_at(j);
          for (std::size_t c = 0; c < s.d; ++c) {
            dqi[c] += ds * kj[c];
            dkj[c] += ds * qi[c];
          }
        }
      }
    }
  }
  return result;
}

struct Results {
  Array o, lse, delta, dq, dk, dv;

  /// `numbers`: 1 or 2 for a log-sum-exp.
  explicit Results(const Problem& problem, std::size_t numbers = 1)
      : o(problem.q.dtype(), {problem.shape.batch, problem.shape.queries, problem.shape.heads, problem.shape.d}),
        lse(sums(problem.q.dtype()), {problem.shape.batch, problem.shape.heads, problem.shape.queries}),
        delta(lse),
        dq(sums(problem.q.dtype()), {problem.shape.batch, problem.shape.queries, problem.shape.heads, problem.shape.d}),
        dk(sums(problem.q.dtype()), {problem.shape.batch, problem.shape.keys, problem.shape.kv_heads, problem.shape.d}),
        dv(dk) {
    if (numbers == 2) lse = Array(lse.view().dtype(), {problem.shape.batch, problem.shape.heads, problem.shape.queries, numbers});
  }
};

/// The log-sum-exps, (M, l), as one number each: M + l / scale, in units of q·k.
inline Array joined(const Array& lse, double scale) {
  Array all(DType::f64, {lse.count() / 2});
  for (std::size_t i = 0; i < all.count(); ++i) all.set(i, lse[2 * i] + lse[2 * i + 1] / scale);
  return all;
}

inline Results run(const Problem& problem, std::size_t threads = 1, std::size_t numbers = 1) {
  Results results(problem, numbers);
  const DType dtype = problem.q.dtype();
  Bench bench(threads, std::max(kernels::flash_forward_workspace(dtype, problem.shape.d, threads),
                                kernels::flash_backward_workspace(dtype, problem.shape.d, threads)));
  const kernels::Compute on = bench.on();
  kernels::flash_forward(on, problem.attention, results.o.view(), results.lse.view(), problem.q.view(), problem.k.view(),
                         problem.v.view());
  kernels::flash_delta(on, results.delta.view(), problem.d_o.view(), results.o.view());
  kernels::flash_backward(on, problem.attention, results.dq.view(), results.dk.view(), results.dv.view(), problem.d_o.view(),
                          results.lse.view(), results.delta.view(), problem.q.view(), problem.k.view(), problem.v.view());
  return results;
}

/// Returns the distance of gradients of scores. Where they are zero, as those of queries that see one key, what is left are the
/// roundings of numbers near 10, and in bf16 of outputs.
inline double gradient_distance(const Array& actual, const std::vector<double>& expected) {
  if (std::ranges::any_of(expected, [](double value) { return value != 0; })) return distance(actual, expected);
  double largest = 0;
  for (const double value : actual.values()) largest = std::max(largest, std::abs(value));
  return largest / 10;
}

inline void check(const Case& shape, DType dtype, std::size_t threads = 1, std::size_t numbers = 1) {
  const Problem problem(shape, dtype);
  const Expected expected = naive(problem);
  const Results results = run(problem, threads, numbers);
  const Array lse = numbers == 1 ? results.lse : joined(results.lse, problem.attention.scale);
  // Delta is made of the rounded output in bf16: its error enters dq and dk.
  const double bound = dtype == DType::bf16 ? 1e-2 : dtype == DType::f32 ? 4e-6 : 1e-12;
  std::string where = std::string(name(dtype)) + " B " + std::to_string(shape.batch) + " Sq " + std::to_string(shape.queries) +
                      " Sk " + std::to_string(shape.keys) + " n " + std::to_string(shape.heads) + "/" +
                      std::to_string(shape.kv_heads) + " d " + std::to_string(shape.d) +
                      (shape.mask.causal ? " causal " : " full ") + std::to_string(shape.mask.query_start) + "/" +
                      std::to_string(shape.mask.key_start) + " window " + std::to_string(shape.mask.window) +
                      (shape.mask.documents.dealt() ? " dealt documents"
                       : shape.mask.documents.any() ? " documents"
                                                    : "") +
                      " cap " + std::to_string(shape.cap);
  EXPECT_LE(distance(results.o, expected.o), bound) << where;
  EXPECT_LE(distance(lse, expected.lse), dtype == DType::f64 ? 1e-13 : 2e-6) << where;
  EXPECT_LE(gradient_distance(results.dq, expected.dq), bound) << where;
  EXPECT_LE(gradient_distance(results.dk, expected.dk), bound) << where;
  EXPECT_LE(distance(results.dv, expected.dv), bound) << where;
}

}  // namespace tsprun::detail::test::flash
