// Which links a report calls slow, from what ranks noted of their messages.
#include "launcher/link_report.h"

#include "core/streams/link_times.h"
#include "transport/shm/node_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::launcher::link_report_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::size_t kMiB = 1 << 20;

class LinkReport : public ::testing::Test {
 protected:
  /// `messages` of a MiB, each `pending_ns` on its way.
  void carry(int from, int to, int messages, std::uint64_t pending_ns) {
    LinkTimes& times = times_.at(static_cast<std::size_t>(to));
    for (int i = 0; i < messages; ++i) times.arrived(from, kMiB, pending_ns);
  }

  static constexpr int kRanks = 20;
  shm::NodeMemory memory_ = shm::NodeMemory::create_memfd({.local_ranks = kRanks, .heap_bytes = 1 << 20, .world_size = kRanks});
  FlightBoard board_{memory_};
  std::vector<LinkTimes> times_ = [this] {
    std::vector<LinkTimes> all;
    for (int rank = 0; rank < kRanks; ++rank) all.emplace_back(board_.page(rank), kRanks);
    return all;
  }();
};

TEST_F(LinkReport, NamesTheSlowOneAlone) {
  for (const auto& [from, to] : {std::pair(1, 2), std::pair(2, 0), std::pair(0, 2), std::pair(1, 0)})
    carry(from, to, 20, 1'000'000);
  carry(0, 1, 20, 50'000'000);
  const std::vector<std::string> lines = link_warnings(board_, 2 * kSecond, {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0],
            "messages from rank 0 to rank 1 come slowly: the link between them is slow; of 20 messages with 21.0 MB in all "
            "hardly any came faster than 21 MB/s, where the links' median is 1.0 GB/s; together they were on their way for 1.0 s "
            "of a job of 2.0 s");
}

