// --fault from the command line: what strikes a rank is named in verdict and report, strikes once, and a run that goes on by
// itself has the curve of one that nothing struck.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tsp::test {
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
                           "--timeout", "2",  "--json", path("report.json"), "--steps", "6"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, code) << run.describe();
    err_ = run.err;
    return read_json(path("report.json"));
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
  EXPECT_EQ(report.at("steps").size(), 2U);
  EXPECT_EQ(report.at("faults"), json::parse(R"([{"fault":"kill:rank=2,step=3","struck":true}])"));
  EXPECT_NE(err_.find("injected --fault kill:rank=2,step=3 at step 3"), std::string::npos) << err_;
}

TEST_F(Fault, AKilledRankIsNamedInItsOperation) {
  const json report = train("4", {"--fault", "kill:rank=1,op=broadcast,seq=5"}, 1);
  EXPECT_EQ(report.at("failure").at("rank"), 1);
  EXPECT_EQ(report.at("failure").at("op"), "broadcast");
  EXPECT_EQ(report.at("failure").at("seq"), 5);
}

TEST_F(Fault, ARankThatGivesNoSignOfLifeIsCalledStalled) {
  const json report = train("2", {"--fault", "stall:rank=1,step=2,seconds=60"}, 1);
  EXPECT_EQ(report.at("failure").at("kind"), "stalled");
  EXPECT_EQ(report.at("failure").at("rank"), 1);
}

TEST_F(Fault, AShortStallIsSurvived) {
  const json report = train("2", {"--fault", "stall:rank=1,step=2,seconds=0.3"}, 0);
  EXPECT_TRUE(report.at("failure").is_null());
  EXPECT_EQ(report.at("faults")[0].at("struck"), true);
}

TEST_F(Fault, MemoryThatIsRefusedIsNamedWithItsUse) {
  const json report = train("2", {"--fault", "oom:rank=0,step=2"}, 1);
  EXPECT_EQ(report.at("failure").at("kind"), "out_of_memory");
  EXPECT_EQ(report.at("failure").at("rank"), 0);
  EXPECT_NE(report.at("failure").at("detail").get<std::string>().find("--fault oom:rank=0,step=2"), std::string::npos);
}

TEST_F(Fault, LateMessagesChangeNoBit) {
  const json whole = train("2", {}, 0);
  const json late = train("2", {"--fault", "delay:from=0,to=1,ms=3,prob=0.1,seed=4", "--fault", "slow:from=1,to=0,gbps=0.05"}, 0);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(late.at("steps")[i].at("loss"), whole.at("steps")[i].at("loss"));
}

TEST_F(Fault, ARunThatGoesOnByItselfIsStruckOnceAndHasTheSameCurve) {
  const json whole = train("2", {}, 0);
  const json struck =
      train("2", {"--fault", "kill:rank=1,step=5", "--save", path("saved"), "--save-every", "2", "--max-restarts", "2"}, 0);
  EXPECT_EQ(struck.at("restarts"), 1);
  EXPECT_EQ(struck.at("faults")[0].at("struck"), true);
  ASSERT_EQ(struck.at("steps").size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(struck.at("steps")[i].at("loss"), whole.at("steps")[i].at("loss"));
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
  EXPECT_NE(refusal({"-n", "2", "--fault", "kill:rank=1,op=gather", "bench", "barrier"}).find("there is no operation 'gather'"),
            std::string::npos);
  EXPECT_NE(refusal({"--fault", "kill:rank=0,op=barrier", "doctor"}).find("doctor has no ranks"), std::string::npos);
}

}  // namespace
}  // namespace tsp::test
