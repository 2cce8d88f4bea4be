// A record in shared memory that is written once, by the first of several writers, and may be corrected later: a sequence lock
// whose reader never waits. There are no fences (ThreadSanitizer doesn't see them), so each word that is written is a release,
// each that is read an acquire.
#pragma once

#include "transport/atomics.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace tsprun::detail {

/// The record: `kNumbers` numbers and a text of `kTextWords` words. All zeros at first.
template <class Atomics, std::size_t kNumbers, std::size_t kTextWords>
struct BasicRecord {
  /// The record's content.
  struct Words {
    std::array<std::uint32_t, kNumbers> numbers;
    std::array<std::uint64_t, kTextWords> text;
  };

  typename Atomics::template Atomic<std::uint32_t>
      state;  ///< 0: nothing; odd: being written; else complete, a new number each time
  std::array<typename Atomics::template Atomic<std::uint32_t>, kNumbers> numbers;
  std::array<typename Atomics::template Atomic<std::uint64_t>, kTextWords> text;

  /// Returns true if it was written, or is being written. Who sleeps may rely on it (doorbell.h).
  bool begun() const { return state.load(std::memory_order_seq_cst) != 0; }
  /// Writes it, unless another has begun to; returns whether it did.
  bool write(const Words& words) { return write_after(0, words); }
  /// Replaces what was written completely; returns false if nothing was. One writer at a time.
  bool correct(const Words& words) {
    const std::uint32_t before = state.load(std::memory_order_acquire);
    return before != 0 && before % 2 == 0 && write_after(before, words);
  }
  /// Takes back what a writer has begun and, because it died, never completed.
  void clear_half_written() {
    std::uint32_t half = 1;
    state.compare_exchange_strong(half, 0, std::memory_order_seq_cst);
  }
  /// Returns what it says; none: nothing, or it is being written now.
  std::optional<Words> read() const {
    const std::uint32_t before = state.load(std::memory_order_acquire);
    if (before == 0 || before % 2 != 0) return std::nullopt;
    Words words;
    for (std::size_t i = 0; i < kNumbers; ++i) words.numbers[i] = numbers[i].load(std::memory_order_acquire);
    for (std::size_t i = 0; i < kTextWords; ++i) words.text[i] = text[i].load(std::memory_order_acquire);
    if (state.load(std::memory_order_acquire) != before) return std::nullopt;
    return words;
  }

 private:
  bool write_after(std::uint32_t before, const Words& words) {
    if (!state.compare_exchange_strong(before, before + 1, std::memory_order_seq_cst)) return false;
    for (std::size_t i = 0; i < kNumbers; ++i) numbers[i].store(words.numbers[i], std::memory_order_release);
    for (std::size_t i = 0; i < kTextWords; ++i) text[i].store(words.text[i], std::memory_order_release);
    state.store(before + 2, std::memory_order_seq_cst);
    return true;
  }
};

}  // namespace tsprun::detail
