// Deals documents chunk by chunk.
#include "layers/layout/dealt_documents.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Sizes of the chunks of one document after another.
class Dealer {
 public:
  explicit Dealer(const Zigzag& cut) : chunks_(2 * static_cast<std::size_t>(cut.ranks())) {}

  /// Takes up the next document, of so many tokens.
  void next(std::size_t length) {
    first_odd_ = (first_odd_ + odd_) % chunks_;
    base_ = length / chunks_;
    odd_ = length % chunks_;
  }
  std::size_t chunks() const { return chunks_; }
  /// Returns the tokens of the document in the chunks before this one.
  std::size_t before(std::size_t chunk) const {
    const std::size_t end = first_odd_ + odd_;
    const std::size_t odd = std::min(chunk, end) - std::min(chunk, first_odd_);  // the round goes on from chunk 0
    return chunk * base_ + odd + std::min(chunk, end - std::min(end, chunks_));
  }
  /// Returns the tokens of a chunk of the document.
  std::size_t count(std::size_t chunk) const { return base_ + ((chunk + chunks_ - first_odd_) % chunks_ < odd_ ? 1 : 0); }

 private:
  std::size_t chunks_;
  std::size_t base_ = 0;
  std::size_t odd_ = 0;
  std::size_t first_odd_ = 0;  // the chunk that gets the document's first odd token
};

}  // namespace

bool deals_documents(const ModelConfig& config, const Zigzag& cut) {
  if (cut.ranks() == 1 || config.attention_dropout > 0) return false;
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    if (const std::size_t window = config.layer(layer).window; window > 0 && window < cut.sequence()) return false;
  }
  return true;
}

std::vector<std::uint32_t> dealt_order(const Zigzag& cut, std::span<const std::uint32_t> starts) {
  Dealer dealer(cut);
  std::vector<std::size_t> places;  // the next of each chunk
  for (int chunk = 0; chunk < 2 * cut.ranks(); ++chunk) places.push_back(cut.chunk_start(chunk));
  std::vector<std::uint32_t> order(starts.size());
  for (std::uint32_t position = 0; position < starts.size();) {
    std::size_t end = position;
    while (end < starts.size() && starts[end] == starts[position]) ++end;
    dealer.next(end - position);
    for (std::size_t chunk = 0; chunk < dealer.chunks(); ++chunk) {
      for (std::size_t i = 0; i < dealer.count(chunk); ++i) order[places[chunk]++] = position++;
    }
  }
  return order;
}

std::size_t dealt_pairs(const Zigzag& cut, int rank, std::size_t window, std::span<const std::uint32_t> lengths) {
  const auto seen_before = [window](std::size_t end) {
    const std::size_t rising = window == 0 ? end : std::min(end, window);
    return rising * (rising + 1) / 2 + (end - rising) * window;
  };
  const auto [early, late] = cut.chunks_of(rank);
  Dealer dealer(cut);
  std::size_t pairs = 0;
  for (const std::uint32_t length : lengths) {
    dealer.next(length);
    for (const int chunk : {early, late}) {
      const auto c = static_cast<std::size_t>(chunk);
      pairs += seen_before(dealer.before(c + 1)) - seen_before(dealer.before(c));
    }
  }
  return pairs;
}

}  // namespace tsprun::detail
