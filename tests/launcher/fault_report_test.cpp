// What the report says of --fault: when and where each struck, over several attempts, and what nobody noticed.
#include "launcher/fault_report.h"

#include "transport/shm/node_memory.h"

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::fault_report_test {
namespace {

using nlohmann::ordered_json;

class FaultReport : public ::testing::Test {
 protected:
  static std::vector<fault::Spec> parsed(const std::vector<std::string>& texts) {
    std::vector<fault::Spec> faults;
    for (const std::string& text : texts) faults.push_back(fault::parse(text));
    return faults;
  }
  static Failure failed(Cause cause, int rank, const std::string& op = {}, std::uint32_t sequence = 0,
                        const std::string& detail = {}) {
    Failure failure;
    failure.cause = cause;
    failure.rank = rank;
    failure.op = op;
    failure.sequence = sequence;
    failure.detail = detail;
    return failure;
  }
  std::vector<std::optional<bool>> detected(const std::vector<std::string>& faults, const Failure& failure) const {
    std::vector<std::optional<bool>> all;
    for (const FaultOutcome& outcome : fault_outcomes(parsed(faults), board_, failure)) all.push_back(outcome.detected);
    return all;
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
  board_.note_fault(1, {.fault = 0, .when_ns = 1, .op = {}, .peer = 0});
  for (const auto& [text, end] : ends) {
    EXPECT_EQ(fault_outcomes(parsed({text}), board_, end)[0].detected, true) << text;
    EXPECT_NE(fault_outcomes(parsed({text}), board_, failed(Cause::exception, 1))[0].detected, true) << text;
  }
  EXPECT_EQ(fault_outcomes(parsed({"kill:rank=1,step=1"}), board_, failed(Cause::killed, 2))[0].detected, false);
}

using Detected = std::vector<std::optional<bool>>;

TEST_F(FaultReport, OnlyTheDamageThatWasFoundIsDetected) {
  const std::vector<std::string> faults = {"corrupt:from=0,to=1,nth=3", "corrupt:from=0,to=2,nth=40",
                                           "corrupt:from=1,to=2,nth=3"};
  board_.note_fault(1, {.fault = 0, .when_ns = 1, .op = "all_gather", .sequence = 3, .peer = 0});
  board_.note_fault(2, {.fault = 1, .when_ns = 2, .op = "all_gather", .sequence = 40, .peer = 0});
  board_.note_fault(2, {.fault = 2, .when_ns = 3, .op = "all_gather", .sequence = 40, .peer = 1});
  EXPECT_EQ(detected(faults, failed(Cause::corrupt, 0, "all_gather", 40)), (Detected{false, true, false}));
  EXPECT_EQ(detected(faults, failed(Cause::corrupt, 0, "all_gather", 3)), (Detected{true, false, false}));
  EXPECT_EQ(detected(faults, failed(Cause::corrupt, 1, "all_gather", 40)), (Detected{false, false, true}));
  // Damage that no fault did.
  EXPECT_EQ(detected(faults, failed(Cause::corrupt, 2, "all_gather", 40)), (Detected{false, false, false}));
  EXPECT_EQ(detected(faults, failed(Cause::corrupt, 0, "reduce", 3)), (Detected{false, false, false}));
}

TEST_F(FaultReport, OfTwoDamagedMessagesOfOneOperationTheOneIsDetectedWhoseReceiverFoundIt) {
  const std::vector<std::string> faults = {"corrupt:from=0,to=1,nth=3", "corrupt:from=0,to=2,nth=3"};
  board_.note_fault(1, {.fault = 0, .when_ns = 1, .op = "broadcast", .sequence = 3, .peer = 0});
  board_.note_fault(2, {.fault = 1, .when_ns = 1, .op = "broadcast", .sequence = 3, .peer = 0});
  const std::string text = "rank 2 is in broadcast (8 B of its own); a message from rank 0 is damaged";
  EXPECT_EQ(detected(faults, failed(Cause::corrupt, 0, "broadcast", 3, text)), (Detected{false, true}));
  // Nobody says who found it: one of them was.
  EXPECT_EQ(detected(faults, failed(Cause::corrupt, 0, "broadcast", 3)), (Detected{true, false}));
}

TEST_F(FaultReport, ALostMessageIsDetectedWhereItsReceiverWaits) {
  const std::vector<std::string> faults = {"drop:from=0,to=1,nth=1"};
  board_.note_fault(1, {.fault = 0, .when_ns = 1, .op = "all_gather", .sequence = 7, .peer = 0});
  const auto is_detected = [&](const Failure& failure) { return detected(faults, failure)[0] == true; };
  EXPECT_TRUE(is_detected(failed(Cause::mismatch, 1, "all_gather", 7)));
  EXPECT_FALSE(is_detected(failed(Cause::mismatch, 2, "all_gather", 7)));
  EXPECT_FALSE(is_detected(failed(Cause::mismatch, 1, "all_gather", 8)));
  for (const Cause cause : {Cause::deadlock, Cause::stalled}) {
    EXPECT_TRUE(is_detected(failed(cause, 1)));
    EXPECT_TRUE(is_detected(failed(cause, 0)));
    EXPECT_FALSE(is_detected(failed(cause, 2)));
    // A circle in which the receiver is one of many, and one in which it waits in an operation behind.
    EXPECT_TRUE(is_detected(
        failed(cause, 2, "all_gather", 7, "nothing moved: rank 2 is in all_gather #7 (8 B); rank 1 is in all_gather #7 (8 B)")));
    EXPECT_FALSE(is_detected(
        failed(cause, 1, "all_gather", 7, "nothing moved: rank 2 is in all_gather #7 (8 B); rank 1 is in all_gather #8 (8 B)")));
  }
}

TEST_F(FaultReport, WhoWasKilledBesidesTheFirstIsDetected) {
  const std::vector<std::string> faults = {"kill:rank=1,step=3", "kill:rank=2,step=3"};
  board_.note_fault(1, {.fault = 0, .when_ns = 1, .op = {}});
  board_.note_fault(2, {.fault = 1, .when_ns = 1, .op = {}});
  EXPECT_EQ(detected(faults, failed(Cause::killed, 1)), (Detected{true, false}));
  board_.page(2).code.store(SIGKILL);
  board_.page(2).life.store(static_cast<std::uint32_t>(Life::killed));
  EXPECT_EQ(detected(faults, failed(Cause::killed, 1)), (Detected{true, true}));
  board_.page(2).code.store(SIGTERM);
  EXPECT_EQ(detected(faults, failed(Cause::killed, 1)), (Detected{true, false}));
}

TEST_F(FaultReport, MemoryRefusedToTwoRanksIsDetectedOfBoth) {
  const std::vector<std::string> faults = {"oom:rank=1,step=3", "oom:rank=2,step=3"};
  board_.note_fault(1, {.fault = 0, .when_ns = 1, .op = {}});
  board_.note_fault(2, {.fault = 1, .when_ns = 1, .op = {}});
  EXPECT_EQ(detected(faults, failed(Cause::out_of_memory, 1)), (Detected{true, false}));
  const Error refused(Cause::out_of_memory, "no memory for 8 B (--fault oom:rank=2,step=3)", 2);
  board_.note_first_error(2, failure_of(refused));
  EXPECT_EQ(detected(faults, failed(Cause::out_of_memory, 1)), (Detected{true, true}));
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
}  // namespace tsprun::detail::launcher::fault_report_test
