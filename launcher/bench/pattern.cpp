// Test data whose elements are known: see pattern.h. Values are made a block at a time, in plain loops that compilers vectorise.
#include "launcher/bench/pattern.h"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <type_traits>

namespace tsprun::detail::bench {

namespace {

constexpr std::size_t kBlock = 1024;
constexpr std::size_t kBlocksPerTick = 64;

int bits_of(DType dtype) { return size_of(dtype) == 2 ? 8 : 14; }

std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352DU;
  x ^= x >> 15;
  x *= 0x846CA68BU;
  return x ^ (x >> 16);
}

std::uint32_t key_of(std::uint32_t seed, int rank, std::uint64_t index) {
  return mix(mix(mix(seed) + static_cast<std::uint32_t>(rank)) + static_cast<std::uint32_t>(index >> 32));
}

// Adds the values from `first` on to `sums`. [first, first+n) doesn't cross a multiple of 2^32.
void add_values(std::int32_t* sums, std::size_t n, std::uint32_t seed, int rank, std::uint64_t first, int bits) {
  const std::uint32_t key = key_of(seed, rank, first);
  const auto start = static_cast<std::uint32_t>(first);
  const int shift = 32 - bits;
  const std::int32_t half = 1 << (bits - 1);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t x = (start + static_cast<std::uint32_t>(i)) * 0x9E3779B1U + key;
    x ^= x >> 15;
    x *= 0x85EBCA77U;
    sums[i] += static_cast<std::int32_t>(x >> shift) - half;
  }
}

// Returns how many elements the next block has.
std::size_t block_size(std::uint64_t index, std::size_t left) {
  const std::uint64_t to_boundary = (std::uint64_t{1} << 32) - (index & 0xFFFF'FFFFU);
  return static_cast<std::size_t>(std::min<std::uint64_t>({kBlock, left, to_boundary}));
}

template <class T>
inline constexpr bool kIsHalf = std::same_as<T, bf16> || std::same_as<T, f16>;
// Type in which reductions are made: exact, for the values below.
template <class T>
using Exact = std::conditional_t<kIsHalf<T>, float, T>;

// Returns the element that stands for a drawn integer.
template <class T>
Exact<T> element_of(std::int32_t drawn, Reduction reduction) {
  if constexpr (std::same_as<T, bool>) {
    return drawn % 2 != 0;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr std::uint64_t kSpread = 0x0001'0010'1000'0101;  // fills wide types, too
    return static_cast<T>(static_cast<std::uint64_t>(std::int64_t{drawn}) * kSpread);
  } else if (reduction == Reduction::product) {
    return static_cast<Exact<T>>(drawn % 2 == 0 ? 1 : -1);
  } else {
    return static_cast<Exact<T>>(drawn);
  }
}

template <class A, class Combine>
void combine_each(A* all, const A* terms, std::size_t n, Combine combine) {
  for (std::size_t i = 0; i < n; ++i) all[i] = static_cast<A>(combine(all[i], terms[i]));
}

template <class A>
void combine_block(Reduction reduction, A* all, const A* terms, std::size_t n) {
  const auto with = [&](auto combine) { combine_each(all, terms, n, combine); };
  if (reduction == Reduction::max) return with([](A a, A b) { return std::max(a, b); });
  if (reduction == Reduction::min) return with([](A a, A b) { return std::min(a, b); });
  if constexpr (std::is_floating_point_v<A>) {
    if (reduction == Reduction::product) return with([](A a, A b) { return a * b; });
    with([](A a, A b) { return a + b; });
  } else {
    using U = std::uint64_t;  // wraps around; of bool, what isn't 0 becomes true
    if (reduction == Reduction::product) return with([](A a, A b) { return static_cast<U>(a) * static_cast<U>(b); });
    if (reduction == Reduction::bit_and) return with([](A a, A b) { return static_cast<U>(a) & static_cast<U>(b); });
    if (reduction == Reduction::bit_or) return with([](A a, A b) { return static_cast<U>(a) | static_cast<U>(b); });
    if (reduction == Reduction::bit_xor) return with([](A a, A b) { return static_cast<U>(a) ^ static_cast<U>(b); });
    with([](A a, A b) { return static_cast<U>(a) + static_cast<U>(b); });
  }
}

// Content of a buffer: the reduction of the values of ranks [first_rank, last_rank) from index `first` on.
struct Content {
  std::uint32_t seed;
  int first_rank;
  int last_rank;
  std::uint64_t first;
  Reduction reduction;
};

// Visits `count` elements in blocks: visit(offset, elements, n).
template <class T, class Visit>
void for_blocks(std::size_t count, const Content& content, const Tick& tick, Visit visit) {
  std::int32_t drawn[kBlock];
  Exact<T> terms[kBlock];
  Exact<T> all[kBlock];
  T elements[kBlock];
  std::size_t blocks = 0;
  for (std::size_t offset = 0; offset < count;) {
    const std::uint64_t index = content.first + offset;
    const std::size_t n = block_size(index, count - offset);
    for (int rank = content.first_rank; rank < content.last_rank; ++rank) {
      std::memset(drawn, 0, n * sizeof(drawn[0]));
      add_values(drawn, n, content.seed, rank, index, bits_of(dtype_of<T>()));
      Exact<T>* const to = rank == content.first_rank ? all : terms;
      for (std::size_t i = 0; i < n; ++i) to[i] = element_of<T>(drawn[i], content.reduction);
      if (to == terms) combine_block(content.reduction, all, terms, n);
    }
    if constexpr (std::is_floating_point_v<Exact<T>>) {
      const auto ranks = static_cast<Exact<T>>(content.last_rank - content.first_rank);
      for (std::size_t i = 0; i < n && content.reduction == Reduction::average; ++i) all[i] /= ranks;
    }
    for (std::size_t i = 0; i < n; ++i) elements[i] = static_cast<T>(all[i]);
    visit(offset, elements, n);
    offset += n;
    if (++blocks % kBlocksPerTick == 0) tick();
  }
}

// Calls body.operator()<T>() with the C++ type of a dtype.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::byte: break;
    case DType::bf16: return body.template operator()<bf16>();
    case DType::f32: return body.template operator()<float>();
    case DType::f64: return body.template operator()<double>();
    case DType::f16: return body.template operator()<f16>();
    case DType::i8: return body.template operator()<std::int8_t>();
    case DType::u8: return body.template operator()<std::uint8_t>();
    case DType::i32: return body.template operator()<std::int32_t>();
    case DType::i64: return body.template operator()<std::int64_t>();
    case DType::boolean: return body.template operator()<bool>();
  }
}

