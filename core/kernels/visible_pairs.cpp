// Counts pairs in closed form, document by document.
#include "core/kernels/visible_pairs.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace tsprun::detail::kernels {

namespace {

/// Returns the pairs of one sequence that is one document, whatever the mask's documents say.
double pairs_of_whole(const Mask& mask, std::size_t queries, std::size_t keys) {
  const auto all = static_cast<double>(keys);
  if (!mask.causal) return static_cast<double>(queries) * all;
  // Pairs of the queries at positions below `end`: the query at key_start sees one key, the next two, … until they see all.
  const auto seen_before = [&](std::size_t end) {
    const auto count = static_cast<double>(end - std::min(end, mask.key_start));
    const double rising = std::min(count, all);
    return rising * (rising + 1) / 2 + (count - rising) * all;
  };
  const auto seen = [&](std::size_t back) {
    const auto moved = [&](std::size_t position) { return position - std::min(position, back); };
    return seen_before(moved(mask.query_start + queries)) - seen_before(moved(mask.query_start));
  };
  // A window hides from a query what it would see from a position so far back.
  return mask.window == 0 ? seen(0) : seen(0) - seen(mask.window);
}

/// Returns the pairs of one sequence whose documents begin at these positions, from its last query back.
double pairs_of_documents(const Mask& mask, std::span<const std::uint32_t> starts, std::size_t queries, std::size_t keys) {
  const std::size_t end_of_keys = mask.key_start + keys;
  double pairs = 0;
  for (std::size_t end = mask.query_start + queries; end > mask.query_start;) {
    const std::size_t start = starts[end - 1];
    const std::size_t query = std::max(start, mask.query_start);
    const std::size_t key = std::max(start, mask.key_start);
    if (key < end_of_keys) pairs += pairs_of_whole(Mask::from_positions(query, key, mask.window), end - query, end_of_keys - key);
    end = query;
  }
  return pairs;
}

}  // namespace

double visible_pairs(const Mask& mask, std::size_t batch, std::size_t queries, std::size_t keys) {
  const Documents& documents = mask.documents;
  if (!documents.any()) return static_cast<double>(batch) * pairs_of_whole(mask, queries, keys);
  if (documents.alike) return static_cast<double>(batch) * pairs_of_documents(mask, documents.of(0), queries, keys);
  double pairs = 0;
  for (std::size_t sequence = 0; sequence < batch; ++sequence)
    pairs += pairs_of_documents(mask, documents.of(sequence), queries, keys);
  return pairs;
}

}  // namespace tsprun::detail::kernels
