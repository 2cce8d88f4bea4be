// Documents that are dealt to the ranks of a sequence: every token once, as many to each chunk as zigzag has there, each document
// in its own order; short ones whole; pairs as counting them one by one gives; and how much nearer the ranks' shares are.
#include "layers/layout/dealt_documents.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace tsprun::detail::test::dealt_documents_test {
namespace {

using Lengths = std::vector<std::uint32_t>;

Lengths random_lengths(std::mt19937& random, std::size_t sequence, std::size_t most) {
  Lengths lengths;
  while (sequence > 0) {
    lengths.push_back(static_cast<std::uint32_t>(1 + random() % std::min(sequence, most)));
    sequence -= lengths.back();
  }
  return lengths;
}

std::vector<std::uint32_t> starts_of(const Lengths& lengths) {
  std::vector<std::uint32_t> starts;
  for (const std::uint32_t length : lengths) starts.insert(starts.end(), length, static_cast<std::uint32_t>(starts.size()));
  return starts;
}

TEST(DealtDocuments, AreWholeAndInOrder) {
  std::mt19937 random(3);
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t sequence : {0U, 1U, 7U, 40U, 61U, 200U, 5000U, 20000U}) {
      for (const std::size_t most : {1U, 4U, 17U, 100U, 10000U}) {
        const Lengths lengths = random_lengths(random, sequence, most);
        const std::vector<std::uint32_t> starts = starts_of(lengths);
        const Zigzag cut(sequence, ranks);
        const Deal deal(cut, lengths);
        const std::vector<std::uint32_t> order = deal.order();
        std::vector<std::uint32_t> sorted = order;
        std::ranges::sort(sorted);
        std::vector<std::uint32_t> all(sequence);
        std::iota(all.begin(), all.end(), 0);
        ASSERT_EQ(sorted, all);
        std::vector<std::uint32_t> last(sequence, 0);  // of each document, by its start: the token that came last
        for (const std::uint32_t position : order) {
          EXPECT_GE(position, last[starts[position]]);
          last[starts[position]] = position;
        }
        for (int chunk = 0; chunk < 2 * ranks; ++chunk) {
          EXPECT_TRUE(std::ranges::is_sorted(order.begin() + static_cast<std::ptrdiff_t>(cut.chunk_start(chunk)),
                                             order.begin() + static_cast<std::ptrdiff_t>(cut.chunk_end(chunk))));
          std::size_t tokens = 0;
          for (const Deal::Piece& piece : deal.pieces(chunk)) tokens += piece.count;
          EXPECT_EQ(tokens, cut.chunk_size(chunk));
        }
      }
    }
  }
}

/// The documents of the header's second picture.
TEST(DealtDocuments, GoWholeToRanksWhereTheyAreShort) {
  EXPECT_EQ(Deal(Zigzag(16, 2), Lengths{5, 5, 3, 3}).order(),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 4, 10, 11, 12}));
}

/// Short documents of one rank each, but for those that no rank has room for; one that is long is cut for all chunks.
TEST(DealtDocuments, AreCutOnlyWhereThatHelps) {
  std::mt19937 random(7);
  for (const int ranks : {2, 4}) {
    for (const std::uint32_t first : {0U, 20000U}) {
      Lengths lengths = {first};
      std::size_t sequence = first;
      for (int i = 0; i < 16 * ranks; ++i) sequence += lengths.emplace_back(350 + static_cast<std::uint32_t>(random() % 100));
      const Zigzag cut(sequence, ranks);
      const Deal deal(cut, lengths);
      std::map<std::size_t, std::set<int>> chunks_of;  // by the document's start
      std::map<std::size_t, std::set<int>> ranks_of;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const int chunk : cut.chunks_of(rank)) {
          for (const Deal::Piece& piece : deal.pieces(chunk)) {
            chunks_of[piece.start].insert(chunk);
            ranks_of[piece.start].insert(rank);
          }
        }
      }
      const auto shared = std::ranges::count_if(ranks_of, [](const auto& of) { return of.second.size() > 1; });
      EXPECT_LE(shared, ranks + (first > 0 ? 1 : 0));
      if (first > 0) {
        EXPECT_EQ(chunks_of[0].size(), 2U * static_cast<unsigned>(ranks));
      }
    }
  }
}

TEST(DealtDocuments, OfOneDocumentAreZigzag) {
  const std::vector<std::uint32_t> order = Deal(Zigzag(61, 3), Lengths{61}).order();
  ASSERT_EQ(order.size(), 61U);
  for (std::uint32_t place = 0; place < order.size(); ++place) EXPECT_EQ(order[place], place);
}

