// The number of query-key pairs that a mask leaves, against counting them one by one.
#include "core/kernels/visible_pairs.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace tsprun::detail::test::visible_pairs_test {
namespace {

constexpr std::size_t kBatch = 3;
constexpr std::size_t kLength = 41;

/// Returns the beginnings of documents [kBatch, kLength], one of which ends with about every `each`-th token.
std::vector<std::uint32_t> random_starts(std::mt19937& random, unsigned each) {
  std::vector<std::uint32_t> starts;
  for (std::size_t b = 0; b < kBatch; ++b) {
    std::uint32_t start = 0;
    for (std::uint32_t i = 0; i < kLength; ++i) {
      starts.push_back(start);
      if (random() % each == 0) start = i + 1;
    }
  }
  return starts;
}

double counted(const kernels::Mask& mask, std::size_t queries, std::size_t keys) {
  std::size_t pairs = 0;
  for (std::size_t b = 0; b < kBatch; ++b) {
    for (std::size_t i = mask.query_start; i < mask.query_start + queries; ++i) {
      for (std::size_t j = mask.key_start; j < mask.key_start + keys; ++j) {
        const kernels::Documents& documents = mask.documents;
        const auto position = [&](std::size_t place) { return documents.dealt() ? documents.positions_of(b)[place] : place; };
        const bool same = !documents.any() || documents.of(b)[i] == documents.of(b)[j];
        if (j <= i && same && (mask.window == 0 || position(i) < position(j) + mask.window)) ++pairs;
      }
    }
  }
  return static_cast<double>(pairs);
}

TEST(VisiblePairs, AreThoseOfEachDocument) {
  std::mt19937 random(5);
  for (const unsigned each : {1U, 2U, 6U, 20U, 1000U}) {
    const std::vector<std::uint32_t> starts = random_starts(random, each);
    for (const bool alike : {false, true}) {
      for (const std::size_t window : {0U, 1U, 4U, 17U, 100U}) {
        for (int i = 0; i < 40; ++i) {
          const std::size_t query = random() % (kLength + 1);
          const std::size_t key = random() % (kLength + 1);
          const std::size_t queries = random() % (kLength + 1 - query);
          const std::size_t keys = random() % (kLength + 1 - key);
          const kernels::Documents documents{.starts = starts.data(), .length = kLength, .alike = alike};
          const auto mask = kernels::Mask::from_positions(query, key, window, documents);
          EXPECT_EQ(kernels::visible_pairs(mask, kBatch, queries, keys), counted(mask, queries, keys))
              << each << ": queries " << query << " + " << queries << ", keys " << key << " + " << keys << ", window " << window;
        }
      }
    }
  }
}

/// Each document in four pieces, of which the first stretch of places has the first, and so on.
TEST(VisiblePairs, AreThoseOfEachDocumentWhereTokensAreDealt) {
  std::mt19937 random(6);
  for (const unsigned each : {1U, 2U, 6U, 20U, 1000U}) {
    std::vector<std::uint32_t> documents;
    std::vector<std::uint32_t> positions;
    for (std::size_t b = 0; b < kBatch; ++b) {
      std::vector<std::uint32_t> starts = {0};
      for (std::uint32_t i = 1; i < kLength; ++i) {
        if (random() % each == 0) starts.push_back(i);
      }
      starts.push_back(kLength);
      for (std::uint32_t piece = 0; piece < 4; ++piece) {
        for (std::size_t number = 0; number + 1 < starts.size(); ++number) {
          const std::uint32_t length = starts[number + 1] - starts[number];
          for (std::uint32_t i = length * piece / 4; i < length * (piece + 1) / 4; ++i) {
            documents.push_back(starts[number]);
            positions.push_back(i);
          }
        }
      }
    }
    for (const std::size_t window : {0U, 1U, 4U, 17U, 100U}) {
      for (int i = 0; i < 60; ++i) {
        const std::size_t query = random() % (kLength + 1);
        std::size_t key = random() % (kLength + 1);
        const std::size_t queries = random() % (kLength + 1 - query);
        std::size_t keys = random() % (kLength + 1 - key);
        // Also all places from the first on, as gathered keys are.
        if (i % 3 == 0) keys = kLength - std::exchange(key, 0) % (kLength + 1 - query - queries);
        const auto mask = kernels::Mask::from_positions(
            query, key, window, {.starts = documents.data(), .length = kLength, .positions = positions.data()});
        EXPECT_EQ(kernels::visible_pairs(mask, kBatch, queries, keys), counted(mask, queries, keys))
            << each << ": queries " << query << " + " << queries << ", keys " << key << " + " << keys << ", window " << window;
      }
    }
  }
}

TEST(VisiblePairs, OfSequencesWithoutDocumentsAreThoseOfOne) {
  for (const std::size_t window : {0U, 5U}) {
    const auto mask = kernels::Mask::from_positions(7, 3, window);
    EXPECT_EQ(kernels::visible_pairs(mask, kBatch, 20, 30), counted(mask, 20, 30)) << window;
  }
  EXPECT_EQ(kernels::visible_pairs(kernels::Mask::none(), kBatch, 20, 30), 3.0 * 20 * 30);
}

}  // namespace
}  // namespace tsprun::detail::test::visible_pairs_test
