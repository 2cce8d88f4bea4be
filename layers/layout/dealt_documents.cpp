// Deals long documents chunk by chunk, and short ones rank by rank.
#include "layers/layout/dealt_documents.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace tsprun::detail {

namespace {

std::size_t pairs_of(const Deal::Piece& piece, std::size_t window) {
  return pairs_before(piece.position + piece.count, window) - pairs_before(piece.position, window);
}

/// Returns an estimate of kernels' work, in pairs, on this many pairs of pieces of `count` tokens: a panel of queries that holds
/// several pieces computes the keys of all their documents for each of its queries.
std::size_t work_on(std::size_t pairs, std::size_t count) { return pairs + kPanel * (pairs / std::max<std::size_t>(count, 1)); }

}  // namespace

bool deals_documents(const ModelConfig& config, const Zigzag& cut) {
  if (cut.ranks() == 1 || config.attention_dropout > 0) return false;
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    if (const std::size_t window = config.layer(layer).window; window > 0 && window < cut.sequence()) return false;
  }
  return true;
}

Deal::Deal(const Zigzag& cut, std::span<const std::uint32_t> lengths)
    : cut_(cut), whole_(2 * static_cast<std::size_t>(cut.ranks())) {
  std::vector<Piece> documents;  // the longest first
  std::size_t start = 0;
  for (const std::size_t length : lengths) {
    if (length > 0) documents.push_back({start, 0, length});
    start += length;
  }
  std::ranges::stable_sort(documents, std::ranges::greater(), &Piece::count);
  std::size_t limit = documents.empty() ? 0 : std::min(documents.front().count, chunks() * kWholePiece);
  std::size_t dealt = documents.size() + 1;  // how many were cut last; none yet
  std::size_t best = 0;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (bool more = true; more; limit /= 2) {
    const auto is_short = [&](const Piece& document) { return document.count <= limit; };
    const auto cut_ones = static_cast<std::size_t>(std::ranges::find_if(documents, is_short) - documents.begin());
    more = limit > 0;
    if (cut_ones == dealt) continue;
    const std::size_t work = deal(documents, cut_ones);
    dealt = cut_ones;
    if (work >= least) continue;
    least = work;
    best = cut_ones;
  }
  if (dealt != best) deal(documents, best);
}

/// Deals documents, the longest first, so that the first `cut_ones` are cut. Returns the work of the busiest rank, of which those
/// that are cut are taken to give each rank as much.
std::size_t Deal::deal(std::span<const Piece> documents, std::size_t cut_ones) {
  std::size_t odd = 0;   // tokens so far, of which the odd ones go round
  std::size_t work = 0;  // on all ranks together
  long_.clear();
  for (const Piece& document : documents.first(cut_ones)) {
    long_.push_back({document.start, document.count, odd % chunks()});
    odd += document.count;
    work += work_on(pairs_of(document, 0), document.count / chunks());
  }
  std::ranges::sort(long_, {}, &CutDocument::start);
  std::vector<std::size_t> room;
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    const std::size_t taken = odd / chunks() + (chunk < odd % chunks() ? 1 : 0);
    room.push_back(cut_.chunk_size(static_cast<int>(chunk)) - taken);
  }
  return work / (chunks() / 2) + deal_whole(documents.subspan(cut_ones), std::move(room));
}