TEST(DealtDocuments, HaveThePairsThatTheirTokensSee) {
  std::mt19937 random(4);
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t sequence : {1U, 40U, 61U, 200U, 3000U, 20000U}) {
      const Lengths lengths = random_lengths(random, sequence, sequence < 20000 ? 70 : sequence);  // the longest are cut
      const std::vector<std::uint32_t> starts = starts_of(lengths);
      const Zigzag cut(sequence, ranks);
      const Deal deal(cut, lengths);
      const std::vector<std::uint32_t> order = deal.order();
      for (const std::size_t window : {0U, 1U, 9U, 500U}) {
        for (int rank = 0; rank < ranks; ++rank) {
          std::size_t pairs = 0;
          for (const int chunk : {rank, 2 * ranks - 1 - rank}) {
            for (std::size_t place = cut.chunk_start(chunk); place < cut.chunk_end(chunk); ++place) {
              const std::size_t seen = order[place] - starts[order[place]] + 1;
              pairs += window == 0 ? seen : std::min(seen, window);
            }
          }
          EXPECT_EQ(deal.pairs(rank, window), pairs) << rank << " of " << ranks << ", window " << window;
        }
      }
    }
  }
}

/// The largest rank's pairs over the mean.
template <class Pairs>
double imbalance(int ranks, const Pairs& pairs_of) {
  double most = 0;
  double all = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto pairs = static_cast<double>(pairs_of(rank));
    most = std::max(most, pairs);
    all += pairs;
  }
  return most * ranks / all;
}

TEST(DealtDocuments, GiveRanksNearlyEqualShares) {
  std::mt19937 random(5);
  double worst_cut = 1;
  for (const std::size_t ranks : {2U, 4U, 8U, 16U}) {
    const std::size_t sequence = 16384 * ranks;
    const Zigzag cut(sequence, static_cast<int>(ranks));
    for (int i = 0; i < 20; ++i) {
      const Lengths lengths = random_lengths(random, sequence, i % 2 == 0 ? 2000 : sequence);
      worst_cut = std::max(worst_cut, imbalance(cut.ranks(), [&](int rank) { return cut.attention_pairs(rank, 0, lengths); }));
      const Deal deal(cut, lengths);
      EXPECT_LT(imbalance(cut.ranks(), [&](int rank) { return deal.pairs(rank); }), 1.01) << ranks;
    }
  }
  EXPECT_GT(worst_cut, 1.5);
}

std::size_t pieces_of(const Deal& deal, int ranks) {
  std::size_t pieces = 0;
  for (int chunk = 0; chunk < 2 * ranks; ++chunk) pieces += deal.pieces(chunk).size();
  return pieces;
}

/// Documents of similar lengths that ranks have no whole number of: cut into 2D chunks they would be a thousand pieces of about 8
/// tokens, and several thousand of one.
TEST(DealtDocuments, AreNotCutIntoFewTokensToBeEven) {
  constexpr int kRanks = 64;
  const Zigzag cut(8192, kRanks);
  Lengths long_ones(8, 1000);
  long_ones.push_back(192);
  const Deal few(cut, long_ones);
  EXPECT_LT(pieces_of(few, kRanks), 3U * kRanks);
  EXPECT_LT(imbalance(kRanks, [&](int rank) { return few.pairs(rank); }), 1.25);
  Lengths short_ones(81, 100);
  short_ones.push_back(92);
  const Deal many(cut, short_ones);
  EXPECT_LT(pieces_of(many, kRanks), 5U * kRanks);
  EXPECT_LT(imbalance(kRanks, [&](int rank) { return many.pairs(rank); }), 1.15);
}

/// Documents of like proportions, which are cut where their pieces are so long that evening out the ranks is worth it.
TEST(DealtDocuments, AreCutWhereTheirPiecesAreLong) {
  const auto pieces = [](std::uint32_t unit) {
    return pieces_of(Deal(Zigzag(std::size_t{13} * unit, 8), Lengths{5 * unit, 5 * unit, 3 * unit}), 8);
  };
  EXPECT_LT(pieces(50), 20U);
  EXPECT_EQ(pieces(1000), 3U * 16);
}

TEST(DealtDocuments, AreDealtWhereKeysAreWholeAndNothingIsDropped) {
  ModelConfig config = small_config(8, 2, 2, 1, 4, 8, 9);
  EXPECT_TRUE(deals_documents(config, Zigzag(100, 2)));
  EXPECT_FALSE(deals_documents(config, Zigzag(100, 1)));
  EXPECT_FALSE(deals_documents(with_windows({0, 10}, config), Zigzag(100, 2)));
  EXPECT_TRUE(deals_documents(with_windows({0, 100}, config), Zigzag(100, 2)));
  config.attention_dropout = 0.1;
  EXPECT_FALSE(deals_documents(config, Zigzag(100, 2)));
}

}  // namespace
}  // namespace tsprun::detail::test::dealt_documents_test
