// Counts pairs in closed form, document by document.
#include "core/kernels/visible_pairs.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

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

/// A stretch of a view where tokens are dealt, of which all have the same document and one position after the other.
struct Piece {
  std::uint32_t document;  // where it begins in its sequence
  std::uint32_t position;  // of the first token, in the document
  std::size_t count;
};

/// Returns the pieces of places [begin, end), the last first.
std::vector<Piece> pieces_of(std::span<const std::uint32_t> documents, std::span<const std::uint32_t> positions,
                             std::size_t begin, std::size_t end) {
  std::vector<Piece> pieces;
  while (end > begin) {
    // Tokens of one document at consecutive places have consecutive positions, since the document's own order is kept.
    const std::size_t last = end - 1;
    const auto belongs = [&](std::size_t place) {
      return documents[place] == documents[last] && positions[last] - positions[place] == last - place;
    };
    std::size_t step = 1;
    while (step <= last - begin && belongs(last - step)) step *= 2;
    std::size_t in = last - step / 2;  // belongs to the piece, and what is before `out` doesn't
    std::size_t out = step > last - begin ? begin : last - step + 1;
    while (in > out) {
      const std::size_t middle = out + (in - out) / 2;
      if (belongs(middle)) in = middle;
      else out = middle + 1;
    }
    pieces.push_back({documents[last], positions[in], end - in});
    end = in;
  }
  return pieces;
}

/// Returns the pairs of one sequence whose tokens are dealt: of pieces of the same document, by their positions in it.
double pairs_of_dealt(const Mask& mask, std::span<const std::uint32_t> documents, std::span<const std::uint32_t> positions,
                      std::size_t queries, std::size_t keys) {
  const std::vector<Piece> asking = pieces_of(documents, positions, mask.query_start, mask.query_start + queries);
  double pairs = 0;
  if (mask.key_start == 0 && keys >= mask.query_start + queries) {
    // All places up to the queries' own are at hand, and so is all that comes before these in their documents.
    for (const Piece& query : asking)
      pairs += pairs_of_whole(Mask::from_positions(query.position, 0, mask.window), query.count, query.position + query.count);
    return pairs;
  }
  std::vector<Piece> seen = pieces_of(documents, positions, mask.key_start, mask.key_start + keys);
  std::ranges::stable_sort(seen, {}, &Piece::document);
  for (const Piece& query : asking) {
    auto key = std::ranges::lower_bound(seen, query.document, {}, &Piece::document);
    for (; key != seen.end() && key->document == query.document; ++key)
      pairs += pairs_of_whole(Mask::from_positions(query.position, key->position, mask.window), query.count, key->count);
  }
  return pairs;
}

/// Returns the pairs of one sequence with documents.
double pairs_of_sequence(const Mask& mask, std::size_t sequence, std::size_t queries, std::size_t keys) {
  const Documents& documents = mask.documents;
  return documents.dealt() ? pairs_of_dealt(mask, documents.of(sequence), documents.positions_of(sequence), queries, keys)
                           : pairs_of_documents(mask, documents.of(sequence), queries, keys);
}

}  // namespace

double visible_pairs(const Mask& mask, std::size_t batch, std::size_t queries, std::size_t keys) {
  const Documents& documents = mask.documents;
  if (!documents.any()) return static_cast<double>(batch) * pairs_of_whole(mask, queries, keys);
  if (documents.alike) return static_cast<double>(batch) * pairs_of_sequence(mask, 0, queries, keys);
  double pairs = 0;
  for (std::size_t sequence = 0; sequence < batch; ++sequence) pairs += pairs_of_sequence(mask, sequence, queries, keys);
  return pairs;
}

}  // namespace tsprun::detail::kernels
