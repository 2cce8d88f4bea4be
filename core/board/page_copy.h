// Copies a page of the board word by word while its rank writes it. No word is torn, and where one word says that others count (a
// rank's life: its exit code; a record's state: its text; a number of lines: the lines), whoever sees it in the copy sees those,
// too. For that it lies before them in the page, is read first, and written last.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// Reads words of shared memory, in their order.
template <class Word>
void take_words(const Word* from, std::span<std::uint64_t> words) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = from[i].load(std::memory_order_acquire);
}

/// Writes words into shared memory, from the last to the first.
template <class Word>
void put_words(std::span<const std::uint64_t> words, Word* to) {
  for (std::size_t i = words.size(); i-- > 0;) to[i].store(words[i], std::memory_order_release);
}

}  // namespace tsprun::detail
