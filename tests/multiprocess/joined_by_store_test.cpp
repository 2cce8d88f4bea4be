// Ranks that no tsprun started and that only have numbers and a key-value store in common, on one node and on several. TSP_NODE
// lets this machine stand for all of them.

#include "tests/support/at_once.h"
#include "tests/support/process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tsprun::detail::test::joined_by_store_test {
namespace {

using Ranks = std::vector<std::unique_ptr<Process>>;

class JoinedByStore : public testing::Test {
 protected:
  /// Starts an actor for each rank; `nodes[i]` names the node of rank i, "-": nobody starts it.
  Ranks start(const std::vector<std::string>& nodes, const std::vector<std::string>& action, const std::string& timeout = "20") {
    const std::string store = folder_.path(std::to_string(++jobs_));
    std::filesystem::create_directories(store);
    Ranks ranks;
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
      if (nodes[rank] == "-") continue;
      ProcessOptions options;
      options.environment = {{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", std::to_string(nodes.size())},
                             {"ACTOR_STORE", store},
                             {"TSP_NODE", nodes[rank]},
                             {"TSP_TIMEOUT", timeout}};
      std::vector<std::string> command = {program_path("actor")};
      command.insert(command.end(), action.begin(), action.end());
      ranks.push_back(std::make_unique<Process>(command, options));
    }
    return ranks;
  }

  /// Runs the action to its end, which must be good, and returns what each rank wrote.
  std::vector<std::string> outputs(const std::vector<std::string>& nodes, const std::vector<std::string>& action) {
    Ranks ranks = start(nodes, action);
    std::vector<std::string> all;
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->wait().code, 0) << rank->err();
      all.push_back(rank->out());
    }
    return all;
  }

  /// Waits for the ends of all ranks but `except`, which must be bad and speak of `words`.
  void expect_told(const Ranks& ranks, const std::string& words, std::size_t except = 99) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank == except) continue;
      const End end = ranks[rank]->wait();
      EXPECT_TRUE(end.ended) << "rank " << rank;
      EXPECT_NE(end.code, 0);
      EXPECT_NE(ranks[rank]->err().find(words), std::string::npos) << "rank " << rank << ": " << ranks[rank]->err();
    }
  }

 private:
  TemporaryDirectory folder_;
  std::atomic<int> jobs_ = 0;
};

/// Each rank's results have the bits of those on one node.
TEST_F(JoinedByStore, ResultsAreThoseOfOneNode) {
  const auto before = shared_names();
  const std::vector<std::string> one = outputs({"a", "a", "a", "a", "a"}, {"digest"});
  EXPECT_NE(one[0].find("digest "), std::string::npos);
  EXPECT_EQ(outputs({"a", "a", "a", "b", "b"}, {"digest"}), one);
  EXPECT_EQ(outputs({"a", "a", "b", "b", "c"}, {"digest"}), one);
  EXPECT_EQ(outputs({"a", "b", "c", "d", "e"}, {"digest"}), one);
  EXPECT_EQ(names_left(before), std::set<std::string>{});
}

/// The first ranks of the nodes pass 64 KiB around: over tcp, since they share no memory.
TEST_F(JoinedByStore, NodesAreLinkedByTcp) {
  const std::vector<std::string> said = outputs({"a", "a", "b", "b"}, {"rail", "0", "64"});
  for (const int rank : {0, 2}) {
    EXPECT_NE(said[static_cast<std::size_t>(rank)].find("tcp sent 65536"), std::string::npos) << said[0];
    EXPECT_NE(said[static_cast<std::size_t>(rank)].find("shm sent 0"), std::string::npos) << said[0];
  }
  EXPECT_NE(outputs({"a", "a"}, {"rail", "0", "64"})[0].find("shm sent"), std::string::npos);
}

/// Whichever rank dies, also one that carries the news of its node, the survivors of all nodes name it, soon; a process that it
/// forked doesn't keep its connections open.
TEST_F(JoinedByStore, ADeathIsNamedOnAllNodes) {
  for (std::size_t dead = 0; dead < 4; ++dead) {
    Ranks ranks = start({"a", "a", "b", "b"}, {"loop", "forked"});
    for (const auto& rank : ranks) ASSERT_TRUE(rank->wait_for_output("ready")) << rank->err();
    [[maybe_unused]] const PatientWatch watch;  // sanitizers have no such limit
    ranks[dead]->signal(SIGKILL);
    expect_told(ranks, fmt::format("rank {} is gone", dead), dead);
#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)
    EXPECT_LT(watch.seconds(), 4) << "rank " << dead;
#endif
  }
}

/// A stopped rank is named, also if it carries its node's news.
TEST_F(JoinedByStore, AStoppedRankIsNamedOnAllNodes) {
  at_once(std::vector<std::size_t>{0, 2, 3}, [this](std::size_t stopped) {
    Ranks ranks = start({"a", "a", "b", "b"}, {"loop"}, "5");
    for (const auto& rank : ranks) ASSERT_TRUE(rank->wait_for_output("ready")) << rank->err();
    [[maybe_unused]] const PatientWatch watch;
    ranks[stopped]->signal(SIGSTOP);
    // What follows in the text may speak of others that wait for it.
    expect_told(ranks, fmt::format("what():  rank {} ", stopped), stopped);
#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)
    EXPECT_LT(watch.seconds(), 9) << "rank " << stopped;
#endif
    ranks[stopped]->signal(SIGKILL);
  });
}

/// A forked child that destroys its copy of the context doesn't disturb its rank, by shared memory, TCP or news.
TEST_F(JoinedByStore, AForkedChildClosesWhatIsNotItsOwn) { outputs({"a", "a", "b"}, {"close_in_child"}); }

TEST_F(JoinedByStore, AMismatchIsToldToAllNodes) {
  Ranks ranks = start({"a", "a", "b", "b"}, {"mismatch"});
  expect_told(ranks, "all_gather");
  expect_told(ranks, "all_reduce");
}

/// Rank 0, whose process serves all nodes, is done long before a rank of the other node dies.
TEST_F(JoinedByStore, ADeathIsNamedAfterRankZeroHasLeft) {
  Ranks ranks = start({"a", "a", "b", "b"}, {"leave_early"});
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_NE(ranks[rank]->wait().code, 0);
    EXPECT_NE(ranks[rank]->err().find("rank 3 is gone"), std::string::npos) << ranks[rank]->err();
  }
  EXPECT_EQ(ranks[0]->wait().code, 0) << ranks[0]->err();
}

TEST_F(JoinedByStore, MissingRanksAreNamedToAll) {
  const Ranks two_missing = start({"a", "-", "b", "-"}, {"sum"}, "5");
  const Ranks first_missing = start({"-", "a", "b", "b"}, {"sum"}, "5");
  expect_told(two_missing, "ranks 1, 3 of 4 didn't come within 5 s");
  expect_told(first_missing, "rank 0 of 4 didn't come within 5 s");
}

TEST_F(JoinedByStore, RanksThatAreNotNumberedNodeByNodeAreRefused) {
  expect_told(start({"a", "b", "a", "b"}, {"sum"}), "number them node by node");
  expect_told(start({"a", "b", "b", "b"}, {"sum"}), "4 ranks are on 2 nodes");
}

}  // namespace
}  // namespace tsprun::detail::test::joined_by_store_test
