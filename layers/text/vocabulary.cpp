// Open addressing; texts lie one behind the other.
#include "layers/text/vocabulary.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace tsprun::detail::text {

std::uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::size_t Vocabulary::slot_of(std::string_view text, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].id != kNone && (slots_[at].hash != hash >> 32 || text_of(static_cast<std::size_t>(slots_[at].id)) != text))
    at = (at + 1) & mask;
  return at;
}

void Vocabulary::grow(std::size_t slots) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots));
  for (const Slot& slot : old) {
    if (slot.id == kNone) continue;
    const std::string_view text = text_of(static_cast<std::size_t>(slot.id));
    slots_[slot_of(text, hash_of(text))] = slot;
  }
}

void Vocabulary::reserve(std::size_t tokens, std::size_t bytes) {
  tokens_.reserve(tokens);
  bytes_.reserve(bytes);
  grow(std::bit_ceil(tokens + tokens / 3 + 16));
}

bool Vocabulary::add(std::string_view text, Token id) {
  if (4 * (count_ + 1) > 3 * slots_.size()) grow(std::max<std::size_t>(2 * slots_.size(), 16));
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  if (tokens_[index].bytes != kAbsent) return false;
  const std::uint64_t hash = hash_of(text);
  Slot& slot = slots_[slot_of(text, hash)];
  tokens_[index] = {static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(text.size())};
  bytes_ += text;
  longest_ = std::max(longest_, text.size());
  if (slot.id == kNone) ++count_;
  slot = {static_cast<std::uint32_t>(hash >> 32), id};
  return true;
}

Token Vocabulary::find(std::string_view text, std::uint64_t hash) const {
  return slots_.empty() ? kNone : slots_[slot_of(text, hash)].id;
}

void Vocabulary::fetch_place(std::uint64_t hash) const {
  if (!slots_.empty()) __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]);
}

void Vocabulary::fetch_text(std::uint64_t hash) const {
  if (slots_.empty()) return;
  const Slot& slot = slots_[hash & (slots_.size() - 1)];
  if (slot.id != kNone) __builtin_prefetch(bytes_.data() + tokens_[static_cast<std::size_t>(slot.id)].begin);
}

std::optional<std::string_view> Vocabulary::text(Token id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size() || tokens_[static_cast<std::size_t>(id)].bytes == kAbsent)
    return {};
  return text_of(static_cast<std::size_t>(id));
}

}  // namespace tsprun::detail::text
