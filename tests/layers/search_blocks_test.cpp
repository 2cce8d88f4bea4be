// A text that several threads search in blocks has the matches that one search finds.
#include "layers/text/expression.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::text::search_blocks_test {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Places = std::vector<std::pair<std::pair<std::size_t, std::size_t>, bool>>;

Places places(const Pattern& pattern, const std::string& text, const SearchPlan& plan) {
  Places all;
  Pattern::begin_text(text.size());  // else all texts of this thread had the time of one
  pattern.each_place(
      text,
      [&](Place place, bool matched) {
        all.push_back({{place.begin, place.end}, matched});
      },
      plan);
  return all;
}

/// Returns a text of runs of letters, spaces, digits, and characters of several bytes.
std::string random_text(std::mt19937& random, std::size_t bytes) {
  static constexpr const char* kPieces[] = {"a", "b",    "word", "it's", " ",  "  ",   "\n", "\r\n",
                                            "7", "2026", "!",    "é",    "語", "🙂", "\t", "'"};
  std::string text;
  while (text.size() < bytes) {
    const std::string_view piece = kPieces[random() % std::size(kPieces)];
    for (std::size_t times = random() % 9 == 0 ? random() % 40 : 1; times > 0; --times) text += piece;
  }
  return text;
}

TEST(SearchBlocks, FindWhatOneSearchFinds) {
  std::mt19937 random(5);
  // The last ones: matches that are empty, that look back, that are longer than blocks, and none.
  for (const char* source : {kGpt2, kLlama3, "(a*)", "(a|)(?=b)", "(?<=a)b|(?<=b)a|c+", "(a|b| )+", "(b[^!]*!)", "(no|such)+"}) {
    const Pattern pattern = Pattern::expression(source);
    for (int i = 0; i < 12; ++i) {
      const std::string text = random_text(random, 1 + random() % 30000);
      const Places whole = places(pattern, text, {.threads = 1, .block_bytes = 1});
      for (const std::size_t bytes : {std::size_t{1}, 1 + random() % 50, 1 + random() % 9000}) {
        if (bytes < 20 && text.size() > 3000) continue;
        EXPECT_EQ(places(pattern, text, {.threads = 3, .block_bytes = bytes}), whole) << source << ", blocks of " << bytes;
      }
    }
  }
}

TEST(SearchBlocks, EndWhereWhoTakesThePlacesThrows) {
  const Pattern pattern = Pattern::expression(kGpt2);
  std::mt19937 random(6);
  const std::string text = random_text(random, 50000);
  int seen = 0;
  const auto third = [&](Place, bool) {
    if (++seen == 3) throw std::string("third");
  };
  EXPECT_THROW(pattern.each_place(text, third, {.threads = 3, .block_bytes = 500}), std::string);
  EXPECT_EQ(seen, 3);
}

// Five MiB, which each_place() searches in blocks by itself wherever there are two cores.
TEST(SearchBlocks, OfLongTextsAreUsedByThemselves) {
  const Pattern pattern = Pattern::expression(kLlama3);
  std::mt19937 random(7);
  const std::string text = random_text(random, std::size_t{5} << 20);
  const SearchPlan plan = SearchPlan::of(text.size());
  EXPECT_EQ(plan.threads > 1, std::thread::hardware_concurrency() > 1);
  EXPECT_EQ(SearchPlan::of(100000).threads, 1U);
  EXPECT_TRUE(places(pattern, text, plan) == places(pattern, text, {.threads = 1, .block_bytes = 1}));
}

}  // namespace
}  // namespace tsprun::detail::text::search_blocks_test
