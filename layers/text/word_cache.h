// The ids of words that came before: texts repeat most of their words.
#pragma once

#include "layers/text/vocabulary.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

/// A table of short words; a newer word takes the place of an older one.
class WordCache {
 public:
  /// Returns the ids of a word; empty: they aren't kept.
  std::span<const Token> find(std::string_view word) {
    if (word.size() > kMostBytes) return {};
    last_ = &entries_[hash_of(word) % kEntries];
    if (last_->bytes != word.size() || std::memcmp(last_->word.data(), word.data(), word.size()) != 0) return {};
    return std::span<const Token>(last_->ids).first(last_->count);
  }
  /// Keeps the ids of the word for which find() was called last.
  void keep(std::string_view word, std::span<const Token> ids) {
    if (word.size() > kMostBytes || ids.size() > kMostIds) return;
    last_->bytes = static_cast<std::uint8_t>(word.size());
    last_->count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(last_->word.data(), word.data(), word.size());
    std::copy(ids.begin(), ids.end(), last_->ids.begin());
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  static constexpr std::size_t kMostBytes = 30;
  static constexpr std::size_t kMostIds = 8;
  struct alignas(64) Entry {
    std::uint8_t bytes = 0;
    std::uint8_t count = 0;
    std::array<char, kMostBytes> word;
    std::array<Token, kMostIds> ids;
  };
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
  Entry* last_ = nullptr;
};

}  // namespace tsprun::detail::text
