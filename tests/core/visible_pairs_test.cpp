// The number of query-key pairs that a mask leaves, against counting them one by one.
#include "core/kernels/visible_pairs.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
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
        const std::size_t from = mask.documents.any() ? mask.documents.starts[(mask.documents.alike ? 0 : b) * kLength + i] : 0;
        if (j <= i && j >= from && (mask.window == 0 || i < j + mask.window)) ++pairs;
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

TEST(VisiblePairs, OfSequencesWithoutDocumentsAreThoseOfOne) {
  for (const std::size_t window : {0U, 5U}) {
    const auto mask = kernels::Mask::from_positions(7, 3, window);
    EXPECT_EQ(kernels::visible_pairs(mask, kBatch, 20, 30), counted(mask, 20, 30)) << window;
  }
  EXPECT_EQ(kernels::visible_pairs(kernels::Mask::none(), kBatch, 20, 30), 3.0 * 20 * 30);
}

}  // namespace
}  // namespace tsprun::detail::test::visible_pairs_test
