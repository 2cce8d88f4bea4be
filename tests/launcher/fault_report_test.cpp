// What the report says of --fault: when and where each struck, over several attempts, and what nobody noticed.
#include "launcher/fault_report.h"

#include "transport/shm/node_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsp::launcher::fault_report_test {
namespace {

using nlohmann::ordered_json;

class FaultReport : public ::testing::Test {
 protected:
  static std::vector<fault::Spec> parsed(const std::vector<std::string>& texts) {
    std::vector<fault::Spec> faults;
    for (const std::string& text : texts) faults.push_back(fault::parse(text));
    return faults;
  }
  static Failure failed(Cause cause, int rank) {
    Failure failure;
    failure.cause = cause;
    failure.rank = rank;
    return failure;
  }

  shm::NodeMemory memory_ = shm::NodeMemory::create_memfd({.local_ranks = 3, .heap_bytes = 1 << 20, .world_size = 3});
  FlightBoard board_{memory_};
};

TEST_F(FaultReport, SaysWhenAndWhere) {
  board_.note_fault(1, {.fault = 0, .when_ns = 3'500'000'000, .step = 2, .op = "all_gather", .sequence = 7, .peer = 0});
  const auto outcomes = fault_outcomes(parsed({"corrupt:from=0,to=1,nth=7"}), board_, failed(Cause::corrupt, 0));
  const ordered_json json = faults_json(outcomes, 1'000'000'000);
  EXPECT_EQ(json.dump(), R"([{"fault":"corrupt:from=0,to=1,nth=7","struck":true,"times":1,)"
                         R"("where":[{"rank":1,"peer":0,"op":"all_gather","seq":7,"step":2,"seconds":2.5}],"detected":true}])");
  EXPECT_TRUE(fault_warnings(outcomes).empty());
}

TEST_F(FaultReport, DamageThatTheJobDidNotEndOfIsUndetected) {
  board_.note_fault(2, {.fault = 0, .when_ns = 1, .op = "broadcast", .sequence = 1, .peer = 0});
  for (const Failure& failure : {Failure{}, failed(Cause::killed, 2)}) {
    const auto outcomes = fault_outcomes(parsed({"corrupt:from=0,to=2,prob=0.5"}), board_, failure);
    EXPECT_EQ(outcomes[0].detected, false);
    ASSERT_EQ(fault_warnings(outcomes).size(), 1U);
    EXPECT_NE(fault_warnings(outcomes)[0].find("injected, not detected: at rank 2 in broadcast #1"), std::string::npos);
  }
}

TEST_F(FaultReport, WhatAJobMaySurviveIsNeitherDetectedNorMissed) {
  for (std::size_t fault = 0; fault < 3; ++fault) board_.note_fault(1, {.fault = fault, .when_ns = 1, .op = {}});
  const auto outcomes = fault_outcomes(
      parsed({"stall:rank=1,step=1,seconds=0.1", "delay:from=0,to=1,ms=1", "slow:from=0,to=1,gbps=1"}), board_, {});
  for (const FaultOutcome& outcome : outcomes) EXPECT_FALSE(outcome.detected);
  EXPECT_TRUE(fault_warnings(outcomes).empty());
}

TEST_F(FaultReport, EachKindHasItsOwnEnd) {
  const std::vector<std::pair<std::string, Failure>> ends = {{"kill:rank=1,step=1", failed(Cause::killed, 1)},
                                                             {"stall:rank=1,step=1,seconds=9", failed(Cause::stalled, 1)},
                                                             {"oom:rank=1,step=1", failed(Cause::out_of_memory, 1)},
                                                             {"drop:from=0,to=1,nth=1", failed(Cause::deadlock, 0)},
                                                             {"disconnect:from=0,to=1,step=1", failed(Cause::disconnected, 0)}};
  board_.note_fault(1, {.fault = 0, .when_ns = 1, .op = {}});
  for (const auto& [text, end] : ends) {
    EXPECT_EQ(fault_outcomes(parsed({text}), board_, end)[0].detected, true) << text;
    EXPECT_NE(fault_outcomes(parsed({text}), board_, failed(Cause::exception, 1))[0].detected, true) << text;
  }
  EXPECT_EQ(fault_outcomes(parsed({"kill:rank=1,step=1"}), board_, failed(Cause::killed, 2))[0].detected, false);
}

TEST_F(FaultReport, CountsAllAndListsTheFirst) {
  for (std::uint32_t i = 1; i <= 100; ++i)
    board_.note_fault(0, {.fault = 0, .when_ns = i, .op = "recv", .sequence = i, .peer = 1});
  const ordered_json json = faults_json(fault_outcomes(parsed({"delay:from=1,to=0,ms=1"}), board_, {}), 0);
  EXPECT_EQ(json[0]["times"], 100);
  ASSERT_EQ(json[0]["where"].size(), kFaultLines);
  EXPECT_EQ(json[0]["where"].back()["seq"], kFaultLines);
}

TEST_F(FaultReport, AttemptsAddUp) {
  const std::vector<fault::Spec> faults = parsed({"kill:rank=1,step=5", "kill:rank=2,step=9"});
  board_.note_fault(1, {.fault = 0, .when_ns = 10, .step = 5, .op = {}});
  const ordered_json first = faults_json(fault_outcomes(faults, board_, failed(Cause::killed, 1)), 0);
  const shm::NodeMemory later = shm::NodeMemory::create_memfd({.local_ranks = 3, .heap_bytes = 1 << 20, .world_size = 3});
  const auto outcomes = fault_outcomes(faults, FlightBoard(later), {});
  const ordered_json both = faults_json(outcomes, 0, first);
  EXPECT_EQ(both[0]["times"], 1);
  EXPECT_EQ(both[0]["detected"], true);
  EXPECT_EQ(both[0]["where"].size(), 1U);
  EXPECT_EQ(both[1]["struck"], false);
  EXPECT_TRUE(both[1]["detected"].is_null());
  // The first struck in the attempt before: that it doesn't strike again is no news.
  ASSERT_EQ(fault_warnings(outcomes, 1).size(), 1U);
  EXPECT_NE(fault_warnings(outcomes, 1)[0].find("kill:rank=2,step=9: not injected"), std::string::npos);
}

}  // namespace
}  // namespace tsp::launcher::fault_report_test
