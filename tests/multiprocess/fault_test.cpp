// --fault from the command line: what strikes a rank is named in verdict and report, strikes once, and a run that goes on by
// itself has the curve of one that nothing struck.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::fault_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

class Fault : public ::testing::Test {
 protected:
  Fault() {
    std::ofstream text(path("text.txt"));
    for (int i = 0; i < 100; ++i) text << "line " << i << " of a text that is long enough\n";
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

  /// A training of `ranks` ranks; the report of it.
  json train(const std::string& ranks, const Arguments& more, int code) {
    Arguments arguments = {"train",     "-n", ranks,    "--config",          "nano",    "--data", path("text.txt"), "--seq", "64",
                           "--timeout", "3",  "--json", path("report.json"), "--steps", "6"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, code) << run.describe();
    err_ = run.err;
    return read_json(path("report.json"));
  }

  /// The report of a command that fails.
  json bench(const Arguments& command) {
    Arguments arguments = {"--timeout", "3", "--json", path("report.json")};
    arguments.insert(arguments.end(), command.begin(), command.end());
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 1) << run.describe();
    return read_json(path("report.json"));
  }

  static bool says(const json& report, const std::string& part) {
    return report.at("failure").at("detail").get<std::string>().find(part) != std::string::npos;
  }

  std::string err_;

 private:
  TemporaryDirectory folder_;
};

TEST_F(Fault, AKilledRankIsNamedAtItsStep) {
  const json report = train("4", {"--fault", "kill:rank=2,step=3"}, 1);
  EXPECT_EQ(report.at("failure").at("kind"), "killed");
  EXPECT_EQ(report.at("failure").at("rank"), 2);
  EXPECT_EQ(report.at("failure").at("signal"), 9);
  // Rank 2 dies as it begins step 3. Nobody waits for others in an update: rank 0 may be in that of step 2 still.
  EXPECT_GE(report.at("steps").size(), 1U);
  EXPECT_LE(report.at("steps").size(), 2U);
  const json& fault = report.at("faults").at(0);
  EXPECT_EQ(fault.at("fault"), "kill:rank=2,step=3");
  EXPECT_EQ(fault.at("struck"), true);
  EXPECT_EQ(fault.at("detected"), true);
  EXPECT_EQ(fault.at("where").at(0).at("rank"), 2);
  EXPECT_EQ(fault.at("where").at(0).at("step"), 3);
  EXPECT_NE(err_.find("injected --fault kill:rank=2,step=3 at step 3"), std::string::npos) << err_;
}

TEST_F(Fault, AKilledRankIsNamedInItsOperation) {
  const json report = train("4", {"--fault", "kill:rank=1,op=broadcast,seq=5"}, 1);
  EXPECT_EQ(report.at("failure").at("rank"), 1);
  EXPECT_EQ(report.at("failure").at("op"), "broadcast");
  EXPECT_EQ(report.at("failure").at("seq"), 5);
}

TEST_F(Fault, AStruckRankIsNamedInThatOperationAmongThoseQueuedOnOtherStreams) {
  const std::vector<std::pair<std::string, int>> places = {
      {"all_gather", 4}, {"all_gather", 20}, {"reduce", 3}, {"broadcast", 11}};
  for (const auto& [op, sequence] : places) {
    const std::string where = "rank=2,op=" + op + ",seq=" + std::to_string(sequence);
    const json killed = train("4", {"--fault", "kill:" + where}, 1).at("failure");
    EXPECT_EQ(killed.at("kind"), "killed") << err_;
    EXPECT_EQ(killed.at("rank"), 2) << err_;
    EXPECT_EQ(killed.at("op"), op) << err_;
    EXPECT_EQ(killed.at("seq"), sequence) << err_;
  }
  const json stalled = train("4", {"--fault", "stall:rank=2,op=all_gather,seq=20,seconds=60"}, 1).at("failure");
  EXPECT_EQ(stalled.at("kind"), "stalled") << err_;
  EXPECT_EQ(stalled.at("rank"), 2) << err_;
  EXPECT_EQ(stalled.at("op"), "all_gather") << err_;
  EXPECT_EQ(stalled.at("seq"), 20) << err_;
}

