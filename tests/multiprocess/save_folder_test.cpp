// The folder that a training saves into: one run at a time, seen by all nodes, gone on with by the same command, saved into once
// more when a signal ends the run; and what is loaded from it is what its manifest says.
#include "tests/support/free_port.h"
#include "tests/support/patience.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail::test::save_folder_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

Arguments joined(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class SaveFolder : public ::testing::Test {
 protected:
  /// A training of two ranks from scratch.
  Arguments fresh(const Arguments& more) const {
    return joined({tsprun_path(), "train", "-n", "2", "--config", "nano", "--seq", "16", "--data", data_.text()}, more);
  }
  Arguments resumed(const std::string& folder, const Arguments& more) const {
    return joined({tsprun_path(), "train", "-n", "2", "--resume", folder, "--data", data_.text()}, more);
  }
  Finished run(const Arguments& arguments) const { return run_program(joined(arguments, {"--json", path("report.json")})); }
  json report() const { return read_json(path("report.json")); }
  std::string path(const std::string& name) const { return data_.path(name); }
  bool exists(const std::string& name) const { return std::filesystem::exists(path(name)); }
  std::string bytes_of(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void flip_a_bit(const std::string& name) const {
    std::string bytes = bytes_of(name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  std::string text() const { return data_.text(); }

 private:
  TextData data_{2000};
};

const Arguments kForEver = {"--steps", "1000000", "--save-every", "5"};

// --- one run at a time -------------------------------------------------------------------------------------------------------

TEST_F(SaveFolder, IsRefusedToASecondRunByNameAndRestartsGoOnFromTheirOwn) {
  Process first(fresh({"--steps", "8", "--save", path("mix"), "--save-every", "2", "--max-restarts", "1", "--timeout", "60",
                       "--json", path("first.json"), "--fault", "stall:rank=1,step=5,seconds=50"}));
  ASSERT_TRUE(first.wait_for_output("step-000004")) << first.err();
  const Finished second = run(fresh({"--seed", "2", "--steps", "8", "--save", path("mix"), "--overwrite"}));
  EXPECT_EQ(second.end.code, 2) << second.describe();
  EXPECT_TRUE(holds(second.err, "the folder is leased by run")) << second.err;
  EXPECT_TRUE(holds(second.err, fmt::format("process {}", first.pid()))) << second.err;
  EXPECT_EQ(report().at("failure").at("kind"), "refused");
  // A checkpoint of another run that came all the same, by another way, is none to restart from.
  ASSERT_EQ(run(fresh({"--seed", "2", "--steps", "6", "--save", path("other")})).end.code, 0);
  std::filesystem::rename(path("other/step-000006"), path("mix/step-000006"));
  std::vector<pid_t> ranks = first.marked();
  std::erase(ranks, first.pid());
  ASSERT_FALSE(ranks.empty());
  ::kill(ranks.front(), SIGKILL);
  EXPECT_EQ(first.wait().code, 0) << first.err();
  const json attempts = read_json(path("first.json")).at("attempts");
  ASSERT_EQ(attempts.size(), 1U);
  EXPECT_EQ(attempts[0].at("resumed_from").get<std::string>(), path("mix/step-000004"));
  EXPECT_FALSE(exists("mix/tsprun.lease"));
  // The same bits as a run that nothing struck.
  ASSERT_EQ(run(fresh({"--steps", "8", "--save", path("alone")})).end.code, 0);
  EXPECT_EQ(bytes_of("mix/step-000008/model.safetensors"), bytes_of("alone/step-000008/model.safetensors"));
}

TEST_F(SaveFolder, OfATsprunThatWasKilledIsTakenOver) {
  {
    Process killed(fresh(joined(kForEver, {"--save", path("runs")})));
    ASSERT_TRUE(killed.wait_for_output("saved ")) << killed.err();
    ::kill(killed.pid(), SIGKILL);
    EXPECT_TRUE(killed.wait_until_nothing_is_left(5));
  }
  EXPECT_TRUE(exists("runs/tsprun.lease"));
  std::uint64_t newest = 5;
  while (exists(fmt::format("runs/step-{:06}", newest + 5))) newest += 5;
  const Finished next = run(resumed(path("runs"), {"--steps", std::to_string(newest + 1)}));
  EXPECT_EQ(next.end.code, 0) << next.describe();
  EXPECT_EQ(report().at("run"), read_json(path("runs/step-000005/manifest.json")).at("run"));
  EXPECT_FALSE(exists("runs/tsprun.lease"));
}

// --- going on ----------------------------------------------------------------------------------------------------------------

TEST_F(SaveFolder, IsWhereAResumedRunSaves) {
  ASSERT_EQ(run(fresh({"--steps", "2", "--save", path("runs")})).end.code, 0);
  const std::string identity = report().at("run");
  EXPECT_EQ(identity.size(), 32U);
  EXPECT_EQ(run(resumed(path("runs"), {"--steps", "3"})).end.code, 0);
  EXPECT_TRUE(exists("runs/step-000003/manifest.json"));
  EXPECT_EQ(run(resumed(path("runs/step-000003/"), {"--steps", "4"})).end.code, 0);
  EXPECT_EQ(read_json(path("runs/step-000004/manifest.json")).at("run").get<std::string>(), identity);
  // Elsewhere it is another run.
  EXPECT_EQ(run(resumed(path("runs"), {"--steps", "5", "--save", path("fork")})).end.code, 0);
  EXPECT_NE(read_json(path("fork/step-000005/manifest.json")).at("run").get<std::string>(), identity);
  EXPECT_FALSE(exists("runs/step-000005"));
  // A checkpoint that lies in no folder of a run: nobody's folder is written into unasked.
  std::filesystem::rename(path("fork/step-000005"), path("best"));
  const Finished best = run(resumed(path("best"), {"--steps", "6"}));
  EXPECT_EQ(best.end.code, 0) << best.describe();
  EXPECT_TRUE(holds(best.err, "nothing will be saved; give --save DIR")) << best.err;
  EXPECT_FALSE(exists("step-000006"));
}

TEST_F(SaveFolder, ThatHoldsNothingYetBeginsARunSoThatARequeuedScriptStaysTheSame) {
  const Arguments script = fresh({"--steps", "4", "--save-every", "2", "--save", path("runs"), "--resume", path("runs")});
  const Finished begun = run(joined(script, {"--fault", "kill:rank=1,step=4"}));
  EXPECT_EQ(begun.end.code, 1) << begun.describe();
  EXPECT_TRUE(holds(begun.err, "a new run begins there")) << begun.err;
  const Finished again = run(script);
  EXPECT_EQ(again.end.code, 0) << again.describe();
  EXPECT_EQ(report().at("steps").at(0).at("step"), 3);
  std::filesystem::create_directory(path("empty"));
  EXPECT_EQ(run(fresh({"--steps", "1", "--save", path("empty") + "/", "--resume", path("empty")})).end.code, 0);
  // Of a model as well: the second time the checkpoint counts.
  const Arguments tuning = joined({tsprun_path(), "train", "--data", text(), "--seq", "16"},
                                  {"--model", path("runs"), "--resume", path("tuned"), "--save", path("tuned")});
  EXPECT_EQ(run(joined(tuning, {"--steps", "1"})).end.code, 0);
  const Finished tuned = run(joined(tuning, {"--steps", "2"}));
  EXPECT_EQ(tuned.end.code, 0) << tuned.describe();
  EXPECT_EQ(report().at("steps").size(), 1U);
  // Only there: elsewhere a missing checkpoint is a mistake.
  const Finished elsewhere = run(fresh({"--steps", "1", "--save", path("new"), "--resume", path("missing")}));
  EXPECT_EQ(elsewhere.end.code, 2) << elsewhere.describe();
  EXPECT_EQ(run(resumed(path("missing"), {"--steps", "1"})).end.code, 2);
  // And what is damaged is not nothing.
  std::filesystem::create_directories(path("bad/step-000001"));
  EXPECT_EQ(run(fresh({"--steps", "1", "--save", path("bad"), "--resume", path("bad")})).end.code, 2);
}

// --- endings -----------------------------------------------------------------------------------------------------------------

TEST_F(SaveFolder, IsSavedIntoOnceMoreWhenASignalEndsTheRun) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string folder = path(fmt::format("runs-{}", signal));
    Process job(fresh({"--steps", "1000000", "--save", folder, "--json", path("report.json")}));
    ASSERT_TRUE(job.wait_for_output("loss", 2)) << job.err();
    job.signal(signal);
    EXPECT_EQ(job.wait().code, 128 + signal) << job.err();
    EXPECT_TRUE(job.wait_until_nothing_is_left(2));
    const json stopped = report();
    EXPECT_EQ(stopped.at("failure").at("kind"), "interrupted");
    EXPECT_EQ(stopped.at("failure").at("signal"), signal);
    const std::uint64_t step = stopped.at("survivor").at("step");
    EXPECT_EQ(step, stopped.at("steps").back().at("step").get<std::uint64_t>());
    EXPECT_EQ(stopped.at("survivor").at("folder").get<std::string>(), fmt::format("{}/step-{:06}", folder, step));
    EXPECT_TRUE(holds(job.err(), fmt::format("holds the run after {} of 1000000 steps; it goes on with: tsprun train", step)))
        << job.err();
  }
}

TEST_F(SaveFolder, GoesOnBitIdenticallyWithTheCommandThatWasNamed) {
  Process job(fresh({"--steps", "1000000", "--save", path("a run"), "--json", path("report.json")}));
  ASSERT_TRUE(job.wait_for_output("loss", 2)) << job.err();
  job.signal(SIGTERM);
  ASSERT_EQ(job.wait().code, 128 + SIGTERM) << job.err();
  const std::uint64_t step = report().at("survivor").at("step");
  std::string command = report().at("survivor").at("command");
  ASSERT_TRUE(command.starts_with("tsprun "));
  command.replace(command.find("1000000"), 7, std::to_string(step + 2));
  const Finished rest = run_program({"sh", "-c", tsprun_path() + command.substr(6)});
  ASSERT_EQ(rest.end.code, 0) << rest.describe();
  const json after = report();
  ASSERT_EQ(after.at("steps").size(), 2U);
  ASSERT_EQ(run(fresh({"--steps", std::to_string(step + 2)})).end.code, 0);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(after.at("steps")[i].at("loss"), report().at("steps")[step + i].at("loss"));
}

TEST_F(SaveFolder, IsNotWaitedForLongerThanAllowedNorAfterASecondSignal) {
  const auto stands_still = [](Process& job) {
    return until(30, [&] { return holds(job.err(), "injected --fault stall:rank=1,step=4"); });
  };
  const Arguments stalled = fresh({"--steps", "1000000", "--save-every", "2", "--save", path("runs"), "--timeout", "60",
                                   "--max-restarts", "3", "--fault", "stall:rank=1,step=4,seconds=50"});
  {
    Process job(joined(stalled, {"--save-within", "1"}));
    ASSERT_TRUE(stands_still(job)) << job.err();
    job.signal(SIGTERM);
    const End end = job.wait();
    EXPECT_EQ(end.code, 128 + SIGTERM) << job.err();
    EXPECT_TRUE(holds(job.err(), "saving after this step, within 1 s")) << job.err();
    EXPECT_TRUE(holds(job.err(), "step-000002 holds the run after 2 of")) << job.err();
    EXPECT_FALSE(holds(job.err(), "restart 1")) << job.err();
  }
  Process job(joined(stalled, {"--overwrite"}));
  ASSERT_TRUE(stands_still(job)) << job.err();
  job.signal(SIGINT);
  ::usleep(2'500'000);  // sooner it would be the same request
  job.signal(SIGINT);
  EXPECT_EQ(job.wait().code, 128 + SIGINT) << job.err();
  EXPECT_TRUE(job.wait_until_nothing_is_left(2));
}

TEST_F(SaveFolder, ThatCanTakeNoMoreLeavesTheLastCheckpointByName) {
  // A plain file in the place of the second one, as a full disk would, ends the run.
  std::filesystem::create_directories(path("runs"));
  std::ofstream(path("runs/step-000004")) << "in the way";
  const Finished full = run(fresh({"--steps", "6", "--save-every", "2", "--save", path("runs")}));
  EXPECT_EQ(full.end.code, 1) << full.describe();
  EXPECT_TRUE(holds(full.err, "runs/step-000002 holds the run after 2 of 6 steps; it goes on with: tsprun train")) << full.err;
  const Finished nothing = run(fresh({"--steps", "6", "--save", path("more"), "--fault", "kill:rank=0,step=2"}));
  EXPECT_TRUE(holds(nothing.err, "nothing was saved")) << nothing.err;
  EXPECT_FALSE(exists("more"));
}

// --- nodes -------------------------------------------------------------------------------------------------------------------

/// A tsprun of two, working in a folder of its own.
Arguments node(int number, int port, const std::string& where, const Arguments& train) {
  return joined({"sh", "-c", "cd \"$0\" && exec \"$@\"", where},
                joined(train, {"--nnodes", "2", "--node-rank", std::to_string(number), "--rendezvous",
                               fmt::format("127.0.0.1:{}", port), "--timeout", "20"}));
}

ProcessOptions with_secret() {
  ProcessOptions options;
  options.environment["TSP_SECRET"] = "of the save folder's test";
  return options;
}

TEST_F(SaveFolder, ThatNodesDoNotShareIsRefusedBeforeTheFirstStep) {
  for (const char* name : {"here", "there"}) std::filesystem::create_directory(path(name));
  const int port = free_port();
  const Arguments train = fresh({"--steps", "2", "--save", "runs"});
  Process first(node(0, port, path("here"), train), with_secret());
  Process second(node(1, port, path("there"), train), with_secret());
  for (Process* each : {&first, &second}) {
    EXPECT_EQ(each->wait().code, 1) << each->err();
    EXPECT_TRUE(holds(each->err(), "--save runs: node 1 (")) << each->err();
    EXPECT_TRUE(holds(each->err(), "name one on a file system that they share")) << each->err();
    EXPECT_FALSE(holds(each->out(), "loss")) << each->out();
  }
  EXPECT_FALSE(exists("here/runs"));
}

TEST_F(SaveFolder, IsSavedIntoByAllNodesThoughOneAloneGotTheSignal) {
  const int port = free_port();
  const Arguments train = fresh({"--steps", "1000000", "--save", path("runs")});
  Process first(node(0, port, path("."), train), with_secret());
  Process second(node(1, port, path("."), train), with_secret());
  ASSERT_TRUE(first.wait_for_output("loss", 2)) << first.err();
  EXPECT_TRUE(exists("runs/tsprun.lease"));
  second.signal(SIGTERM);
  EXPECT_EQ(first.wait().code, 128 + SIGTERM) << first.err();
  EXPECT_EQ(second.wait().code, 128 + SIGTERM) << second.err();
  EXPECT_TRUE(holds(first.err(), "it goes on with")) << first.err();
  // Nothing but the checkpoint: neither the lease nor the token of the trial.
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path("runs"))) names.push_back(entry.path().filename().string());
  ASSERT_EQ(names.size(), 1U);
  EXPECT_TRUE(names[0].starts_with("step-"));
}

