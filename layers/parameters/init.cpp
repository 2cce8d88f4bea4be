// Draws normal numbers by Box and Muller's method, with its own ln, sin and cos for equal bits on all machines.
#include "layers/parameters/init.h"

#include "core/tensor/tensor.h"
#include "layers/io/philox.h"
#include "layers/parameters/place.h"
#include "transport/cause.h"
#include "transport/checksum.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <span>

namespace tsprun::detail {

namespace {

// libm uses different code on processors with and without FMA, and its last bits differ; ranks on different machines must draw
// the same weights. So the two functions below use basic operations only. They are exact to a few units in the last place.

/// Returns ln(x) for a normal x > 0: x = m·2^e with m in [√½, √2); ln m = 2·artanh(s), s = (m−1)/(m+1), |s| < 0.1716.
double natural_log(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  constexpr double kSqrt2 = 1.41421356237309504880;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<double>(static_cast<int>(bits >> 52) - 1023);
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > kSqrt2) {
    m *= 0.5;
    exponent += 1;
  }
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double sum = 0;
  for (int n = 23; n >= 3; n -= 2) sum = (sum + 1.0 / n) * s2;  // s^24/25 is below half a unit in the last place
  return exponent * kLn2 + 2 * s * (1 + sum);
}

/// Returns cos and sin of 2πt for t in [0, 1): the nearest quarter turn is subtracted, the rest computed by Taylor's series on
/// [−π/4, π/4].
std::pair<double, double> turn(double t) {
  constexpr double kTwoPi = 6.28318530717958647692;
  const auto quarter = static_cast<int>(std::floor(t * 4 + 0.5));
  const double x = (t - quarter * 0.25) * kTwoPi;
  const double x2 = x * x;
  double cosine = 0;
  double sine = 0;
  for (int n = 20; n >= 2; n -= 2) {  // 1 − x²/2!·(1 − x²/(3·4)·(…)), x − x³/3!·(…)
    cosine = (1 - cosine) * x2 / (n * (n - 1));
    sine = (1 - sine) * x2 / (n * (n + 1));
  }
  cosine = 1 - cosine;
  sine = x * (1 - sine);
  switch (quarter % 4) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

void store(Buffer into, std::size_t index, double value) {
  std::byte* const at = into.data + index * size_of(into.dtype);
  convert_from_stored(StoredType::F64, reinterpret_cast<const std::byte*>(&value), into.dtype, at, 1);
}

}  // namespace

double fresh_deviation(ParameterRole role, std::size_t layers) {
  constexpr double kDeviation = 0.02;
  const bool by_depth = traits_of(role).fresh == Fresh::normal_by_depth;
  return by_depth ? kDeviation / std::sqrt(2.0 * static_cast<double>(layers)) : kDeviation;
}

std::uint64_t name_hash(std::string_view name) { return checksum(std::as_bytes(std::span(name))); }

std::pair<double, double> normal_pair(std::uint64_t seed, std::uint64_t name_hash, std::uint64_t pair) {
  const auto words = philox(seed, pair, name_hash);
  // Box and Muller, on 53-bit numbers: the first in (0, 1], the second in [0, 1).
  const double u = (static_cast<double>(words[0] >> 11) + 1) * 0x1p-53;
  const double t = static_cast<double>(words[1] >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2 * natural_log(u));
  const auto [cosine, sine] = turn(t);
  return {radius * cosine, radius * sine};
}

void fill_fresh(const Parameter& parameter, std::size_t layers, std::uint64_t seed, const safetensors::Rectangle& block,
                Buffer into) {
  safetensors::check_block({parameter.name, StoredType::F64, parameter.shape, 0, 0}, block, into.count, "fresh weights");
  if (!computes(into.dtype)) {
    throw Error(Cause::refused, fmt::format("fresh weights: \"{}\" can't be drawn as bytes", parameter.name));
  }
  if (const Fresh fresh = traits_of(parameter.role).fresh; fresh == Fresh::zeros || fresh == Fresh::ones) {
    const double value = fresh == Fresh::ones && !parameter.gains_from_one ? 1 : 0;
    for (std::size_t i = 0; i < into.count; ++i) store(into, i, value);
    return;
  }
  const double deviation = fresh_deviation(parameter.role, layers);
  const std::uint64_t hash = name_hash(parameter.name);
  for (std::size_t row = 0; row < block.rows; ++row) {
    const std::uint64_t first = (block.first_row + row) * parameter.columns() + block.first_column;
    const std::uint64_t end = first + block.columns;
    for (std::uint64_t pair = first / 2; 2 * pair < end; ++pair) {
      const auto [even, odd] = normal_pair(seed, hash, pair);
      const std::uint64_t index = 2 * pair;
      const std::size_t at = row * block.columns;
      if (index >= first) store(into, at + (index - first), even * deviation);
      if (index + 1 < end) store(into, at + (index + 1 - first), odd * deviation);
    }
  }
}

}  // namespace tsprun::detail