/// Deals documents, the longest first, to ranks that have so much room in their chunks, all of which is needed. Returns the work
/// of the rank that has most.
std::size_t Deal::deal_whole(std::span<const Piece> documents, std::vector<std::size_t> room) {
  const std::size_t ranks = chunks() / 2;
  std::vector<std::size_t> free;
  std::set<std::pair<std::size_t, std::size_t>> by_pairs;  // {pairs, rank} of those with room
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    free.push_back(room[rank] + room[other(rank)]);
    by_pairs.emplace(0, rank);
  }
  std::vector<std::vector<Piece>> given(ranks);
  std::vector<Piece> left;
  for (const Piece& document : documents) {
    const auto least = std::ranges::find_if(by_pairs, [&](const auto& each) { return free[each.second] >= document.count; });
    if (least == by_pairs.end()) {
      left.push_back(document);
      continue;
    }
    const auto [pairs, rank] = *least;
    by_pairs.erase(least);
    free[rank] -= document.count;
    given[rank].push_back(document);
    if (free[rank] > 0) by_pairs.emplace(pairs + pairs_of(document, 0), rank);
  }
  for (std::vector<Piece>& chunk : whole_) chunk.clear();
  std::vector<std::size_t> rest(chunks());  // of the room, for what is left: half of a rank's in each of its chunks
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t late = std::min(free[rank] / 2, room[other(rank)]);
    rest[rank] = std::min(free[rank] - late, room[rank]);
    rest[other(rank)] = free[rank] - rest[rank];
    for (const std::size_t chunk : {rank, other(rank)}) room[chunk] -= rest[chunk];
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::ranges::sort(given[rank], {}, &Piece::start);
    lay(given[rank], std::array{rank, other(rank)}, room);
  }
  std::vector<std::size_t> all(chunks());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::ranges::sort(left, {}, &Piece::start);
  lay(left, all, rest);
  for (std::vector<Piece>& chunk : whole_) std::ranges::sort(chunk, {}, &Piece::start);
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t work = 0;
    for (const std::size_t chunk : {rank, other(rank)}) {
      for (const Piece& piece : whole_[chunk]) work += work_on(pairs_of(piece, 0), piece.count);
    }
    most = std::max(most, work);
  }
  return most;
}

/// Lays documents one behind the other into chunks, as much into each as it has room for.
void Deal::lay(std::span<const Piece> documents, std::span<const std::size_t> into, std::vector<std::size_t>& room) {
  auto chunk = into.begin();
  for (Piece rest : documents) {
    while (rest.count > 0) {
      while (room[*chunk] == 0) ++chunk;
      const std::size_t count = std::min(rest.count, room[*chunk]);
      whole_[*chunk].push_back({rest.start, rest.position, count});
      room[*chunk] -= count;
      rest.position += count;
      rest.count -= count;
    }
  }
}

/// Returns the tokens of a long document in the chunks before this one.
std::size_t Deal::before(const CutDocument& document, std::size_t chunk) const {
  const std::size_t odd = document.length % chunks();
  const std::size_t end = document.first_odd + odd;  // the round goes on from chunk 0
  return chunk * (document.length / chunks()) + std::min(chunk, end) - std::min(chunk, document.first_odd) +
         std::min(chunk, end - std::min(end, chunks()));
}

std::vector<Deal::Piece> Deal::pieces(int chunk) const {
  const auto number = static_cast<std::size_t>(chunk);
  std::vector<Piece> all = whole_[number];
  const auto short_ones = static_cast<std::ptrdiff_t>(all.size());
  for (const CutDocument& document : long_) {
    const std::size_t begin = before(document, number);
    const std::size_t end = before(document, number + 1);
    if (begin < end) all.push_back({document.start, begin, end - begin});
  }
  std::ranges::inplace_merge(all, all.begin() + short_ones, {}, &Piece::start);
  return all;
}

std::vector<std::uint32_t> Deal::order() const {
  std::vector<std::uint32_t> order;
  order.reserve(cut_.sequence());
  for (int chunk = 0; chunk < 2 * cut_.ranks(); ++chunk) {
    for (const Piece& piece : pieces(chunk)) {
      for (std::size_t i = 0; i < piece.count; ++i) order.push_back(static_cast<std::uint32_t>(piece.start + piece.position + i));
    }
  }
  return order;
}

std::size_t Deal::pairs(int rank, std::size_t window) const {
  std::size_t pairs = 0;
  for (const int chunk : cut_.chunks_of(rank)) {
    for (const Piece& piece : pieces(chunk)) pairs += pairs_of(piece, window);
  }
  return pairs;
}

}  // namespace tsprun::detail
