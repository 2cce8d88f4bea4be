// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011). A number is a pure function of key and counter, so that every rank can draw any number, in any order, and all ranks
// agree.
#pragma once

#include <array>
#include <cstdint>

namespace tsprun::detail {

/// Returns 128 random bits for a 64-bit key and a 128-bit counter, as four words.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 2> key, std::array<std::uint32_t, 4> counter) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// Returns the same bits as two 64-bit words, low word first.
constexpr std::array<std::uint64_t, 2> philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto high = [](std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); };
  const auto words =
      philox(std::array{low(key), high(key)}, {low(counter_low), high(counter_low), low(counter_high), high(counter_high)});
  return {words[0] | static_cast<std::uint64_t>(words[1]) << 32, words[2] | static_cast<std::uint64_t>(words[3]) << 32};
}

}  // namespace tsprun::detail
