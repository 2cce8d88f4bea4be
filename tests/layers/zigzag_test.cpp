// Zigzag and the cut of heads, against brute-force tables.
#include "layers/layout/zigzag.h"
#include "layers/layout/heads.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace tsprun::detail::zigzag_test {
namespace {

/// Chunk of every position, dealt token by token: chunk c gets ⌊S/2D⌋ tokens and one more if c < S mod 2D.
std::vector<int> chunk_of_positions(std::size_t sequence, int ranks) {
  std::vector<int> chunks;
  const auto count = 2 * static_cast<std::size_t>(ranks);
  for (std::size_t chunk = 0; chunk < count; ++chunk) {
    const std::size_t size = sequence / count + (chunk < sequence % count ? 1 : 0);
    chunks.insert(chunks.end(), size, static_cast<int>(chunk));
  }
  return chunks;
}

TEST(Zigzag, DealsEveryPositionAsTheTableSays) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::size_t sequence = 0; sequence <= 40; ++sequence) {
      const Zigzag zigzag(sequence, ranks);
      const std::vector<int> chunks = chunk_of_positions(sequence, ranks);
      ASSERT_EQ(chunks.size(), sequence);
      std::size_t dealt = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<std::int64_t> expected;
        for (const int chunk : {rank, 2 * ranks - 1 - rank}) {
          for (std::size_t i = 0; i < sequence; ++i) {
            if (chunks[i] == chunk) expected.push_back(static_cast<std::int64_t>(i));
          }
        }
        EXPECT_EQ(zigzag.positions(rank), expected) << "S " << sequence << ", D " << ranks << ", rank " << rank;
        EXPECT_EQ(zigzag.tokens(rank), expected.size());
        dealt += expected.size();
      }
      EXPECT_EQ(dealt, sequence);
    }
  }
}

TEST(Zigzag, ChunksDifferByAtMostOneTokenAndTheLongerOnesComeFirst) {
  const Zigzag zigzag(13, 3);
  EXPECT_EQ(zigzag.chunk_size(0), 3U);
  for (int chunk = 1; chunk < 6; ++chunk) EXPECT_EQ(zigzag.chunk_size(chunk), 2U);
  EXPECT_EQ(zigzag.chunk_end(5), 13U);
  const Zigzag few(2, 3);
  EXPECT_EQ((std::vector{few.tokens(0), few.tokens(1), few.tokens(2)}), (std::vector<std::size_t>{1, 1, 0}));
}

TEST(Zigzag, LabelsShiftedBeforeTheCutAreThoseOfTheNextPosition) {
  const Zigzag zigzag(11, 3);
  std::vector<int> tokens(12);
  std::iota(tokens.begin(), tokens.end(), 100);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<int> inputs(zigzag.tokens(rank));
    std::vector<int> labels(zigzag.tokens(rank));
    zigzag.cut<int>(rank, std::span(tokens).first(11), inputs);
    zigzag.cut<int>(rank, std::span(tokens).subspan(1), labels);
    const auto positions = zigzag.positions(rank);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      EXPECT_EQ(inputs[i], 100 + positions[i]);
      EXPECT_EQ(labels[i], 101 + positions[i]);
    }
  }
}

TEST(Zigzag, BalancesCausalAttention) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::size_t sequence = 0; sequence <= 40; ++sequence) {
      const Zigzag zigzag(sequence, ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        std::size_t pairs = 0;
        for (const std::int64_t query : zigzag.positions(rank)) pairs += static_cast<std::size_t>(query) + 1;
        EXPECT_EQ(zigzag.attention_pairs(rank), pairs);
        for (const std::size_t window : {1U, 2U, 7U, 40U, 99U}) {
          std::size_t within = 0;
          for (const std::int64_t query : zigzag.positions(rank)) within += std::min(static_cast<std::size_t>(query) + 1, window);
          EXPECT_EQ(zigzag.attention_pairs(rank, window), within) << window;
        }
        const auto chunks = 2 * static_cast<std::size_t>(ranks);
        if (sequence % chunks == 0) {
          const std::size_t size = sequence / chunks;
          EXPECT_EQ(pairs, chunks * size * size + size);
        }
      }
    }
  }
}

TEST(Zigzag, RefusesNoRanks) {
  EXPECT_REFUSED(Zigzag(8, 0), "0 ranks");
  EXPECT_REFUSED(Zigzag(8, -1), "-1 ranks");
}

TEST(HeadCut, GivesEachKvHeadToTheOwnerOfItsFirstQueryHead) {
  for (std::size_t query_heads = 1; query_heads <= 24; ++query_heads) {
    for (std::size_t kv_heads = 1; kv_heads <= query_heads; ++kv_heads) {
      for (int ranks = 1; ranks <= static_cast<int>(query_heads); ++ranks) {
        if (query_heads % kv_heads != 0 || query_heads % static_cast<std::size_t>(ranks) != 0) continue;
        const HeadCut cut(query_heads, kv_heads, ranks);
        const std::size_t g = query_heads / kv_heads;
        const std::size_t share = query_heads / static_cast<std::size_t>(ranks);
        std::vector<std::set<std::size_t>> owned(static_cast<std::size_t>(ranks));
        std::vector<std::set<std::size_t>> read(static_cast<std::size_t>(ranks));
        for (std::size_t head = 0; head < query_heads; ++head) {
          EXPECT_EQ(cut.kv_head_of(head), head / g);
          read[head / share].insert(head / g);
          if (head % g == 0) owned[head / share].insert(head / g);
        }
        std::size_t read_by_all = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto range = [](const HeadRange& heads) {
            std::set<std::size_t> set;
            for (std::size_t head = heads.first; head < heads.end(); ++head) set.insert(head);
            return set;
          };
          EXPECT_EQ(range(cut.query_heads(rank)).size(), share);
          EXPECT_EQ(range(cut.kv_heads_owned(rank)), owned[static_cast<std::size_t>(rank)]);
          EXPECT_EQ(range(cut.kv_heads_read(rank)), read[static_cast<std::size_t>(rank)]);
          for (const std::size_t head : owned[static_cast<std::size_t>(rank)]) EXPECT_EQ(cut.kv_owner(head), rank);
          read_by_all += read[static_cast<std::size_t>(rank)].size();
        }
        for (std::size_t head = 0; head < kv_heads; ++head) {
          int last = -1;
          for (int rank = 0; rank < ranks; ++rank) {
            if (read[static_cast<std::size_t>(rank)].contains(head)) last = rank;
          }
          EXPECT_EQ(cut.kv_last_reader(head), last);
        }
        EXPECT_EQ(cut.kv_heads_read_by_all(), read_by_all);
      }
    }
  }
}

TEST(HeadCut, NamesDegreesThatWork) {
  EXPECT_REFUSED(HeadCut(32, 8, 6), "32 query heads don't divide by 6; try 4 or 8");
  EXPECT_REFUSED(HeadCut(8, 8, 16), "8 query heads don't divide by 16; try 8");
  EXPECT_REFUSED(HeadCut(8, 3, 2), "3 K/V heads don't divide 8 query heads");
}

}  // namespace
}  // namespace tsprun::detail::zigzag_test
