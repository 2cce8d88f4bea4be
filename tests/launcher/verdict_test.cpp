// The last words on a job, for people and for machines.
#include "launcher/verdict.h"

#include "launcher/report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>

namespace tsprun::detail::launcher::verdict_test {
namespace {

/// Four ranks; 0, 1 and 2 waited for rank 3 in all_gather #42, rank 3 waited for rank 0.
std::vector<RankRecord> four_ranks() {
  std::vector<RankRecord> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    Activity activity;
    activity.op = Op::all_gather;
    activity.sequence = 42;
    activity.dtype = DType::f32;
    activity.bytes = 1024;
    activity.stream = Stream::kv;
    activity.waiting_for = rank == 3 ? 0 : 3;
    ranks[static_cast<std::size_t>(rank)].activity = activity;
  }
  return ranks;
}

Failure killed() {
  Failure failure;
  failure.cause = Cause::killed;
  failure.rank = 3;
  failure.code = SIGKILL;
  failure.op = "all_gather";
  failure.sequence = 42;
  failure.detail = "rank 3 was killed by signal 9 (SIGKILL)";
  return failure;
}

TEST(Verdict, SaysWhoHowWhereAndWhatTheOthersWaitedFor) {
  const std::string text = print_verdict(killed(), four_ranks());
  EXPECT_EQ(text,
            "tsprun: rank 3 was killed by signal 9 (SIGKILL) in all_gather #42\n"
            "tsprun:   rank 0 waited for rank 3 in all_gather #42 (f32, 1024 B, stream kv)\n"
            "tsprun:   rank 1 waited for rank 3 in all_gather #42 (f32, 1024 B, stream kv)\n"
            "tsprun:   rank 2 waited for rank 3 in all_gather #42 (f32, 1024 B, stream kv)\n");
}

// Rank 0 waited for rank 3, which was killed between operations; 1 computed, 2 was through.
TEST(Verdict, SaysWhatRanksDidThatWaitedForNobody) {
  std::vector<RankRecord> ranks = four_ranks();
  for (RankRecord& rank : ranks) rank.life = Life::alive;
  for (std::size_t i = 1; i < 4; ++i) ranks[i].activity.reset();
  ranks[2].life = Life::finished;
  Failure failure = killed();
  failure.op.clear();
  EXPECT_EQ(print_verdict(failure, ranks),
            "tsprun: rank 3 was killed by signal 9 (SIGKILL), outside an operation\n"
            "tsprun:   rank 0 waited for rank 3 in all_gather #42 (f32, 1024 B, stream kv)\n"
            "tsprun:   rank 1: computing (outside an operation)\n"
            "tsprun:   rank 2 had finished\n");
  EXPECT_EQ(waiting_ranks(failure, ranks).size(), 1U);
  ranks[2].life = Life::unborn;
  EXPECT_NE(print_verdict(failure, ranks).find("rank 2 hadn't joined the job yet\n"), std::string::npos);
}

// Programs that know nothing of us never join: there is nothing to say about what they did.
TEST(Verdict, SaysNothingOfProgramsThatNeverJoin) {
  Failure failure = killed();
  failure.op.clear();
  EXPECT_EQ(print_verdict(failure, std::vector<RankRecord>(4)), "tsprun: rank 3 was killed by signal 9 (SIGKILL)\n");
}

TEST(Verdict, AStoppedRankIsCalledStopped) {
  std::vector<RankRecord> ranks(2);
  ranks[1].stopped = true;
  ranks[1].pid = 77;
  Failure failure;
  failure.cause = Cause::stalled;
  failure.rank = 1;
  failure.detail = "no sign of life for 30 s";
  const std::string text = print_verdict(failure, ranks);
  EXPECT_NE(text.find("why: no sign of life for 30 s"), std::string::npos);
  EXPECT_NE(text.find("rank 1 is stopped (process 77"), std::string::npos);
}

TEST(Verdict, AStallIsFollowedToTheRootOfTheWaits) {
  std::vector<RankRecord> ranks = four_ranks();
  ranks[0].activity->waiting_for = 1;
  ranks[1].activity->waiting_for = 3;
  ranks[2].activity->waiting_for = 1;
  ranks[3].activity.reset();
  ranks[3].stopped = true;
  Failure failure;
  failure.cause = Cause::stalled;
  failure.rank = 3;
  EXPECT_NE(print_verdict(failure, ranks).find("tsprun: ranks 0, 2 wait for 1; rank 1 waits for 3; rank 3 is stopped\n"),
            std::string::npos)
      << print_verdict(failure, ranks);
  ranks[3].stopped = false;
  EXPECT_NE(print_verdict(failure, ranks).find("rank 1 waits for 3; rank 3 gave no sign of life\n"), std::string::npos);
}

// Rank 3 was stopped while it waited for rank 0.
TEST(Verdict, AStoppedRankWaitsForNobody) {
  std::vector<RankRecord> ranks = four_ranks();
  ranks[3].stopped = true;
  Failure failure;
  failure.cause = Cause::stalled;
  failure.rank = 3;
  const std::string text = print_verdict(failure, ranks);
  EXPECT_NE(text.find("tsprun: ranks 0, 1, 2 wait for 3; rank 3 is stopped\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("rank 3 waited"), std::string::npos) << text;
  EXPECT_EQ(waiting_ranks(failure, ranks).size(), 3U);
}

TEST(Verdict, ACircleOfWaitsIsSpelledOut) {
  std::vector<RankRecord> ranks = four_ranks();
  for (int i = 0; i < 4; ++i) {
    ranks[static_cast<std::size_t>(i)].activity = ranks[0].activity;
    ranks[static_cast<std::size_t>(i)].activity->waiting_for = (i + 1) % 4;
  }
  Failure failure;
  failure.cause = Cause::deadlock;
  failure.rank = 0;
  EXPECT_NE(print_verdict(failure, ranks).find("rank 3 waits for 0; rank 0 waits for 1; rank 1 waits for 2; rank 2 waits for 3"),
            std::string::npos)
      << print_verdict(failure, ranks);
}

TEST(Verdict, EveryCauseHasItsOwnFirstLine) {
  std::vector<std::string> lines;
  for (std::uint8_t cause = 1; is_cause(cause); ++cause) {
    Failure failure;
    failure.cause = static_cast<Cause>(cause);
    failure.rank = 1;
    failure.code = SIGTERM;
    const std::string line = print_verdict(failure, {});
    EXPECT_EQ(std::count(lines.begin(), lines.end(), line), 0) << line;
    EXPECT_EQ(line.find("the job failed"), std::string::npos) << name(failure.cause);
    lines.push_back(line);
  }
}

TEST(Verdict, ManyRanksAreCutShort) {
  std::vector<RankRecord> ranks;
  for (int i = 0; i < 64; ++i) ranks.push_back(four_ranks()[0]);
  const std::string text = print_verdict(killed(), ranks);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 40);
  EXPECT_NE(text.find("--json"), std::string::npos);
}

TEST(FailureJson, HasTheKeysThatScriptsRelyOn) {
  const auto json = failure_json(killed(), waiting_ranks(killed(), four_ranks()));
  EXPECT_EQ(json["rank"], 3);
  EXPECT_EQ(json["node"], 0);
  EXPECT_EQ(json["kind"], "killed");
  EXPECT_EQ(json["signal"], 9);
  EXPECT_EQ(json["op"], "all_gather");
  EXPECT_EQ(json["seq"], 42);
  ASSERT_EQ(json["waiting"].size(), 3U);
  EXPECT_EQ(json["waiting"][0].dump(), R"({"rank":0,"op":"all_gather","seq":42,"for":3})");
}

TEST(FailureJson, WhatSaysNothingIsNull) {
  Failure failure;
  failure.cause = Cause::refused;
  const auto json = failure_json(failure, {});
  for (const char* key : {"rank", "signal", "op", "seq"}) EXPECT_TRUE(json[key].is_null()) << key;
}

}  // namespace
}  // namespace tsprun::detail::launcher::verdict_test