// --- what is loaded ----------------------------------------------------------------------------------------------------------

TEST_F(SaveFolder, IsAModelWhoseNewestCheckpointIsLoadedIfItIsWhole) {
  ASSERT_EQ(run(fresh({"--steps", "4", "--save-every", "2", "--save", path("runs")})).end.code, 0);
  const auto loss = [&](const Arguments& more) {
    const Finished evaluated = run(joined({tsprun_path(), "eval", "--data", text(), "--seq", "64"}, more));
    EXPECT_EQ(evaluated.end.code, 0) << evaluated.describe();
    return std::pair(report().at("loss").get<double>(), evaluated.err);
  };
  const double newest = loss({"--model", path("runs/step-000004")}).first;
  EXPECT_EQ(loss({"--model", path("runs")}).first, newest);
  const double older = loss({"--model", path("runs/step-000002")}).first;
  EXPECT_NE(older, newest);

  flip_a_bit("runs/step-000004/model.safetensors");
  const auto [passed_over, said] = loss({"--model", path("runs")});
  EXPECT_EQ(passed_over, older);
  EXPECT_TRUE(holds(said, "skipped a checkpoint: " + path("runs/step-000004/model.safetensors"))) << said;
  for (const Arguments& command :
       {Arguments{"eval", "--data", text(), "--seq", "64"}, Arguments{"generate", "--prompt", "a", "--tokens", "2"},
        Arguments{"train", "--data", text(), "--seq", "16", "--steps", "1"}}) {
    const Finished refused = run(joined(joined({tsprun_path()}, command), {"--model", path("runs/step-000004")}));
    EXPECT_EQ(refused.end.code, 2) << refused.describe();
    EXPECT_TRUE(holds(refused.err, "model.safetensors: checksum")) << refused.err;
    const Finished taken = run(joined(joined({tsprun_path()}, command), {"--model", path("runs/step-000004"), "--no-checksum"}));
    EXPECT_EQ(taken.end.code, 0) << taken.describe();
    EXPECT_TRUE(holds(taken.err, "--no-checksum: ")) << taken.err;
  }
}

}  // namespace
}  // namespace tsprun::detail::test::save_folder_test
