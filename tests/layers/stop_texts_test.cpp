// Stop texts against looking at all places of the whole text, for pieces of any size.
#include "layers/text/stop_texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text::stop_texts_test {
namespace {

using Texts = std::vector<std::string>;

/// Returns the bytes at the end of a text with which a stop text begins.
std::size_t begun(std::string_view text, const Texts& stops) {
  std::size_t most = 0;
  for (const std::string& stop : stops) {
    for (std::size_t bytes = 1; bytes < stop.size(); ++bytes)
      if (text.ends_with(stop.substr(0, bytes))) most = std::max(most, bytes);
  }
  return most;
}

TEST(StopTexts, EndATextAtTheFirstWhateverThePieces) {
  std::mt19937 random(7);
  const auto draw = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  const auto word = [&](std::size_t bytes) {
    std::string made;
    while (made.size() < bytes) made += "ab"[draw(2)];
    return made;
  };
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    Texts stops;
    for (std::size_t i = draw(4); i > 0; --i) stops.push_back(word(1 + draw(8)));
    const std::string text = word(draw(40));
    // The end of the first stop text, and the bytes of the longest that ends there.
    std::size_t end = 0;
    std::size_t longest = 0;
    for (; end <= text.size() && longest == 0; ++end) {
      for (const std::string& stop : stops)
        if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    const bool expected = longest != 0;
    const std::string before = text.substr(0, expected ? end - 1 - longest : text.size());

    StopTexts stream(stops);
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t bytes = 1 + draw(6);
      shown += stream.add(std::string_view(text).substr(at, bytes));
      at = std::min(at + bytes, text.size());
      if (stream.found()) continue;
      const std::string_view so_far = std::string_view(text).substr(0, at);
      ASSERT_EQ(shown, so_far.substr(0, at - begun(so_far, stops))) << "keeps back what may become a stop text, and no more";
    }
    ASSERT_EQ(stream.found(), expected) << text;
    shown += stream.rest();
    ASSERT_EQ(shown, before) << text;
    if (expected) {
      ASSERT_EQ(stream.add("ab"), "") << "nothing follows a stop text";
      ++found;
    }
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(found, 2500);
}

TEST(StopTexts, OfSeveralThatEndAtOnePlaceTheLongestCounts) {
  StopTexts stream({"\n", "User:\n", "ser:\nX"});
  EXPECT_EQ(stream.add("Yes. Us"), "Yes. ");
  EXPECT_EQ(stream.add("er:"), "");
  EXPECT_EQ(stream.add("\nX"), "");
  EXPECT_TRUE(stream.found());
}

}  // namespace
}  // namespace tsprun::detail::text::stop_texts_test
