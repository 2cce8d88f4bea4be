// Frames of many values: numbers and entries come out as they went in, and what isn't made of them is found out.
#include "transport/bootstrap/gathering.h"
#include "tests/transport/owned_bytes.h"

#include "transport/bootstrap/store_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string_view>

namespace tsprun::detail::bootstrap::gathering_test {
namespace {

using test::owned_bytes;

TEST(Gathering, NumbersAreBits) {
  EXPECT_TRUE(pack_numbers({}).empty());
  const std::vector<std::byte> bits = pack_numbers(std::vector<int>{9, 0, 7});
  EXPECT_EQ(bits, (std::vector<std::byte>{std::byte{0x81}, std::byte{0x02}}));
  EXPECT_EQ(unpack_numbers(bits), (std::vector<int>{0, 7, 9}));
}

std::vector<std::byte> request(const std::vector<int>& numbers, const GatherCut& cut = {}) {
  return gather_request(cut, 7, numbers);
}

TEST(Gathering, ACutLeavesOnePartAndTheRest) {
  const std::vector<std::byte> value = owned_bytes("aabbccREST");
  EXPECT_EQ(GatherCut().of(value), value);
  EXPECT_EQ((GatherCut{2, 2, 6}).of(value), owned_bytes("bbREST"));
  EXPECT_EQ((GatherCut{4, 2, 6}).of(value), owned_bytes("ccREST"));
  EXPECT_EQ((GatherCut{4, 2, 20}).of(value), owned_bytes("cc"));
  EXPECT_EQ((GatherCut{9, 8, 17}).of(value), owned_bytes("T"));
  EXPECT_EQ((GatherCut{11, 2, 13}).of(value), owned_bytes(""));
}

TEST(Gathering, RequestsThatCannotBeAreRefused) {
  std::map<std::string, std::vector<std::byte>, std::less<>> values;
  Gatherings gatherings(values);
  const auto why = [&](const std::string& prefix, const std::vector<std::byte>& bytes) {
    return gatherings.ask(1, prefix, bytes);
  };
  EXPECT_EQ(why("k/", request({0})), "");
  EXPECT_NE(why("k/1", request({0})), "");
  EXPECT_NE(why("", request({0})), "");
  EXPECT_NE(why("k/", std::vector<std::byte>(sizeof(GatherCut) + 3)), "");
  EXPECT_NE(why("k/", request({0}, {4, 2, 5})), "");
  EXPECT_NE(why("k/", request({0}, {6, 0, 5})), "");
  EXPECT_NE(why("k/", request({0}, {1, ~std::uint32_t{0}, 2})), "");
}

TEST(Gathering, PrefixesAreLimitedAndThoseInUseGoOn) {
  std::map<std::string, std::vector<std::byte>, std::less<>> values;
  Gatherings gatherings(values);
  const auto ask = [&](int prefix, const std::vector<int>& numbers) {
    return gatherings.ask(1, "k" + std::to_string(prefix) + "/", request(numbers));
  };
  for (int prefix = 0; prefix < 200; ++prefix) EXPECT_EQ(ask(prefix, {}), "");  // who wants nothing takes no memory
  for (int prefix = 0; prefix < 64; ++prefix) EXPECT_EQ(ask(prefix, {0}), "");
  EXPECT_EQ(ask(64, {0}), "it asked for numbered keys behind 'k64/', one prefix more than the 64 that the store gathers by");
  EXPECT_EQ(ask(63, {0}), "");
}

TEST(Gathering, KeysWithLeadingZerosAreOthers) {
  std::map<std::string, std::vector<std::byte>, std::less<>> values;
  values["k/007"] = owned_bytes("other");
  Gatherings gatherings(values);
  gatherings.ask(1, "k/", request({7}));
  EXPECT_EQ(gatherings.set("k/07", values["k/07"] = owned_bytes("other")), std::vector<int>());
  EXPECT_EQ(gatherings.set("k/7", values["k/7"] = owned_bytes("it")), std::vector<int>{1});
  gatherings.ask(1, "k/", request({0}));
  EXPECT_EQ(gatherings.set("k/0", values["k/0"] = {}), std::vector<int>{1});
}

TEST(Gathering, CutEntriesAreFoundOut) {
  std::map<std::string, std::vector<std::byte>, std::less<>> values;
  values["k/5"] = {std::byte{1}, std::byte{2}, std::byte{3}};
  values["k/2"] = {std::byte{4}};
  Gatherings gatherings(values);
  gatherings.ask(1, "k/", request({2, 5}));
  EXPECT_FALSE(gatherings.next(2));
  const auto whole = gatherings.next(1);
  ASSERT_TRUE(whole);
  EXPECT_FALSE(gatherings.next(1));
  EXPECT_EQ(whole->prefix, "k/");
  std::vector<std::byte> frame = whole->value;
  std::map<int, std::vector<std::byte>> found;
  const auto note = [&](int number, std::span<const std::byte> value) { found[number].assign(value.begin(), value.end()); };
  ASSERT_TRUE(each_entry(frame, 8, note));
  EXPECT_TRUE(found.empty());  // it answers another gather
  ASSERT_TRUE(each_entry(frame, 7, note));
  EXPECT_EQ(found, (std::map<int, std::vector<std::byte>>{{2, values["k/2"]}, {5, values["k/5"]}}));
  const std::size_t id = 4;
  const std::size_t first = id + sizeof(GatheredEntry) + 1;
  for (std::size_t bytes = 0; bytes < frame.size(); ++bytes)
    EXPECT_EQ(each_entry(std::span(frame).first(bytes), 7, note), bytes == id || bytes == first) << bytes;
  const std::uint32_t wild = kMostNumbers;
  std::memcpy(frame.data() + id, &wild, sizeof wild);
  EXPECT_FALSE(each_entry(frame, 7, note));
}

TEST(Gathering, WhoHasGoneIsSentNothing) {
  std::map<std::string, std::vector<std::byte>, std::less<>> values;
  Gatherings gatherings(values);
  for (const int client : {1, 2, 3}) gatherings.ask(client, "k/", request({0, 1}));
  gatherings.forget(2);
  gatherings.forget(7);
  EXPECT_EQ(gatherings.set("k/1", values["k/1"] = {}), std::vector<int>());
  EXPECT_EQ(gatherings.set("k/0", values["k/0"] = {}), (std::vector<int>{1, 3}));
  gatherings.forget(1);  // it isn't waited for any more, but was to be sent
  EXPECT_FALSE(gatherings.next(1));
  EXPECT_TRUE(gatherings.next(3));
}

/// Returns the numbers in a client's next frame, in order; none: there is no frame.
std::vector<int> next_numbers(Gatherings& gatherings, int client) {
  std::vector<int> numbers;
  if (const auto frame = gatherings.next(client)) {
    EXPECT_TRUE(each_entry(frame->value, 7, [&](int number, std::span<const std::byte>) { numbers.push_back(number); }));
  }
  return numbers;
}

TEST(Gathering, WhatIsThereComesAtOnceAndTheRestTogether) {
  std::map<std::string, std::vector<std::byte>, std::less<>> values;
  const std::vector<std::byte> half(kMostValueBytes / 2);
  for (const char* key : {"k/1", "k/4", "k/5"}) values[key] = half;
  Gatherings gatherings(values);
  gatherings.ask(1, "k/", request({0, 1, 3, 4, 5}));
  EXPECT_EQ(next_numbers(gatherings, 1), std::vector<int>{1});  // two and their headers are more than a frame holds
  EXPECT_EQ(gatherings.set("k/3", values["k/3"] = half), std::vector<int>());
  EXPECT_EQ(gatherings.set("k/0", values["k/0"] = {}), std::vector<int>{1});
  for (const auto& each : {std::vector<int>{4}, {5, 0}, {3}, {}}) EXPECT_EQ(next_numbers(gatherings, 1), each);
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::gathering_test
