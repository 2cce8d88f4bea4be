// Test data whose elements are known: see pattern.h. Values are made a block at a time, in plain loops that compilers vectorise.
#include "launcher/bench/pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tsprun::detail::bench {

namespace {

constexpr std::size_t kBlock = 1024;
constexpr std::size_t kBlocksPerTick = 64;

int bits_of(DType dtype) { return dtype == DType::bf16 ? 8 : 14; }

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

// Rounds to bf16: to nearest, ties to even. `value` must be finite.
std::uint16_t bf16_bits(std::int32_t value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

template <class T, class Convert>
void store(std::byte* to, const std::int32_t* values, std::size_t n, Convert convert) {
  auto* elements = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < n; ++i) elements[i] = convert(values[i]);
}

template <class T, class Convert>
std::uint64_t differences(const std::byte* from, const std::int32_t* values, std::size_t n, Convert convert) {
  const auto* elements = reinterpret_cast<const T*>(from);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) wrong += elements[i] == convert(values[i]) ? 0U : 1U;
  return wrong;
}

std::uint64_t differences(DType dtype, const std::byte* from, const std::int32_t* values, std::size_t n) {
  switch (dtype) {
    case DType::f64: return differences<double>(from, values, n, [](std::int32_t v) { return static_cast<double>(v); });
    case DType::f32: return differences<float>(from, values, n, [](std::int32_t v) { return static_cast<float>(v); });
    case DType::bf16: return differences<std::uint16_t>(from, values, n, bf16_bits);
    case DType::byte: break;
  }
  return n;
}

// Visits `count` elements in blocks: visit(offset, values, n), with the sums over ranks [first_rank, last_rank).
template <class Visit>
void for_blocks(std::size_t count, DType dtype, std::uint32_t seed, int first_rank, int last_rank, std::uint64_t first,
                const Tick& tick, Visit visit) {
  std::int32_t values[kBlock];
  const int bits = bits_of(dtype);
  std::size_t blocks = 0;
  for (std::size_t offset = 0; offset < count;) {
    const std::size_t n = block_size(first + offset, count - offset);
    std::memset(values, 0, n * sizeof(values[0]));
    for (int rank = first_rank; rank < last_rank; ++rank) add_values(values, n, seed, rank, first + offset, bits);
    visit(offset, static_cast<const std::int32_t*>(values), n);
    offset += n;
    if (++blocks % kBlocksPerTick == 0) tick();
  }
}

std::uint64_t count_differences(ConstBuffer buffer, std::uint32_t seed, int first_rank, int last_rank, std::uint64_t first,
                                const Tick& tick) {
  std::uint64_t wrong = 0;
  for_blocks(buffer.count, buffer.dtype, seed, first_rank, last_rank, first, tick,
             [&](std::size_t offset, const std::int32_t* values, std::size_t n) {
               wrong += differences(buffer.dtype, buffer.data + offset * size_of(buffer.dtype), values, n);
             });
  return wrong;
}

}  // namespace

void fill(Buffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick) {
  for_blocks(buffer.count, buffer.dtype, seed, rank, rank + 1, first, tick,
             [&](std::size_t offset, const std::int32_t* values, std::size_t n) {
               std::byte* to = buffer.data + offset * size_of(buffer.dtype);
               switch (buffer.dtype) {
                 case DType::f64: store<double>(to, values, n, [](std::int32_t v) { return static_cast<double>(v); }); break;
                 case DType::f32: store<float>(to, values, n, [](std::int32_t v) { return static_cast<float>(v); }); break;
                 case DType::bf16: store<std::uint16_t>(to, values, n, bf16_bits); break;
                 case DType::byte: break;
               }
             });
}

std::uint64_t count_wrong(ConstBuffer buffer, std::uint32_t seed, int rank, std::uint64_t first, const Tick& tick) {
  return count_differences(buffer, seed, rank, rank + 1, first, tick);
}

std::uint64_t count_wrong_sums(ConstBuffer buffer, std::uint32_t seed, int ranks, std::uint64_t first, const Tick& tick) {
  return count_differences(buffer, seed, 0, ranks, first, tick);
}

}  // namespace tsprun::detail::bench
