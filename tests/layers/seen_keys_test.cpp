// Keys that ranks take of each other in layers with windows, against looking at every query and every key.
#include "layers/layout/seen_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace tsprun::detail::seen_keys_test {
namespace {

/// Owners of positions, and which keys each rank's queries see, key by key.
struct Looked {
  std::vector<int> chunk;               // of a position
  std::vector<std::vector<bool>> sees;  // [rank][key], within the window

  Looked(std::size_t S, int D, std::size_t window) {
    const auto chunks = 2 * static_cast<std::size_t>(D);
    for (std::size_t c = 0; c < chunks; ++c)
      chunk.insert(chunk.end(), S / chunks + (c < S % chunks ? 1 : 0), static_cast<int>(c));
    for (int rank = 0; rank < D; ++rank) {
      std::vector<bool> seen(S);
      for (std::size_t query = 0; query < S; ++query) {
        if (!owns(rank, chunk[query], D)) continue;
        for (std::size_t key = 0; key <= query; ++key) seen[key] = seen[key] || key + window > query;
      }
      sees.push_back(seen);
    }
  }
  static bool owns(int rank, int of, int D) { return of == rank || of == 2 * D - 1 - rank; }
};

TEST(SeenKeys, AreWhatQueriesSee) {
  for (const int D : {1, 2, 3, 4, 5, 8, 9, 16}) {
    for (const std::size_t S : {0U, 1U, 3U, 8U, 13U, 16U, 37U, 48U, 71U}) {
      const Zigzag cut(S, D);
      for (std::size_t window = 0; window <= S + 2; ++window) {
        SCOPED_TRACE("D " + std::to_string(D) + ", S " + std::to_string(S) + ", W " + std::to_string(window));
        const SeenKeys keys(cut, window);
        const Looked looked(S, D, window == 0 ? S + 1 : window);
        const bool wide = D > 8 && window > 1 + 2 * (S / (2 * static_cast<std::size_t>(D)));
        ASSERT_EQ(keys.all(), D == 1 || window == 0 || window >= S || wide);
        std::size_t moved = 0;
        std::vector<std::size_t> given(static_cast<std::size_t>(D));
        for (int rank = 0; rank < D; ++rank) {
          const std::vector<bool>& sees = looked.sees[static_cast<std::size_t>(rank)];
          std::size_t before = 0;
          for (std::size_t key = 0; key < S; ++key) {
            ASSERT_EQ(keys.before(rank, key), before) << "rank " << rank << ", key " << key;
            const bool takes = keys.all() || sees[key];
            if (takes) ++before;
            if (!takes || Looked::owns(rank, looked.chunk[key], D)) continue;
            ++moved;
            const int giver = std::min(looked.chunk[key], 2 * D - 1 - looked.chunk[key]);
            ++given[static_cast<std::size_t>(giver)];
            EXPECT_TRUE(keys.may_share(rank, giver) && keys.may_share(giver, rank));
          }
          EXPECT_EQ(keys.count(rank), before);
          EXPECT_EQ(keys.taken(rank), before - cut.tokens(rank));
          for (const int chunk : cut.chunks_of(rank)) {
            if (cut.chunk_size(chunk) == 0) continue;
            const std::size_t start = cut.chunk_start(chunk);
            EXPECT_EQ(keys.first_of(chunk), keys.all() || start < window ? 0 : start + 1 - window);
            // From the first key to the chunk's end there is no gap.
            EXPECT_EQ(keys.before(rank, cut.chunk_end(chunk)) - keys.before(rank, keys.first_of(chunk)),
                      cut.chunk_end(chunk) - keys.first_of(chunk));
          }
        }
        EXPECT_EQ(keys.moved(), moved);
        for (int rank = 0; rank < D; ++rank) EXPECT_EQ(keys.given(rank), given[static_cast<std::size_t>(rank)]) << rank;
      }
    }
  }
}

/// Where windows are no longer than chunks, of the 2D − 1 borders between chunks one lies between a rank's own.
TEST(SeenKeys, OfShortWindowsDontGrowWithTheSequence) {
  for (const int D : {2, 4, 8}) {
    // Ranks that aren't neighbours share none.
    EXPECT_EQ(SeenKeys(Zigzag(640, D), 4).may_share(0, D - 1), D == 2) << D;
    for (const std::size_t S : {64U, 640U, 65536U}) {
      for (const std::size_t window : {1U, 2U, 4U}) {
        EXPECT_EQ(SeenKeys(Zigzag(S, D), window).moved(), (2 * static_cast<std::size_t>(D) - 2) * (window - 1));
      }
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::seen_keys_test