TEST_F(Fault, ARankThatGivesNoSignOfLifeIsCalledStalled) {
  const json report = train("2", {"--fault", "stall:rank=1,step=2,seconds=60"}, 1);
  EXPECT_EQ(report.at("failure").at("kind"), "stalled");
  EXPECT_EQ(report.at("failure").at("rank"), 1);
}

TEST_F(Fault, AShortStallIsSurvived) {
  const json report = train("2", {"--fault", "stall:rank=1,step=2,seconds=0.9"}, 0);
  EXPECT_TRUE(report.at("failure").is_null());
  EXPECT_EQ(report.at("faults")[0].at("struck"), true);
}

TEST_F(Fault, MemoryThatIsRefusedIsNamedWithItsUse) {
  const json report = train("2", {"--fault", "oom:rank=0,step=2"}, 1);
  EXPECT_EQ(report.at("failure").at("kind"), "out_of_memory");
  EXPECT_EQ(report.at("failure").at("rank"), 0);
  EXPECT_NE(report.at("failure").at("detail").get<std::string>().find("--fault oom:rank=0,step=2"), std::string::npos);
}

/// Returns what a report says of its only fault, which struck once: operation and number.
std::pair<std::string, int> place(const json& report) {
  const json& fault = report.at("faults").at(0);
  EXPECT_EQ(fault.at("times"), 1) << fault;
  return {fault.at("where").at(0).at("op"), fault.at("where").at(0).at("seq")};
}

TEST_F(Fault, DamageIsFoundByChecksumsAtTheSameOperationOnEveryTransport) {
  const Arguments fault = {"--fault", "corrupt:from=0,to=1,nth=7"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), fault.begin(), fault.end());
    return more;
  };
  const json checked = train("2", with({"--verify"}), 1);
  for (const json& report : {checked, train("2", with({"--nodes", "2", "--inter", "tcp"}), 1),
                             train("2", with({"--nodes", "2", "--inter", "tcp", "--tls", "on"}), 1)}) {
    EXPECT_EQ(report.at("failure").at("kind"), "corrupt");
    EXPECT_EQ(report.at("failure").at("rank"), 0);
    EXPECT_EQ(report.at("faults")[0].at("detected"), true);
    EXPECT_EQ(report.at("faults")[0].at("where")[0].at("rank"), 1);
    EXPECT_EQ(report.at("faults")[0].at("where")[0].at("peer"), 0);
    EXPECT_EQ(report.at("failure").at("op"), place(report).first);
    EXPECT_EQ(report.at("failure").at("seq"), place(report).second);
    EXPECT_EQ(place(report), place(checked));
    EXPECT_FALSE(report.at("failure").at("waiting").empty());
  }
}

TEST_F(Fault, DamageThatNothingChecksIsSaidToBeUndetected) {
  const json report = train("2", {"--fault", "corrupt:from=0,to=1,nth=7", "--trace", path("trace.json")}, 0);
  EXPECT_EQ(report.at("faults")[0].at("detected"), false);
  EXPECT_NE(err_.find("injected, not detected: at rank 1 in " + place(report).first), std::string::npos) << err_;
  int instants = 0;
  const json trace = read_json(path("trace.json"));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "i") continue;
    ++instants;
    EXPECT_EQ(event.at("name"), "corrupt:from=0,to=1,nth=7");
    EXPECT_EQ(event.at("pid"), 1);
    EXPECT_EQ(event.at("args").at("op"), place(report).first);
    EXPECT_EQ(event.at("args").at("sequence"), place(report).second);
  }
  EXPECT_EQ(instants, 1);
}

