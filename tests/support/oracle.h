// What collectives must yield, written as plain loops from their definitions: no communication, no algorithm of the library.
//
// Every rank's data is a function of (seed, rank, index), so that any rank can say what any other holds. Sums follow the
// canonical order: chunk c adds ranks c+1, c+2, …, c (cyclic), the first term copied; bf16 and f16 are added in f32 and rounded
// once.
#pragma once

#include "tsprun/types.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace tsprun::detail::test {

/// A well-mixed 64-bit number (SplitMix64's finalizer).
constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix(mix(a) ^ b); }
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) { return mix(mix(a, b), c); }

/// A rank's endless sequence of elements. Floating-point values spread over 16 binary orders of magnitude, so that another order
/// of additions gives other bits.
template <Element T>
class Samples {
 public:
  Samples(std::uint64_t seed, int rank) : base_(mix(seed, static_cast<std::uint64_t>(rank))) {}

  T operator[](std::size_t index) const {
    const std::uint64_t bits = mix(base_ ^ index);
    if constexpr (std::same_as<T, bool>) {
      return bits % 3 != 0;
    } else if constexpr (std::is_integral_v<T> || sizeof(T) == 1) {
      return static_cast<T>(bits);
    } else {
      // 52 bits of mantissa, a biased exponent of 1015 to 1030, a sign.
      const double value = std::bit_cast<double>((bits >> 12) | (1015 + (bits & 15)) << 52 | (bits & 16) << 59);
      if constexpr (sizeof(T) == 2) return T(static_cast<float>(value));
      else return static_cast<T>(value);
    }
  }

 private:
  std::uint64_t base_;
};

/// Element `index` of rank `rank`.
template <Element T>
T sample(std::uint64_t seed, int rank, std::size_t index) {
  return Samples<T>(seed, rank)[index];
}

template <Element T>
void fill(std::span<T> elements, std::uint64_t seed, int rank) {
  const Samples<T> samples(seed, rank);
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = samples[i];
}

/// Type in which terms are added.
template <Element T>
using Accumulator = std::conditional_t<std::same_as<T, bf16> || std::same_as<T, f16>, float, T>;

/// Combines integers without overflow: 64 bits are enough, as higher bits never change lower ones.
template <class A>
A combine_integers(A a, A b, Reduction reduction) {
  const auto x = static_cast<std::uint64_t>(a);  // NOLINT(bugprone-signed-char-misuse): i8 is a number
  const auto y = static_cast<std::uint64_t>(b);  // NOLINT(bugprone-signed-char-misuse)
  switch (reduction) {
    case Reduction::sum: return static_cast<A>(x + y);
    case Reduction::product: return static_cast<A>(x * y);
    case Reduction::max: return a < b ? b : a;
    case Reduction::min: return b < a ? b : a;
    case Reduction::bit_and: return static_cast<A>(x & y);
    case Reduction::bit_or: return static_cast<A>(x | y);
    case Reduction::bit_xor: return static_cast<A>(x ^ y);
    case Reduction::average: break;
  }
  return a;
}

template <class A>
A combine(A a, A b, Reduction reduction) {
  if constexpr (std::same_as<A, bool>) {
    // Numbers 0 and 1, of which a sum above 1 is true.
    return combine_integers<int>(a ? 1 : 0, b ? 1 : 0, reduction) != 0;
  } else if constexpr (std::is_integral_v<A>) {
    return combine_integers(a, b, reduction);
  } else {
    switch (reduction) {
      case Reduction::sum:
      case Reduction::average: return a + b;
      case Reduction::product: return a * b;
      case Reduction::max: return std::isnan(a) || std::isnan(b) ? std::numeric_limits<A>::quiet_NaN() : (a < b ? b : a);
      case Reduction::min: return std::isnan(a) || std::isnan(b) ? std::numeric_limits<A>::quiet_NaN() : (b < a ? b : a);
      default: return a;
    }
  }
}

/// The reduction of terms[0] … terms[n-1] (one per rank) for the chunk of rank `chunk`, in canonical order.
template <Element T>
T reduce_terms(std::span<const T> terms, int chunk, Reduction reduction) {
  const std::size_t n = terms.size();
  auto at = [&](std::size_t step) { return static_cast<Accumulator<T>>(terms[(static_cast<std::size_t>(chunk) + step) % n]); };
  Accumulator<T> sum = at(1);
  for (std::size_t step = 2; step <= n; ++step) sum = combine(sum, at(step), reduction);
  if constexpr (std::is_floating_point_v<Accumulator<T>>) {
    if (reduction == Reduction::average) sum = sum / static_cast<Accumulator<T>>(n);
  }
  return static_cast<T>(sum);
}

/// The reductions of all ranks' elements of the same index.
template <Element T>
class ReducedSamples {
 public:
  ReducedSamples(std::uint64_t seed, int ranks, Reduction reduction) : reduction_(reduction) {
    for (int rank = 0; rank < ranks; ++rank) samples_.emplace_back(seed, rank);
  }
  /// Returns an element of the sum, with its terms added in the order of chunk `chunk`.
  T at(std::size_t index, int chunk) const {
    T terms[64];
    for (std::size_t rank = 0; rank < samples_.size(); ++rank) terms[rank] = samples_[rank][index];
    return reduce_terms<T>(std::span<const T>(terms, samples_.size()), chunk, reduction_);
  }

 private:
  std::vector<Samples<T>> samples_;
  Reduction reduction_;
};

/// Which chunk of an all_reduce of `count` elements holds `index`: the first count mod ranks chunks are one element longer.
inline int all_reduce_chunk(std::size_t count, int ranks, std::size_t index) {
  const std::size_t n = static_cast<std::size_t>(ranks);
  const std::size_t shorter = count / n;
  const std::size_t in_longer = count % n * (shorter + 1);
  if (index < in_longer) return static_cast<int>(index / (shorter + 1));
  return static_cast<int>(count % n + (index - in_longer) / shorter);
}

template <Element T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;  // NOLINT(bugprone-suspicious-memory-comparison): bits are meant
}

/// An element for failure messages: value and bits.
template <Element T>
std::string show(const T& element) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &element, sizeof(T));
  char text[64];
  if constexpr (sizeof(T) == 1) {
    std::snprintf(text, sizeof text, "0x%02llx", static_cast<unsigned long long>(bits));
  } else {
    std::snprintf(text, sizeof text, "%.9g (0x%llx)", static_cast<double>(static_cast<Accumulator<T>>(element)),
                  static_cast<unsigned long long>(bits));
  }
  return text;
}

}  // namespace tsprun::detail::test
