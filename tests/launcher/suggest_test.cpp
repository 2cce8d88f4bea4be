// Which known word is meant by one that isn't known.
#include "launcher/suggest.h"

#include "layers/io/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::launcher::suggest_test {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("train", "train"), 0U);
  EXPECT_EQ(edit_distance("trian", "train"), 1U);
  EXPECT_EQ(edit_distance("layuot", "layout"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("bench", "benchs"), 1U);
}

TEST(NearestWord, IsTheOneThatWasMeant) {
  const std::vector<std::string> options = {"--layout", "--json", "--nodes", "--node-rank", "--mem-per-rank", "--log-level"};
  EXPECT_EQ(nearest_word("--layuot", options), "--layout");
  EXPECT_EQ(nearest_word("-json", options), "--json");
  EXPECT_EQ(nearest_word("--node_rank=1", options), "--node-rank");
  EXPECT_EQ(nearest_word("--Mem-Per-Rank", options), "--mem-per-rank");
  EXPECT_EQ(nearest_word("--warp", options), "");
  EXPECT_EQ(nearest_word("", options), "");
  EXPECT_EQ(nearest_word("--", options), "");
}

TEST(NearestWord, OfEquallyNearOnesIsThatOfTheSameLength) {
  const std::vector<std::string> axes = {"dp", "tp", "sp", "tsp", "zero3"};
  EXPECT_EQ(nearest_word("tps", axes), "tsp");
  EXPECT_EQ(nearest_word("TSP", axes), "tsp");
  EXPECT_EQ(nearest_word("xy", axes), "") << "of two letters one is half";
}

TEST(SpellingHere, KnowsWhatOthersCallThings) {
  EXPECT_EQ(spelling_here("-np").substr(0, 4), "-n N");
  EXPECT_EQ(spelling_here("--nproc-per-node=4").substr(0, 4), "-n N");
  EXPECT_EQ(spelling_here("--nproc_per_node").substr(0, 4), "-n N");
  EXPECT_EQ(spelling_here("--layout"), "");
}

}  // namespace
}  // namespace tsprun::detail::launcher::suggest_test