TEST_F(Fault, AFailedJobLeavesATraceOfItsFaultsAndItsEnd) {
  const json report = train("4",
                            {"--fault", "stall:rank=2,op=all_gather,seq=1,seconds=0.02", "--fault", "kill:rank=1,step=3",
                             "--trace", path("trace.json")},
                            1);
  EXPECT_NE(err_.find("holds the failure and the faults that struck"), std::string::npos) << err_;
  std::set<int> processes;
  std::map<std::string, json> instants;
  const json trace = read_json(path("trace.json"));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "i") instants[event.at("name")] = event;
    else if (event.at("name") == "process_name") processes.insert(event.at("pid").get<int>());
  }
  EXPECT_EQ(processes, (std::set<int>{0, 1, 2, 3}));
  ASSERT_EQ(instants.size(), 3U) << trace;
  for (const json& fault : report.at("faults")) {
    const json& where = fault.at("where").at(0);
    const json& event = instants.at(fault.at("fault"));
    EXPECT_EQ(event.at("cat"), "fault");
    EXPECT_EQ(event.at("pid"), where.at("rank"));
    EXPECT_NEAR(event.at("ts").get<double>(), where.at("seconds").get<double>() * 1e6, 1);
  }
  const json& stall = instants.at("stall:rank=2,op=all_gather,seq=1,seconds=0.02").at("args");
  EXPECT_EQ(stall.at("op"), "all_gather");
  EXPECT_EQ(stall.at("sequence"), 1);
  const json& kill = instants.at("kill:rank=1,step=3");
  EXPECT_EQ(kill.at("args").at("step"), 3);
  const json& failure = instants.at("killed");
  EXPECT_EQ(failure.at("cat"), "failure");
  EXPECT_EQ(failure.at("pid"), 1);
  EXPECT_EQ(failure.at("args").at("detail"), report.at("failure").at("detail"));
  EXPECT_GE(failure.at("ts"), kill.at("ts"));
}

TEST_F(Fault, ALostMessageIsFound) {
  for (const Arguments& transport : {Arguments{}, Arguments{"--nodes", "2", "--inter", "tcp"}}) {
    Arguments more = {"--fault", "drop:from=1,to=0,nth=7"};
    more.insert(more.end(), transport.begin(), transport.end());
    const json report = train("2", more, 1);
    EXPECT_EQ(report.at("faults")[0].at("detected"), true);
    EXPECT_TRUE(says(report, "lost")) << report.at("failure");
  }
}

TEST_F(Fault, ALostMessageOfASendIsFoundAtTheDeadline) {
  const json report = train("2", {"--fault", "drop:from=1,to=0,nth=9"}, 1);
  EXPECT_EQ(place(report).first, "send_recv");
  EXPECT_EQ(report.at("failure").at("kind"), "deadlock");
  EXPECT_EQ(report.at("faults")[0].at("detected"), true);
}

TEST_F(Fault, ALostMessageIsFoundWhereNothingComesBehindIt) {
  // All wait for each other in the end: rank 2 in an operation that rank 1 is done with.
  const json gathered = bench({"-n", "4", "--fault", "drop:from=1,to=2,nth=9", "bench", "all_gather", "--sizes", "1K"});
  EXPECT_TRUE(says(gathered, "lost")) << gathered.at("failure");
  EXPECT_EQ(gathered.at("failure").at("rank"), 2);
  const json trained = train("2", {"--fault", "drop:from=0,to=1,prob=1"}, 1);
  EXPECT_TRUE(says(trained, "rank 1 waits for it: a message was lost")) << trained.at("failure");
  EXPECT_EQ(trained.at("failure").at("rank"), 1);
}

