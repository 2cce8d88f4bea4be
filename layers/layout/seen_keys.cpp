// Computes stretches from the chunks' offsets.
#include "layers/layout/seen_keys.h"

#include <algorithm>
#include <cstdlib>

namespace tsprun::detail {

SeenKeys::SeenKeys(const Zigzag& cut, std::size_t window) : cut_(cut), window_(window), reach_(2 * cut.ranks()) {
  const std::size_t shortest = cut_.chunk_size(reach_ - 1);
  const bool hides = window_ > 0 && window_ < cut_.sequence() && cut_.ranks() > 1;
  if (!hides || (cut_.ranks() > kFewRanks && window_ - 1 > kFewChunks * shortest)) window_ = 0;
  if (!all() && shortest > 0) reach_ = static_cast<int>(std::min(cut_.sequence(), (window_ + shortest - 2) / shortest));
}

std::size_t SeenKeys::count(int rank, std::size_t begin, std::size_t end) const {
  if (all()) return end - begin;
  std::size_t rows = 0;
  for (const auto& [first, last] : stretches(rank)) rows += std::clamp(end, first, last) - std::clamp(begin, first, last);
  return rows;
}

bool SeenKeys::may_share(int one, int other) const {
  for (const int a : cut_.chunks_of(one)) {
    for (const int b : cut_.chunks_of(other))
      if (std::abs(a - b) <= reach_) return true;
  }
  return false;
}

std::size_t SeenKeys::given(int rank) const {
  if (all()) return cut_.tokens(rank) * static_cast<std::size_t>(cut_.ranks() - 1);
  const int chunks = 2 * cut_.ranks();
  std::size_t keys = 0;
  for (const int chunk : cut_.chunks_of(rank)) {
    const std::size_t end = cut_.chunk_end(chunk);
    for (int later = chunk + 1; later < chunks && first_of(later) < end && cut_.chunk_size(later) > 0; ++later) {
      const int partner = chunks - 1 - later;
      // The later chunk is this rank's own, or its rank has been counted with a chunk that sees more.
      if (chunk <= partner && partner < later) continue;
      keys += end - std::max(cut_.chunk_start(chunk), first_of(later));
    }
  }
  return keys;
}

std::size_t SeenKeys::moved() const {
  std::size_t keys = 0;
  for (int rank = 0; rank < cut_.ranks(); ++rank) keys += taken(rank);
  return keys;
}

std::size_t SeenKeys::first_of(int chunk) const {
  const std::size_t seen = cut_.chunk_start(chunk) + 1;
  return all() || seen <= window_ ? 0 : seen - window_;
}

SeenKeys::Stretch SeenKeys::seen_by(int chunk) const {
  return {cut_.chunk_size(chunk) == 0 ? cut_.chunk_end(chunk) : first_of(chunk), cut_.chunk_end(chunk)};
}

/// Returns what a rank sees, in natural order; the second stretch without what is in the first.
std::array<SeenKeys::Stretch, 2> SeenKeys::stretches(int rank) const {
  const auto [early, late] = cut_.chunks_of(rank);
  const Stretch first = seen_by(early);
  const Stretch second = seen_by(late);
  return {first, {std::max(first.end, second.begin), second.end}};
}

}  // namespace tsprun::detail
