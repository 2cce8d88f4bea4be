// A failure on the board as others see it while it is written, corrected, or copied: whole, or not at all.
#include "core/board/failure_record.h"
#include "core/board/page_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace tsprun::detail::test::failure_record_test {
namespace {

using Record = BasicRecord<SystemAtomics, 5, 32>;

Record::Words all(std::uint32_t value) {
  Record::Words words;
  words.numbers.fill(value);
  words.text.fill(value);
  return words;
}

/// Expects that all words were written at once.
void expect_whole(const Record::Words& words) {
  const std::uint32_t first = words.numbers[0];
  EXPECT_TRUE(std::ranges::count(words.numbers, first) == 5 && std::ranges::count(words.text, first) == 32);
}

TEST(FailureRecord, IsReadWholeWhileItIsCorrected) {
  constexpr std::uint32_t kCorrections = 200'000;
  Record record{};
  std::atomic<bool> over = false;
  std::thread writer([&] {
    EXPECT_TRUE(record.write(all(1)));
    for (std::uint32_t i = 2; i < kCorrections; ++i) EXPECT_TRUE(record.correct(all(i)));
    over = true;
  });
  while (!over && !::testing::Test::HasFailure()) {
    if (const std::optional<Record::Words> words = record.read()) expect_whole(*words);
  }
  writer.join();
  EXPECT_EQ(record.read()->numbers[0], kCorrections - 1);
}

TEST(FailureRecord, IsWrittenByOneOfSeveral) {
  for (int round = 0; round < 200; ++round) {
    Record record{};
    std::atomic<int> written = 0;
    std::vector<std::thread> writers;
    for (std::uint32_t i = 1; i <= 4; ++i) writers.emplace_back([&, i] { written += record.write(all(i)) ? 1 : 0; });
    for (std::thread& each : writers) each.join();
    EXPECT_EQ(written, 1);
    expect_whole(record.read().value());
  }
}

TEST(FailureRecord, IsReadWholeWhileItIsCopied) {
  using Word = std::atomic<std::uint64_t>;
  struct alignas(64) Line {
    Record record;
  };
  static_assert(sizeof(Line) % sizeof(Word) == 0);
  constexpr std::size_t kCopies = 20'000;
  Line from{};
  ASSERT_TRUE(from.record.write(all(7)));
  std::vector<std::uint64_t> words(sizeof(Line) / sizeof(Word));
  take_words(reinterpret_cast<const Word*>(&from), words);
  const auto copies = std::make_unique<Line[]>(kCopies);
  std::thread copier([&] {
    for (std::size_t i = 0; i < kCopies; ++i)
      put_words(std::span<const std::uint64_t>(words), reinterpret_cast<Word*>(&copies[i]));
  });
  for (std::size_t i = 0; i < kCopies; ++i) {
    std::optional<Record::Words> copy;
    while (!copy) copy = copies[i].record.read();
    EXPECT_EQ(copy->numbers, all(7).numbers);
    EXPECT_EQ(copy->text, all(7).text);
  }
  copier.join();
}

}  // namespace
}  // namespace tsprun::detail::test::failure_record_test
