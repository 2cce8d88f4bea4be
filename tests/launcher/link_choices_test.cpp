// The table "why this transport": what options settle, what ranks tell, and what nonsense doesn't change.
#include "launcher/link_choices.h"
#include "transport/factory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::link_choices_test {
namespace {

/// Five ranks on two nodes: 0 to 2, 3 and 4.
GlobalOptions five_on_two(const std::string& inter) {
  GlobalOptions options;
  options.ranks = 5;
  options.nodes = 2;
  options.inter = demand_for(inter);
  return options;
}

TEST(LinkChoices, OnOneNodeThereIsNothingToTell) {
  GlobalOptions options;
  options.ranks = 4;
  const LinkChoices choices(options);
  EXPECT_TRUE(choices.trivial());
  EXPECT_TRUE(choices.complete());
  EXPECT_EQ(choices.between(0, 3).kind, "shm");
  EXPECT_EQ(choices.json(), nlohmann::ordered_json::parse(
                                R"([{"from":0,"to":1,"kind":"shm","why":"same node","from_ranks":"0-3","to_ranks":"0-3"}])"));
}

// Each pair of different ranks stands in exactly one element, whose kind is that pair's.
TEST(LinkChoices, TheReportsRangesSayWhatEveryPairUses) {
  GlobalOptions options;
  options.ranks = 64;
  options.nodes = 16;
  options.inter = demand_for("tcp");
  const LinkChoices choices(options);
  const auto numbers = [](const std::string& text) {
    std::vector<int> all;
    std::stringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
      const std::size_t dash = part.find('-');
      const int last = std::stoi(dash == std::string::npos ? part : part.substr(dash + 1));
      for (int number = std::stoi(part); number <= last; ++number) all.push_back(number);
    }
    return all;
  };
  std::map<std::pair<int, int>, std::string> kinds;
  const nlohmann::ordered_json table = choices.json();
  for (const auto& element : table) {
    EXPECT_EQ(choices.between(element.at("from").get<int>(), element.at("to").get<int>()).kind,
              element.at("kind").get<std::string>())
        << element;
    for (const int from : numbers(element.at("from_ranks").get<std::string>())) {
      for (const int to : numbers(element.at("to_ranks").get<std::string>())) {
        if (from == to) continue;
        EXPECT_TRUE(kinds.emplace(std::pair(from, to), element.at("kind").get<std::string>()).second)
            << from << " to " << to << " twice";
      }
    }
  }
  EXPECT_EQ(kinds.size(), 64U * 63U);
  for (const auto& [pair, kind] : kinds) EXPECT_EQ(kind, pair.first / 4 == pair.second / 4 ? "shm" : "tcp");
  EXPECT_EQ(table.size(), 32U) << "two for each node, however many pairs";
}

TEST(LinkChoices, WhatOptionsSettleIsKnownBeforehand) {
  const LinkChoices by_tcp(five_on_two("tcp"));
  EXPECT_FALSE(by_tcp.trivial());
  EXPECT_EQ(by_tcp.between(0, 2).kind, "shm");
  EXPECT_EQ(by_tcp.between(2, 3).kind, "tcp");
  EXPECT_EQ(by_tcp.between(2, 3).why, "nodes 0 and 1; --inter tcp");
  EXPECT_EQ(LinkChoices(five_on_two("verbs")).between(4, 0).kind, "verbs");
}

TEST(LinkChoices, WhatRanksTellStandsInTheTable) {
  LinkChoices choices(five_on_two("auto"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(choices.complete());
    choices.heard(fmt::format("live/way/{}", rank),
                  rank == 0 ? "verbs\tRDMA: a to b\t3\ntcp\tno RDMA: rails\t4\n" : "verbs\tRDMA: a to b\t3,4\n");
  }
  for (int rank = 3; rank < 5; ++rank) {
    EXPECT_FALSE(choices.complete());
    choices.heard(fmt::format("live/way/{}", rank), "verbs\tRDMA: a to b\t0,1,2\n");
  }
  EXPECT_TRUE(choices.complete());
  EXPECT_EQ(choices.between(0, 3).kind, "verbs");
  EXPECT_EQ(choices.between(0, 3).why, "nodes 0 and 1; RDMA: a to b");
  EXPECT_EQ(choices.between(0, 4).kind, "tcp");
  EXPECT_EQ(choices.between(0, 1).kind, "shm");
  const std::vector<std::string> lines = choices.lines();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "shm for 4 pairs of ranks: same node");
  EXPECT_EQ(lines[1], "tcp for ranks 0 and 4: nodes 0 and 1; no RDMA: rails");
  EXPECT_EQ(lines[2], "verbs for 5 pairs of ranks: nodes 0 and 1; RDMA: a to b");
  EXPECT_EQ(choices.json()[1],
            nlohmann::ordered_json(
                {{"from", 0}, {"to", 3}, {"kind", "verbs"}, {"why", "RDMA: a to b"}, {"from_ranks", "0"}, {"to_ranks", "3"}}));
}

TEST(LinkChoices, NonsenseAndStrangersChangeNothing) {
  LinkChoices choices(five_on_two("tcp"));
  for (const char* key : {"live/way/", "live/way/5", "live/way/-1", "live/way/1x", "live/page/1", "way/1"})
    choices.heard(key, "verbs\tx\t0,3\n");
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_FALSE(choices.complete());
    choices.heard(fmt::format("live/way/{}", rank), "pigeon\twhy\t0,1,2,3,4\nverbs\nverbs\tx\t9,-1,,3x\n\n\t\t\n");
    choices.heard(fmt::format("live/way/{}", rank), "verbs\tonly the first word counts\t0,1,2,3,4\n");
  }
  EXPECT_TRUE(choices.complete());
  for (int to = 1; to < 5; ++to) EXPECT_EQ(choices.between(0, to).kind, to < 3 ? "shm" : "tcp");
}

TEST(LinkChoices, OfRanksThatDontSayNothingIsMadeUp) {
  LinkChoices choices(five_on_two("auto"));
  choices.heard("live/way/3", "verbs\tRDMA: a to b\t0\n");
  EXPECT_EQ(choices.between(3, 0).kind, "verbs");
  const LinkChoice unknown = choices.between(3, 1);  // tcp only if this machine can't do anything else
  EXPECT_TRUE(unknown.kind.empty() || (unknown.kind == "tcp" && unknown.why.find("no RDMA device") != std::string::npos));
}

}  // namespace
}  // namespace tsprun::detail::launcher::link_choices_test
