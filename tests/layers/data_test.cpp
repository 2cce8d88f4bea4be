// Token streams of hand-made files, evaluation windows by brute force, and the placing of training sequences.
#include "layers/io/data.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace tsprun::detail::data_test {
namespace {

std::vector<Token> read(const TokenStream& stream, std::uint64_t first, std::size_t count) {
  std::vector<Token> tokens(count);
  stream.read(first, tokens);
  return tokens;
}

TEST(TokenStream, ReadsTextAsBytesAndBinAsLittleEndianIds) {
  const test::TemporaryFolder folder;
  const auto text = folder.write("a.txt", "A\xc3\xa9\n");
  const auto ids = folder.write("b.bin", std::string("\x01\x02\xff\xff\x00\x00", 6));
  EXPECT_EQ(read(TokenStream({text}), 0, 4), (std::vector<Token>{65, 0xc3, 0xa9, 10}));
  EXPECT_EQ(read(TokenStream({ids}), 0, 3), (std::vector<Token>{0x0201, 65535, 0}));
}

TEST(TokenStream, JoinsFilesInTheirOrder) {
  const test::TemporaryFolder folder;
  const auto text = folder.write("a.txt", "ab");
  const auto empty = folder.write("empty.txt", "");
  const auto ids = folder.write("b.bin", std::string("\x2c\x01\x2d\x01", 4));
  const TokenStream stream({empty, text, empty, ids, text, empty});
  const std::vector<Token> all = {'a', 'b', 300, 301, 'a', 'b'};
  EXPECT_EQ(stream.size(), all.size());
  for (std::size_t first = 0; first <= all.size(); ++first) {
    for (std::size_t end = first; end <= all.size(); ++end) {
      EXPECT_EQ(read(stream, first, end - first), std::vector<Token>(all.begin() + static_cast<std::ptrdiff_t>(first),
                                                                     all.begin() + static_cast<std::ptrdiff_t>(end)));
    }
  }
  EXPECT_REFUSED(read(stream, 3, 4), "tokens 3 to 7 of 6");
  EXPECT_REFUSED(read(stream, ~std::uint64_t{0}, 2), "of 6");
}

TEST(TokenStream, ReadsMoreThanItsScratch) {
  const test::TemporaryFolder folder;
  std::string bytes(700'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  const TokenStream stream({folder.write("a.txt", bytes)});
  const std::vector<Token> tokens = read(stream, 1, bytes.size() - 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], static_cast<Token>((i + 1) * 7 % 251));
}

TEST(TokenStream, RefusesWhatHoldsNoTwoTokens) {
  const test::TemporaryFolder folder;
  EXPECT_REFUSED(TokenStream({}), "--data", "no files");
  EXPECT_REFUSED(TokenStream({folder.write("empty.txt", "")}), "empty.txt", "empty", "at least two tokens");
  EXPECT_REFUSED(TokenStream({folder.write("one.txt", "x")}), "one.txt", "one token", "at least two");
  EXPECT_REFUSED(TokenStream({folder.write("one.bin", "xy")}), "one.bin", "one token");
  const TokenStream one({folder / "one.bin"}, 1);
  EXPECT_EQ(one.size(), 1U);
  EXPECT_EQ(read(one, 0, 1), (std::vector<Token>{'x' | 'y' << 8}));
  EXPECT_REFUSED(TokenStream({folder / "empty.txt"}, 1), "empty.txt", "empty", "at least one token");
  EXPECT_REFUSED(TokenStream({folder.write("odd.bin", "xyz")}), "odd.bin", "3 bytes", "multiple of 2");
  EXPECT_REFUSED(TokenStream({folder / "none.txt"}), "none.txt", "No such file");
  EXPECT_REFUSED(TokenStream({folder.path()}), "regular file");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_REFUSED(TokenStream({folder / "fifo"}), "fifo", "regular file");
}

TEST(TokenStream, NamesTheFirstTokenBeyondTheVocabulary) {
  const test::TemporaryFolder folder;
  const auto text = folder.write("a.txt", "abc");
  const auto ids = folder.write("b.bin", std::string("\x10\x00\x00\x01\x20\x00", 6));
  const TokenStream stream({text, ids});
  EXPECT_NO_THROW(stream.check_vocabulary(257));
  EXPECT_REFUSED(stream.check_vocabulary(256), "b.bin", "token id 256 at position 1 (byte 2)", "256");
  EXPECT_REFUSED(stream.check_vocabulary(99), "a.txt", "token id 99 at position 2 (byte 2)");
  EXPECT_NO_THROW(TokenStream({text}).check_vocabulary(100));
}

TEST(TokenStream, TakesTheIdsOfTextsFromATokenizer) {
  const test::TemporaryFolder folder;
  const auto text = folder.write("a.txt", "whatever");
  const auto ids = folder.write("b.bin", std::string("\x01\x00\x02\x00", 4));
  const IdsOfTexts made = {{text, std::make_shared<const std::vector<Token>>(std::vector<Token>{70'000, 3, 4})}};
  const TokenStream stream({ids, text, ids}, 2, made);
  const std::vector<Token> all = {1, 2, 70'000, 3, 4, 1, 2};
  ASSERT_EQ(stream.size(), all.size());
  EXPECT_EQ(read(stream, 0, all.size()), all);
  for (std::size_t first = 0; first < all.size(); ++first) EXPECT_EQ(read(stream, first, 1), std::vector<Token>{all[first]});
  EXPECT_NO_THROW(TokenStream({text}, 2, made).check_vocabulary(70'001));
  EXPECT_REFUSED(TokenStream({text}, 2, made).check_vocabulary(70'000), "a.txt", "token id 70000 at position 0", "70000");
}

/// The bytes of little-endian integers.
template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

TEST(TokenStream, RefusesNumbersThatItWouldReadAsOthers) {
  const test::TemporaryFolder folder;
  for (const char* name : {"a.U16", "a.int64", "a.npz", "a.pt", "a.parquet"}) {
    EXPECT_REFUSED(TokenStream({folder.write(name, "abcdefgh")}), name, "by its name it holds numbers", "astype('<u4')");
  }
  // The same 300 ids in 16, 32 and 64 bits, below and above 65536.
  std::vector<std::uint16_t> narrow;
  std::vector<std::int32_t> wide;
  std::vector<std::int64_t> widest;
  std::vector<std::uint32_t> large;
  for (std::uint32_t i = 0; i < 300; ++i) {
    narrow.push_back(static_cast<std::uint16_t>(i * 211 % 50257));
    wide.push_back(narrow.back());
    widest.push_back(narrow.back());
    large.push_back(i * 7919 % 128256);
  }
  wide[7] = -100;  // a label that isn't predicted
  EXPECT_EQ(TokenStream({folder.write("narrow.bin", bytes_of(narrow))}).size(), 300U);
  for (const std::string& bytes :
       {bytes_of(wide), bytes_of(widest), bytes_of(large), bytes_of(std::vector<std::uint32_t>{15, 0, 3, 72})}) {
    EXPECT_REFUSED(TokenStream({folder.write("wide.bin", bytes)}), "wide.bin", "32-bit or 64-bit ids", "name it .u32",
                   "astype('<u4')");
  }
  // What is odd, and no more than that.
  for (const std::vector<std::uint16_t>& ids :
       {std::vector<std::uint16_t>{5, 0, 6, 0, 7, 0}, std::vector<std::uint16_t>(1000),
        std::vector<std::uint16_t>{0, 1, 0, 2, 0, 3, 0, 4}, std::vector<std::uint16_t>{5, 0, 6, 0, 7, 0, 8, 1}}) {
    EXPECT_EQ(TokenStream({folder.write("odd.bin", bytes_of(ids))}).size(), ids.size());
  }
  std::vector<std::int32_t> header = {20240520, 1, 300};
  header.resize(256);
  EXPECT_REFUSED(TokenStream({folder.write("llm.bin", bytes_of(header) + bytes_of(narrow))}), "llm.bin", "llm.c", "1024 bytes");
  EXPECT_REFUSED(TokenStream({folder.write("saved.bin", "\x93NUMPY\x01 and so on")}), "saved.bin", "named .npy");
  EXPECT_REFUSED(TokenStream({folder.write("wide.u32", bytes_of(widest))}), "wide.u32", "64-bit ids", "astype('<u4')");
  EXPECT_REFUSED(TokenStream({folder.write("llm.u32", bytes_of(header) + bytes_of(narrow))}), "llm.u32", "llm.c");
  folder.write("narrow.idx", "MMIDIDX");
  EXPECT_REFUSED(TokenStream({folder / "narrow.bin"}), "narrow.bin", "narrow.idx", "Megatron");
  EXPECT_REFUSED(TokenStream({folder.write("saved.txt", "PK\x03\x04 and so on")}), "saved.txt", "an archive");
}

TEST(TokenStream, ReadsIdsOf32Bits) {
  const test::TemporaryFolder folder;
  const std::vector<std::uint32_t> ids = {0, 65536, 151935, 0x7fffffff};
  const auto file = folder.write("a.u32", bytes_of(ids));
  const auto one = folder.write("one.u32", bytes_of(std::vector<std::uint32_t>{128255}));
  const auto narrow = folder.write("b.bin", bytes_of(std::vector<std::uint16_t>{7, 65535}));
  const TokenStream stream({file, narrow, one, folder.write("c.txt", "x")});
  const std::vector<Token> all = {0, 65536, 151935, 0x7fffffff, 7, 65535, 128255, 'x'};
  ASSERT_EQ(stream.size(), all.size());
  for (std::size_t first = 0; first < all.size(); ++first) EXPECT_EQ(read(stream, first, 1), std::vector<Token>{all[first]});
  EXPECT_EQ(read(stream, 0, all.size()), all);
  EXPECT_NO_THROW(TokenStream({file}).check_vocabulary(std::size_t{1} << 31));
  EXPECT_REFUSED(TokenStream({one, file}).check_vocabulary(151935), "a.u32", "token id 151935 at position 2 (byte 8)",
                 "the vocabulary's 151935");
  const TokenStream large({folder.write("large.u32", bytes_of(std::vector<std::uint32_t>{1, 0x80000000}))});
  EXPECT_REFUSED(large.check_vocabulary(1 << 20), "large.u32", "token id 2147483648 at position 1");
  EXPECT_REFUSED(read(large, 0, 2), "large.u32", "position 1", "no token id");
  EXPECT_REFUSED(TokenStream({folder.write("odd.u32", "abcdef")}), "odd.u32", "6 bytes", "multiple of 4", "32-bit");
}

/// Returns the bytes that numpy's save() writes, of version 1: the dictionary as numpy prints it, padded to a multiple of 64 with
/// a newline.
std::string npy(const std::string& type, const std::string& shape, const std::string& numbers) {
  std::string dictionary = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  while ((10 + dictionary.size() + 1) % 64 != 0) dictionary += ' ';
  dictionary += '\n';
  const std::string length = {static_cast<char>(dictionary.size()), static_cast<char>(dictionary.size() >> 8)};
  return std::string("\x93NUMPY\x01\0", 8) + length + dictionary + numbers;
}

TEST(TokenStream, ReadsWhatNumpySaves) {
  const test::TemporaryFolder folder;
  const auto expect = [&](const std::string& type, const std::string& numbers, const std::vector<Token>& tokens) {
    const TokenStream stream({folder.write("a.npy", npy(type, "(" + std::to_string(tokens.size()) + ",)", numbers))}, 1);
    EXPECT_EQ(stream.size(), tokens.size());
    EXPECT_EQ(read(stream, 0, tokens.size()), tokens) << type;
    EXPECT_EQ(read(stream, tokens.size() - 1, 1), std::vector<Token>{tokens.back()}) << type;
  };
  expect("<u2", bytes_of(std::vector<std::uint16_t>{1, 65535}), {1, 65535});
  expect("<u4", bytes_of(std::vector<std::uint32_t>{1, 65536, 9}), {1, 65536, 9});
  expect("<i4", bytes_of(std::vector<std::int32_t>{262143}), {262143});
  expect("<i8", bytes_of(std::vector<std::int64_t>{5, 262143}), {5, 262143});

  const TokenStream negative({folder.write("n.npy", npy("<i8", "(2,)", bytes_of(std::vector<std::int64_t>{3, -100})))});
  EXPECT_REFUSED(negative.check_vocabulary(256), "n.npy", "token id -100 at position 1 (byte 136)");
  EXPECT_REFUSED(read(negative, 0, 2), "n.npy", "position 1");
  const TokenStream wide({folder.write("w.npy", npy("<i8", "(2,)", bytes_of(std::vector<std::int64_t>{3, (1LL << 32) + 1})))});
  EXPECT_REFUSED(wide.check_vocabulary(256), "w.npy", "token id 4294967297 at position 1");
  EXPECT_REFUSED(read(wide, 0, 2), "w.npy", "position 1");
  // A vocabulary of more than 16 bits doesn't forbid a file of fewer.
  EXPECT_NO_THROW(TokenStream({folder.write("s.npy", npy("<u2", "(2,)", "abcd"))}).check_vocabulary(151936));
}

TEST(TokenStream, RefusesWhatNumpySavesOtherwise) {
  const test::TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    const auto path = folder.write("a.npy", bytes);
    try {
      const TokenStream stream({path});
    } catch (const Error& error) {
      EXPECT_EQ(error.cause(), Cause::refused);
      return std::string(error.what());
    }
    ADD_FAILURE() << "was read";
    return std::string();
  };
  const auto expect = [&](const std::string& bytes, const std::string& part) {
    EXPECT_NE(refused(bytes).find(part), std::string::npos) << refused(bytes);
  };
  expect(npy("<f4", "(2,)", "abcdefgh"), "an array of type <f4; ids of <u2, <u4, <i4 and <i8 are read");
  expect(npy(">i4", "(2,)", "abcdefgh"), "type >i4");
  expect(npy("<i4", "(1, 2)", "abcdefgh"), "shape (1, 2); expected one dimension");
  expect(npy("<i4", "()", "abcd"), "shape (); expected one dimension");
  expect(npy("<i4", "(3,)", "abcdefgh"), "3 numbers of 4 bytes, and 8 bytes follow");
  expect(npy("<i4", "(1,)", "abcdefgh"), "1 numbers of 4 bytes, and 8 bytes follow");
  expect(npy("<i4", "(99999999999999999999,)", "abcd"), "the shape (99999999999999999999,)");
  expect(npy("<i4", "(2305843009213693953,)", "abcd"), "2305843009213693953 numbers");
  expect("not numpy's", "numpy's save()");
  expect("", "numpy's save()");
  expect(std::string("\x93NUMPY\x04\0\x10\0\0\0", 12), "version 4");
  expect(std::string("\x93NUMPY\x01\0", 8), "ends within");
  expect(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12), "4294967295 bytes");
  expect(npy("<i4", "(2,)", "abcdefgh").substr(0, 60), "ends within");
  std::string structured = npy("<i4", "(2,)", "abcdefgh");
  structured.replace(structured.find("'<i4'"), 5, "[('a'");
  expect(structured, "no type");
}

TEST(TokenStream, RefusesIdsOfAVocabularyThatNeedsMoreBits) {
  const test::TemporaryFolder folder;
  const auto ids = folder.write("a.bin", bytes_of(std::vector<std::uint16_t>{1, 2, 65535}));
  EXPECT_NO_THROW(TokenStream({ids}).check_vocabulary(65536));
  EXPECT_REFUSED(TokenStream({ids}).check_vocabulary(65537), "a.bin", "16-bit ids", "65537", "astype('<u4')");
  EXPECT_NO_THROW(TokenStream({folder.write("a.txt", "bytes")}).check_vocabulary(128256));
}

TEST(EvaluationWindows, PredictEachTokenButTheFirstOnce) {
  for (std::uint64_t tokens = 2; tokens < 40; ++tokens) {
    for (std::size_t sequence = 1; sequence < 12; ++sequence) {
      std::vector<int> predicted(tokens);
      const std::uint64_t windows = window_count(tokens, sequence);
      for (std::uint64_t w = 0; w < windows; ++w) {
        const Window each = window(tokens, sequence, w);
        EXPECT_EQ(each.first, w * sequence);
        EXPECT_GE(each.length, 1U);
        EXPECT_TRUE(each.length == sequence || w + 1 == windows);
        for (std::size_t i = 0; i < each.length; ++i) ++predicted[each.first + i + 1];
      }
      EXPECT_EQ(predicted[0], 0);
      for (std::uint64_t t = 1; t < tokens; ++t) EXPECT_EQ(predicted[t], 1);
    }
  }
}

TEST(EpochOffsets, ReadEachWindowOncePerEpochInAnOrderOfItsOwn) {
  constexpr std::size_t kSequence = 7;
  for (const std::uint64_t windows : {1U, 2U, 3U, 4U, 5U, 16U, 17U, 1000U}) {
    const std::uint64_t tokens = windows * kSequence + 1 + windows % kSequence;  // a rest that is shorter than a window
    std::set<std::vector<std::uint64_t>> orders;
    for (const std::uint64_t seed : {0U, 5U}) {
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<std::uint64_t> order;
        for (std::uint64_t i = 0; i < windows; ++i) order.push_back(epoch_offset(tokens, kSequence, seed, epoch * windows + i));
        orders.insert(order);
        std::ranges::sort(order);
        for (std::uint64_t i = 0; i < windows; ++i) EXPECT_EQ(order[i], i * kSequence);
      }
    }
    if (windows >= 16) {
      EXPECT_EQ(orders.size(), 6U) << windows;
    }
  }
}

TEST(EpochOffsets, LeaveNoPlaceMoreOftenThanOthersAtTheFirst) {
  // Of many epochs the first window is each of 10 equally often: 400 expected, a standard deviation of 19.
  constexpr std::uint64_t kWindows = 10;
  std::vector<int> count(kWindows);
  for (std::uint64_t epoch = 0; epoch < 4000; ++epoch) ++count[epoch_offset(kWindows + 1, 1, 3, epoch * kWindows)];
  for (const int each : count) EXPECT_NEAR(each, 400, 95);
}

TEST(TrainingOffsets, AreEvenlySpreadAndDifferBySeedStepAndSequence) {
  constexpr std::uint64_t kTokens = 110;
  constexpr std::size_t kSequence = 10;  // 100 places
  std::vector<int> hits(kTokens - kSequence);
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    const std::uint64_t offset =
        training_offset(kTokens, kSequence, 5, static_cast<std::uint64_t>(i / 10), static_cast<std::uint64_t>(i % 10));
    ASSERT_LE(offset + kSequence + 1, kTokens);
    ++hits[offset];
  }
  double chi_squared = 0;
  for (const int hit : hits) chi_squared += std::pow(hit - 1000.0, 2) / 1000.0;
  EXPECT_LT(chi_squared, 160);  // 99 degrees of freedom: p < 1e-4
  EXPECT_GT(chi_squared, 50);

  constexpr std::uint64_t kMany = std::uint64_t{1} << 60;
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (std::uint64_t step = 0; step < 4; ++step) {
      for (std::uint64_t index = 0; index < 4; ++index) seen.insert(training_offset(kMany, kSequence, seed, step, index));
    }
  }
  EXPECT_EQ(seen.size(), 64U);
  EXPECT_EQ(training_offset(kSequence + 1, kSequence, 1, 2, 3), 0U);
}

TEST(TrainingData, MustHoldOneSequenceAndItsLabels) {
  EXPECT_NO_THROW(check_training_data(11, 10));
  EXPECT_REFUSED(check_training_data(10, 10), "10 tokens", "--seq 10", "at least 11", "try --seq 9");
}

}  // namespace
}  // namespace tsprun::detail::data_test
