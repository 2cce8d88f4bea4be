// Documents that are dealt to the ranks of a sequence: every token once, as many to each chunk as zigzag has there, each document
// in its own order; pairs as counting them one by one gives; and how much nearer the ranks' shares are.
#include "layers/layout/dealt_documents.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
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

TEST(DealtDocuments, AreWholeAndInOrderAndNearlyEvenlyCut) {
  std::mt19937 random(3);
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t sequence : {0U, 1U, 7U, 40U, 61U, 200U}) {
      for (const std::size_t most : {1U, 4U, 17U, 1000U}) {
        const Lengths lengths = random_lengths(random, sequence, most);
        const std::vector<std::uint32_t> starts = starts_of(lengths);
        const Zigzag cut(sequence, ranks);
        const std::vector<std::uint32_t> order = dealt_order(cut, starts);
        std::vector<std::uint32_t> sorted = order;
        std::ranges::sort(sorted);
        std::vector<std::uint32_t> all(sequence);
        std::iota(all.begin(), all.end(), 0);
        ASSERT_EQ(sorted, all);
        for (std::size_t start = 0; start < sequence;) {
          std::vector<std::uint32_t> document;
          std::vector<std::size_t> of_chunk;
          for (int chunk = 0; chunk < 2 * ranks; ++chunk) {
            of_chunk.push_back(0);
            for (std::size_t place = cut.chunk_start(chunk); place < cut.chunk_end(chunk); ++place) {
              if (starts[order[place]] != start) continue;
              document.push_back(order[place]);
              ++of_chunk.back();
            }
          }
          EXPECT_TRUE(std::ranges::is_sorted(document));
          const auto [least, largest] = std::ranges::minmax(of_chunk);
          EXPECT_LE(largest - least, 1U);
          start += document.size();
        }
        for (int chunk = 0; chunk < 2 * ranks; ++chunk) {
          EXPECT_TRUE(std::ranges::is_sorted(order.begin() + static_cast<std::ptrdiff_t>(cut.chunk_start(chunk)),
                                             order.begin() + static_cast<std::ptrdiff_t>(cut.chunk_end(chunk))));
        }
      }
    }
  }
}

TEST(DealtDocuments, OfOneDocumentAreZigzag) {
  const std::vector<std::uint32_t> starts(61, 0);
  const std::vector<std::uint32_t> order = dealt_order(Zigzag(61, 3), starts);
  for (std::uint32_t place = 0; place < order.size(); ++place) EXPECT_EQ(order[place], place);
}

TEST(DealtDocuments, HaveThePairsThatTheirTokensSee) {
  std::mt19937 random(4);
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t sequence : {1U, 40U, 61U, 200U}) {
      const Lengths lengths = random_lengths(random, sequence, 70);
      const std::vector<std::uint32_t> starts = starts_of(lengths);
      const Zigzag cut(sequence, ranks);
      const std::vector<std::uint32_t> order = dealt_order(cut, starts);
      for (const std::size_t window : {0U, 1U, 9U, 500U}) {
        for (int rank = 0; rank < ranks; ++rank) {
          std::size_t pairs = 0;
          for (const int chunk : {rank, 2 * ranks - 1 - rank}) {
            for (std::size_t place = cut.chunk_start(chunk); place < cut.chunk_end(chunk); ++place) {
              const std::size_t seen = order[place] - starts[order[place]] + 1;
              pairs += window == 0 ? seen : std::min(seen, window);
            }
          }
          EXPECT_EQ(dealt_pairs(cut, rank, window, lengths), pairs) << rank << " of " << ranks << ", window " << window;
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
  constexpr std::size_t kSequence = 32768;
  double worst_cut = 1;
  for (const int ranks : {2, 4, 8, 16}) {
    const Zigzag cut(kSequence, ranks);
    for (int i = 0; i < 20; ++i) {
      const Lengths lengths = random_lengths(random, kSequence, i % 2 == 0 ? 2000 : kSequence);
      worst_cut = std::max(worst_cut, imbalance(ranks, [&](int rank) { return cut.attention_pairs(rank, 0, lengths); }));
      EXPECT_LT(imbalance(ranks, [&](int rank) { return dealt_pairs(cut, rank, 0, lengths); }), 1.05) << ranks;
    }
  }
  EXPECT_GT(worst_cut, 1.5);
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