std::uint64_t count_differences(ConstBuffer buffer, const Content& content, const Tick& tick) {
  std::uint64_t wrong = 0;
  with_type(buffer.dtype, [&]<class T>() {
    // Elements are compared as bits: a bool that is neither 0 nor 1 can't be read as a bool, and −0 isn't 0.
    for_blocks<T>(buffer.count, content, tick, [&](std::size_t offset, const T* elements, std::size_t n) {
      const std::byte* from = buffer.data + offset * sizeof(T);
      const auto* expected = reinterpret_cast<const std::byte*>(elements);
      if (std::memcmp(from, expected, n * sizeof(T)) == 0) return;
      for (std::size_t at = 0; at < n * sizeof(T); at += sizeof(T)) {
        wrong += std::memcmp(from + at, expected + at, sizeof(T)) == 0 ? 0U : 1U;
      }
    });
  });
  return wrong;
}

}  // namespace

void fill(Buffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick, Reduction reduction) {
  with_type(buffer.dtype, [&]<class T>() {
    for_blocks<T>(buffer.count, {seed, rank, rank + 1, first, reduction}, tick,
                  [&](std::size_t offset, const T* elements, std::size_t n) {
                    std::memcpy(buffer.data + offset * sizeof(T), elements, n * sizeof(T));
                  });
  });
}

std::uint64_t count_wrong(ConstBuffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick) {
  return count_differences(buffer, {seed, rank, rank + 1, first, Reduction::sum}, tick);
}

std::uint64_t count_wrong_reductions(ConstBuffer buffer, std::uint32_t seed, int ranks, std::uint64_t first, const Tick& tick,
                                     Reduction reduction) {
  return count_differences(buffer, {seed, 0, ranks, first, reduction}, tick);
}

}  // namespace tsprun::detail::bench
