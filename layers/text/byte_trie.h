// A tree of texts, byte by byte: which of them begin at a place.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::text {

/// Texts with a number each.
class ByteTrie {
 public:
  static constexpr std::int32_t kNothing = -1;
  static constexpr std::uint32_t kRoot = 0;
  /// The most nodes that a trie can have; texts of so many bytes in all always fit.
  static constexpr std::size_t kMostNodes = std::size_t{1} << 24;

  ByteTrie() { first_.fill(kNowhere); }

  /// Adds a text that isn't empty; one that is there already gets the new number. False: there is no room.
  bool add(std::string_view text, std::int32_t number) {
    std::uint32_t node = kRoot;
    for (const char each : text) {
      const auto byte = static_cast<std::uint8_t>(each);
      std::uint32_t next = step(node, byte);
      if (next == kNowhere) {
        next = static_cast<std::uint32_t>(numbers_.size());
        if (next >= kMostNodes) return false;
        numbers_.push_back(kNothing);
        if (node == kRoot) first_[byte] = next;
        else insert(key_of(node, byte), next);
      }
      node = next;
    }
    numbers_[node] = number;
    return true;
  }

  /// Calls found(bytes, number) for each text that begins at byte `at`, the shortest first.
  template <class Found>
  void each_from(std::string_view text, std::size_t at, const Found& found) const {
    std::uint32_t node = kRoot;
    for (std::size_t end = at; end < text.size();) {
      node = step(node, static_cast<std::uint8_t>(text[end++]));
      if (node == kNowhere) return;
      if (numbers_[node] != kNothing) found(end - at, numbers_[node]);
    }
  }
  /// Returns whether some text begins with this byte.
  bool begins_with(char byte) const { return first_[static_cast<std::uint8_t>(byte)] != kNowhere; }
  bool empty() const { return numbers_.size() == 1; }

 private:
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};

  // A slot has node and byte in its upper 40 bits and the next node in its lower 24; 0: free.
  static std::uint64_t key_of(std::uint32_t node, std::uint8_t byte) { return std::uint64_t{node} << 8 | byte; }
  std::size_t place(std::uint64_t key) const { return (key * 0x9e3779b97f4a7c15U) >> 20 & (slots_.size() - 1); }
  std::uint32_t step(std::uint32_t node, std::uint8_t byte) const {
    if (node == kRoot) return first_[byte];
    if (slots_.empty()) return kNowhere;
    const std::uint64_t key = key_of(node, byte);
    for (std::size_t at = place(key); slots_[at] != 0; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at] >> 24 == key) return static_cast<std::uint32_t>(slots_[at] & 0xffffff);
    return kNowhere;
  }
  void insert(std::uint64_t key, std::uint32_t next) {
    if (2 * numbers_.size() > slots_.size()) {
      const std::vector<std::uint64_t> old =
          std::exchange(slots_, std::vector<std::uint64_t>(std::bit_ceil(4 * numbers_.size())));
      for (const std::uint64_t slot : old)
        if (slot != 0) put(slot);
    }
    put(key << 24 | next);
  }
  void put(std::uint64_t slot) {
    std::size_t at = place(slot >> 24);
    while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }

  std::array<std::uint32_t, 256> first_{};       // the root's children
  std::vector<std::uint64_t> slots_;             // the others', by node and byte
  std::vector<std::int32_t> numbers_{kNothing};  // of each node's text
};

}  // namespace tsprun::detail::text