TEST_F(Fault, WhatALinkStillHoldsIsNotCalledLost) {
  // 1K is copied by its sender, which goes on; 64K is read in place.
  for (const char* size : {"1K", "64K"}) {
    const json report = bench({"-n", "2", "--fault", "slow:from=0,to=1,gbps=0.00000003", "bench", "all_gather", "--sizes", size});
    EXPECT_FALSE(says(report, "lost")) << report.at("failure");
    EXPECT_TRUE(says(report, "a slow or late link still holds")) << report.at("failure");
  }
}

TEST_F(Fault, ACutWayIsNamed) {
  const json report = train("2", {"--fault", "disconnect:from=1,to=0,step=3"}, 1);
  EXPECT_EQ(report.at("failure").at("kind"), "disconnected");
  EXPECT_EQ(report.at("failure").at("rank"), 1);
  EXPECT_EQ(report.at("steps").size(), 2U);
  EXPECT_EQ(report.at("faults")[0].at("detected"), true);
  EXPECT_EQ(report.at("faults")[0].at("where")[0].at("step"), 3);
}

TEST_F(Fault, AFaultThatIsNeverDueIsSaidSo) {
  const json report = train("2", {"--fault", "drop:from=0,to=1,nth=1000000"}, 0);
  EXPECT_EQ(report.at("faults")[0].at("struck"), false);
  EXPECT_NE(err_.find("not injected"), std::string::npos) << err_;
}

TEST_F(Fault, LateMessagesChangeNoBit) {
  const json whole = train("2", {}, 0);
  const json late = train("2", {"--fault", "delay:from=0,to=1,ms=3,prob=0.1,seed=4", "--fault", "slow:from=1,to=0,gbps=0.05"}, 0);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(late.at("steps").at(i).at("loss"), whole.at("steps").at(i).at("loss"));
  for (const json& fault : late.at("faults")) EXPECT_GT(fault.at("times"), 0) << fault;
}

TEST_F(Fault, TheSameSeedDelaysTheSameOperationsOnEveryTransport) {
  const auto struck = [&](const Arguments& transport) {
    Arguments more = {"--fault", "delay:from=0,to=1,ms=1,prob=0.02,seed=4"};
    more.insert(more.end(), transport.begin(), transport.end());
    const json fault = train("2", more, 0).at("faults").at(0);
    std::vector<std::pair<std::string, int>> places;
    for (const json& where : fault.at("where")) places.emplace_back(where.at("op"), where.at("seq"));
    return std::pair(fault.at("times").get<int>(), places);
  };
  const auto shared = struck({});
  EXPECT_GT(shared.first, 0);
  EXPECT_EQ(struck({"--verify"}), shared);
  EXPECT_EQ(struck({"--nodes", "2", "--inter", "tcp"}), shared);
}