TEST_F(LinkReport, ARankThatIsLateEverywhereIsNotBlamedOnItsLinks) {
  for (const auto& [from, to] : {std::pair(1, 2), std::pair(2, 0), std::pair(2, 1), std::pair(1, 0)})
    carry(from, to, 20, 1'000'000);
  carry(0, 1, 20, 50'000'000);
  carry(0, 2, 20, 40'000'000);
  const std::vector<std::string> lines = link_warnings(board_, 2 * kSecond, {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("rank 0 is late, or what joins it to others is slow"), std::string::npos) << lines[0];
}

TEST_F(LinkReport, WhoPassesOnWhatCameLateIsNotBlamed) {
  for (const auto& [from, to] : {std::pair(2, 0), std::pair(3, 0), std::pair(3, 2), std::pair(2, 3)})
    carry(from, to, 20, 1'000'000);
  carry(1, 2, 20, 50'000'000);
  carry(0, 1, 20, 60'000'000);
  const std::vector<std::string> lines = link_warnings(board_, 2 * kSecond, {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("messages from rank 0 to rank 1"), std::string::npos) << lines[0];
}

// The sender of many late messages may itself have been late; a slow link lets none through fast.
TEST_F(LinkReport, FourFastMessagesClearALink) {
  for (const int from : {1, 2, 3}) carry(from, 0, 20, 1'000'000);
  carry(0, 1, 19, 60'000'000);
  carry(0, 1, 4, 1'000'000);
  EXPECT_TRUE(link_warnings(board_, 2 * kSecond, {}).empty());
}

// A receiver that comes late finds even a slow link's message nearly there: now and then, first of all or later.
TEST_F(LinkReport, AFewFastMessagesDoNotHideASlowLink) {
  for (const int from : {1, 2, 3}) carry(from, 0, 20, 1'000'000);
  carry(0, 1, 1, 1'000);
  carry(0, 1, 19, 60'000'000);
  carry(0, 1, 2, 1'000);
  carry(0, 1, 500, 60'000'000);
  carry(0, 1, 6, 1'000);
  const std::vector<std::string> lines = link_warnings(board_, 40 * kSecond, {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("faster than 17 MB/s"), std::string::npos) << lines[0];
}

TEST_F(LinkReport, ASpeedThatOneInFiftyReachIsTheLinks) {
  carry(0, 1, 1, 2'000'000);
  for (int i = 0; i < 2000; ++i) carry(0, 1, 1, i % 50 == 0 ? 1'000'000 : 2'000'000);
  EXPECT_EQ(board_.link_records(1).at(0).fastest, kMiB * 1000);
}

TEST_F(LinkReport, AFewMessagesProveNothing) {
  for (const int from : {1, 2, 3}) carry(from, 0, 20, 1'000'000);
  carry(0, 1, 15, 500'000'000);
  EXPECT_TRUE(link_warnings(board_, 2 * kSecond, {}).empty());
}

TEST_F(LinkReport, FewBytesProveNothing) {
  for (const int from : {1, 2, 3}) carry(from, 0, 20, 1'000'000);
  for (int i = 0; i < 20; ++i) times_[1].arrived(0, 4096, 60'000'000);
  EXPECT_TRUE(link_warnings(board_, 2 * kSecond, {}).empty());
}

TEST_F(LinkReport, ATenthOfASecondProvesNothing) {
  for (const int from : {1, 2, 3}) carry(from, 0, 20, 100'000);
  carry(0, 1, 20, 5'000'000);
  EXPECT_TRUE(link_warnings(board_, kSecond / 5, {}).empty());
}

// Ranks that stand in line for a core are late on every link, however healthy.
TEST_F(LinkReport, WhatALackOfCoresExplainsIsNoMatter) {
  for (const auto& [from, to] : {std::pair(1, 2), std::pair(2, 0), std::pair(0, 2), std::pair(1, 0)})
    carry(from, to, 20, 1'000'000);
  carry(0, 1, 20, 50'000'000);
  ASSERT_EQ(link_warnings(board_, 2 * kSecond, {}).size(), 1U);
  const auto with = [&](std::vector<std::uint64_t> without_core) {
    without_core.resize(kRanks);
    return link_warnings(board_, 2 * kSecond, without_core).size();
  };
  EXPECT_EQ(with({600'000'000}), 0U) << "the sender";
  EXPECT_EQ(with({0, 600'000'000}), 0U) << "the receiver";
  EXPECT_EQ(with({0, 0, 600'000'000}), 0U) << "a third, for whom the sender may have waited";
  EXPECT_EQ(with({200'000'000, 200'000'000, 200'000'000}), 0U) << "each a little";
  EXPECT_EQ(with({100'000'000, 100'000'000, 100'000'000}), 1U) << "too little to explain it";
}

// Found at the first look after one that missed them, however soon: the looks' luck, not a speed.
TEST_F(LinkReport, SpeedsThatNoLinkHasAreNotTold) {
  for (const int from : {1, 2, 3}) {
    for (int i = 0; i < 20; ++i) times_[0].arrived(from, std::size_t{64} << 20, 1);
  }
  carry(0, 1, 20, 50'000'000);
  for (const auto& link : links_json(board_)) EXPECT_LE(link.at("fastest_gbps"), 100.0) << link;
  const std::vector<std::string> lines = link_warnings(board_, 2 * kSecond, {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("the links' median is 100 GB/s"), std::string::npos) << lines[0];
}

TEST_F(LinkReport, WhatNobodyWaitedForIsNoMatter) {
  for (const int from : {1, 2, 3}) carry(from, 0, 20, 1'000'000);
  carry(0, 1, 20, 50'000'000);
  EXPECT_TRUE(link_warnings(board_, 100 * kSecond, {}).empty());
}

TEST_F(LinkReport, ListsEveryPair) {
  carry(2, 0, 3, 1'000'000);
  carry(1, 0, 1, 2'000'000);
  const nlohmann::ordered_json links = links_json(board_);
  ASSERT_EQ(links.size(), 2U);
  const auto expect = [](const nlohmann::ordered_json& link, int from, int messages, double pending, double fastest) {
    EXPECT_EQ(link.at("from"), from);
    EXPECT_EQ(link.at("to"), 0);
    EXPECT_EQ(link.at("messages"), messages);
    EXPECT_EQ(link.at("bytes"), static_cast<std::size_t>(messages) * kMiB);
    EXPECT_DOUBLE_EQ(link.at("pending_seconds"), pending);
    EXPECT_DOUBLE_EQ(link.at("fastest_gbps"), fastest);
  };
  expect(links[0], 1, 1, 0.002, 0.524288);
  expect(links[1], 2, 3, 0.003, 1.048576);
}

TEST_F(LinkReport, OfMoreLinksThanThereAreLinesTheSlowestStay) {
  static_assert(kRanks - 1 > kLinkLines);
  for (int from = 1; from < kRanks; ++from) carry(from, 0, 1, static_cast<std::uint64_t>(from) * 1'000'000);
  const std::vector<LinkRecord> records = board_.link_records(0);
  ASSERT_EQ(records.size(), kLinkLines);
  EXPECT_EQ(records.front().from, kRanks - static_cast<int>(kLinkLines));
  EXPECT_EQ(records.back().from, kRanks - 1);
}

}  // namespace
}  // namespace tsprun::detail::launcher::link_report_test