TEST_F(Fault, AnEndIsNotADeathWhileTheLastMessagesAreStillOnTheirWay) {
  const Finished run = run_tsprun(
      {"-n", "2", "--fault", "delay:from=1,to=0,ms=150", "bench", "all_reduce", "--sizes", "8", "--iters", "1", "--no-check"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

TEST_F(Fault, ARunThatGoesOnByItselfIsStruckOnceAndHasTheSameCurve) {
  const json whole = train("2", {}, 0);
  const json struck =
      train("2", {"--fault", "kill:rank=1,step=5", "--save", path("saved"), "--save-every", "2", "--max-restarts", "2"}, 0);
  EXPECT_EQ(struck.at("restarts"), 1);
  EXPECT_EQ(struck.at("faults")[0].at("struck"), true);
  ASSERT_EQ(struck.at("steps").size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(struck.at("steps").at(i).at("loss"), whole.at("steps").at(i).at("loss"));
}

TEST_F(Fault, ARunGoesOnByItselfAsOftenAsItMay) {
  const json report = train("2",
                            {"--fault", "kill:rank=1,step=3", "--fault", "kill:rank=0,step=5", "--save", path("saved"),
                             "--save-every", "2", "--max-restarts", "1"},
                            1);
  EXPECT_EQ(report.at("restarts"), 1);
  EXPECT_EQ(report.at("attempts").size(), 1U);
  EXPECT_EQ(report.at("failure").at("rank"), 0);
}

TEST_F(Fault, ARunThatGoesOnByItselfStillReportsHowItFailed) {
  // Rank 1 stalls first, so that rank 0 surely waits for it when it is killed.
  const json report = train("2",
                            {"--fault", "stall:rank=1,step=5,seconds=0.5", "--fault", "kill:rank=1,step=5", "--save",
                             path("saved"), "--save-every", "2", "--max-restarts", "2", "--trace", path("trace.json")},
                            0);
  EXPECT_TRUE(report.at("failure").is_null());
  ASSERT_EQ(report.at("attempts").size(), 1U);
  const json& attempt = report.at("attempts")[0];
  EXPECT_EQ(attempt.at("failure").at("kind"), "killed");
  EXPECT_EQ(attempt.at("failure").at("rank"), 1);
  EXPECT_EQ(attempt.at("failure").at("signal"), 9);
  ASSERT_EQ(attempt.at("failure").at("waiting").size(), 1U);
  EXPECT_EQ(attempt.at("failure").at("waiting")[0].at("rank"), 0);
  EXPECT_EQ(attempt.at("failure").at("waiting")[0].at("for"), 1);
  EXPECT_EQ(attempt.at("resumed_from"), path("saved/step-000004"));
  EXPECT_EQ(attempt.at("trace"), path("trace.attempt-1.json"));
  const auto faults_in = [](const json& trace) {
    int faults = 0;
    for (const json& event : trace.at("traceEvents")) faults += event.value("cat", "") == "fault" ? 1 : 0;
    return faults;
  };
  EXPECT_EQ(faults_in(read_json(attempt.at("trace"))), 2);
  EXPECT_EQ(faults_in(read_json(path("trace.json"))), 0);
  EXPECT_TRUE(attempt.at("skipped").empty());
  const auto saved_steps = [](const json& saved) {
    std::vector<int> steps;
    for (const json& each : saved.at("checkpoints")) steps.push_back(each.at("step"));
    return steps;
  };
  EXPECT_EQ(saved_steps(attempt), (std::vector<int>{2, 4}));
  EXPECT_EQ(saved_steps(report), (std::vector<int>{6}));
}

TEST_F(Fault, MemoryThatAFaultRefusedIsThereInTheNextAttempt) {
  const json report =
      train("2", {"--fault", "oom:rank=0,step=3", "--save", path("saved"), "--save-every", "2", "--max-restarts", "1"}, 0);
  EXPECT_EQ(report.at("restarts"), 1);
  EXPECT_EQ(report.at("attempts").at(0).at("failure").at("kind"), "out_of_memory");
  EXPECT_EQ(report.at("steps").size(), 6U);
}

TEST_F(Fault, WhatCannotStrikeIsRefusedBeforeRanksStart) {
  const auto refusal = [](const Arguments& arguments) {
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    return run.err;
  };
  EXPECT_NE(refusal({"-n", "2", "--fault", "kill:rank=2,op=barrier", "bench", "barrier"}).find("the ranks are 0 to 1"),
            std::string::npos);
  EXPECT_NE(refusal({"-n", "2", "--fault", "kill:rank=1,step=2", "bench", "barrier"}).find("bench has no training steps"),
            std::string::npos);
  EXPECT_NE(
      refusal({"-n", "2", "--fault", "kill:rank=1,op=gathering", "bench", "barrier"}).find("there is no operation 'gathering'"),
      std::string::npos);
  EXPECT_NE(
      refusal({"-n", "2", "--fault", "disconnect:from=0,to=1,step=2", "bench", "barrier"}).find("try drop:from=0,to=1,nth=1"),
      std::string::npos);
  EXPECT_NE(refusal({"--fault", "kill:rank=0,op=barrier", "doctor"}).find("doctor has no ranks"), std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::test::fault_test
