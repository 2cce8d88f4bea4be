// Training and the folders it writes to and goes on from: new ones, ones of other runs, and what can't be gone on with.
#include "tests/support/patience.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

namespace tsprun::detail::test::training_files_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

class TrainingFiles : public ::testing::Test {
 protected:
  /// A training of two ranks, "train" and its data included.
  Finished train(const Arguments& more) {
    Arguments arguments = {"train", "-n", "2", "--data", data_.text(), "--json", data_.path("report.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tsprun(arguments);
  }
  Finished fresh(const Arguments& more) {
    Arguments arguments = {"--config", "nano", "--seq", "16"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return train(arguments);
  }
  json report() const { return read_json(data_.path("report.json")); }
  std::string path(const std::string& name) const { return data_.path(name); }

 private:
  TextData data_{2000};
};

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(TrainingFiles, FoldersThatAreMissingAreMade) {
  const Finished run = fresh({"--steps", "1", "--save", path("runs/of/today/")});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_TRUE(std::filesystem::exists(path("runs/of/today/step-000001/manifest.json")));
}

TEST_F(TrainingFiles, ARestartNeverGoesOnFromAnotherRun) {
  ASSERT_EQ(fresh({"--steps", "4", "--lr", "1e-2", "--save", path("saved")}).end.code, 0);
  // Killed before its first checkpoint: there is nothing of its own to go on from.
  const Finished early = fresh({"--steps", "8", "--seed", "5", "--save", path("saved"), "--overwrite", "--save-every", "6",
                                "--max-restarts", "1", "--fault", "kill:rank=1,step=3"});
  EXPECT_EQ(early.end.code, 1) << early.describe();
  EXPECT_TRUE(holds(early.err, "no restart: the run has no checkpoint")) << early.err;
  // Killed after it: from there, although the other run's is newer; with the curve of a run that nothing struck.
  ASSERT_EQ(fresh({"--steps", "4", "--seed", "5"}).end.code, 0);
  const json whole = report();
  const Finished late = fresh({"--steps", "4", "--seed", "5", "--save", path("saved"), "--overwrite", "--save-every", "1",
                               "--max-restarts", "1", "--fault", "kill:rank=1,step=3"});
  EXPECT_EQ(late.end.code, 0) << late.describe();
  const json struck = report();
  ASSERT_EQ(struck.at("steps").size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(struck.at("steps")[i].at("loss"), whole.at("steps")[i].at("loss"));
}

TEST_F(TrainingFiles, ARestartBeforeTheFirstSaveGoesOnFromWhatWasResumed) {
  ASSERT_EQ(fresh({"--steps", "2", "--save", path("old")}).end.code, 0);
  ASSERT_EQ(train({"--resume", path("old"), "--steps", "5", "--save", path("whole")}).end.code, 0);
  const json whole = report();
  const Finished run = train(
      {"--resume", path("old"), "--steps", "5", "--save", path("new"), "--max-restarts", "1", "--fault", "kill:rank=1,step=4"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_FALSE(holds(run.err, "another run")) << run.err;
  const json struck = report();
  EXPECT_EQ(struck.at("restarts"), 1);
  ASSERT_EQ(struck.at("steps").size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(struck.at("steps")[i].at("loss"), whole.at("steps")[i].at("loss"));
}

void damage(const std::string& checkpoint) { std::filesystem::resize_file(checkpoint + "/manifest.json", 10); }

TEST_F(TrainingFiles, ADamagedCheckpointThatIsPassedOverIsInTheReport) {
  ASSERT_EQ(fresh({"--steps", "3", "--save-every", "1", "--save", path("saved")}).end.code, 0);
  EXPECT_FALSE(report().contains("skipped_checkpoints"));
  damage(path("saved/step-000003"));
  const Finished run = train({"--resume", path("saved"), "--steps", "4"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const json skipped = report().at("skipped_checkpoints");
  ASSERT_EQ(skipped.size(), 1U);
  EXPECT_TRUE(holds(skipped[0], "step-000003")) << skipped;
  EXPECT_EQ(report().at("steps").at(0).at("step"), 3);
}

TEST_F(TrainingFiles, ARestartSaysWhichDamagedCheckpointsItPassedOver) {
  // The rank that stalls is killed when its run's newest checkpoint is damaged; the attempt behind it isn't stalled again.
  Process job({tsprun_path(),
               "train",
               "-n",
               "2",
               "--data",
               path("text.txt"),
               "--json",
               path("report.json"),
               "--config",
               "nano",
               "--seq",
               "16",
               "--steps",
               "6",
               "--save",
               path("saved"),
               "--save-every",
               "2",
               "--max-restarts",
               "1",
               "--timeout",
               "60",
               "--fault",
               "stall:rank=1,step=5,seconds=50"});
  ASSERT_TRUE(until(30, [&] { return holds(job.err(), "injected --fault stall:rank=1,step=5"); })) << job.err();
  damage(path("saved/step-000004"));
  std::vector<pid_t> ranks = job.marked();
  std::erase(ranks, job.pid());
  ASSERT_FALSE(ranks.empty());
  ::kill(ranks.front(), SIGKILL);
  EXPECT_EQ(job.wait().code, 0) << job.err();
  EXPECT_TRUE(holds(job.err(), "skipped a checkpoint: " + path("saved/step-000004"))) << job.err();
  const json attempts = report().at("attempts");
  ASSERT_EQ(attempts.size(), 1U);
  EXPECT_EQ(attempts[0].at("resumed_from"), path("saved/step-000002"));
  ASSERT_EQ(attempts[0].at("skipped").size(), 1U);
  EXPECT_TRUE(holds(attempts[0].at("skipped")[0], "step-000004")) << attempts;
}

TEST_F(TrainingFiles, AnotherTypeThanTheCheckpointsIsRefusedBeforeRanksStart) {
  ASSERT_EQ(fresh({"--steps", "1", "--save", path("saved")}).end.code, 0);
  const Finished run = train({"--resume", path("saved"), "--steps", "2", "--dtype", "f64"});
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_TRUE(holds(run.err, "--dtype f64: ")) << run.err;
  EXPECT_TRUE(holds(run.err, "holds f32; leave --dtype out")) << run.err;
  EXPECT_EQ(train({"--resume", path("saved"), "--steps", "2", "--dtype", "f32"}).end.code, 0);
}

TEST_F(TrainingFiles, AModelThatDivergedEndsTheRunAndIsNotSaved) {
  const Finished run = fresh({"--steps", "40", "--lr", "1e6", "--clip", "0", "--save", path("saved"), "--max-restarts", "3"});
  EXPECT_EQ(run.end.code, 1) << run.describe();
  EXPECT_TRUE(holds(run.err, "is not finite")) << run.err;
  EXPECT_TRUE(holds(run.err, "on rank ") || holds(run.err, "the first tensor that isn't finite: rank ")) << run.err;
  EXPECT_TRUE(holds(run.err, "diverged")) << run.err;
  EXPECT_TRUE(holds(run.err, "no restart: what was refused would be refused again")) << run.err;
  EXPECT_EQ(report().at("failure").at("kind"), "refused");
  EXPECT_FALSE(std::filesystem::exists(path("saved/step-000040")));
}

TEST_F(TrainingFiles, WhoCouldNotSaveIsNamedByWhicheverRankEndsFirst) {
  // Only rank 0 makes folders; the others learn of its error and, with nothing to tidy up, often end before it.
  std::filesystem::create_directories(path("saved"));
  std::ofstream(path("saved/step-000001.partial")) << "a plain file where a folder is to be";
  std::ofstream(path("saved/step-000001")) << "a plain file where a folder is to be";
  for (int i = 0; i < 5; ++i) {
    const Finished run = fresh({"--steps", "1", "--save", path("saved")});
    EXPECT_EQ(run.end.code, 1) << run.describe();
    EXPECT_EQ(report().at("failure").at("rank"), 0) << run.describe();
    EXPECT_EQ(report().at("failure").at("kind"), "refused");
    EXPECT_TRUE(holds(run.err, "rank 0 refused a request")) << run.err;
  }
}

TEST_F(TrainingFiles, ALimitOfFilesThatMemoryDoesNotFitIsNamed) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Finished run = fresh({"--steps", "1"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_TRUE(holds(run.err, "ulimit -f: files may have 1048576 bytes")) << run.err;
}

TEST_F(TrainingFiles, APromptOfOneTokenIsAPrompt) {
  std::ofstream(path("one.bin"), std::ios::binary) << std::string("a\0", 2);
  const auto tokens = [&](const std::string& prompt) {
    const Finished run =
        run_tsprun({"generate", "--config", "nano", "--prompt", prompt, "--tokens", "3", "--json", path("report.json")});
    EXPECT_EQ(run.end.code, 0) << run.describe();
    return std::pair(report().at("generate").at("tokens"), run.err);
  };
  EXPECT_EQ(tokens(path("one.bin")).first, tokens("a").first);
  std::ofstream(path("one.u32"), std::ios::binary) << std::string("a\0\0\0", 4);
  EXPECT_EQ(tokens(path("one.u32")).first, tokens("a").first);
  EXPECT_TRUE(holds(tokens(path("two.bin")).second, "there is no such file; it is taken as text"));
}

TEST_F(TrainingFiles, TheSameIdsTrainTheSameInEveryForm) {
  std::string narrow;
  std::string wide;
  std::string widest;
  for (int i = 0; i < 200; ++i) {
    const char id = static_cast<char>(i * 7 % 251);
    narrow += {id, '\0'};
    wide += {id, '\0', '\0', '\0'};
    widest += {id, '\0', '\0', '\0', '\0', '\0', '\0', '\0'};
  }
  const std::string dictionary = "{'descr': '<i8', 'fortran_order': False, 'shape': (200,), }" + std::string(58, ' ') + "\n";
  std::ofstream(path("ids.bin"), std::ios::binary) << narrow;
  std::ofstream(path("ids.u32"), std::ios::binary) << wide;
  std::ofstream(path("ids.npy"), std::ios::binary)
      << std::string("\x93NUMPY\x01\0", 8) << static_cast<char>(dictionary.size()) << '\0' << dictionary << widest;
  const auto losses = [&](const char* file) {
    const Finished run = run_tsprun({"train", "-n", "2", "--data", path(file), "--config", "nano", "--seq", "16", "--steps", "2",
                                     "--json", path("report.json")});
    EXPECT_EQ(run.end.code, 0) << run.describe();
    std::vector<double> found;
    const json written = report();
    for (const json& step : written.at("steps")) found.push_back(step.at("loss").get<double>());
    return found;
  };
  const std::vector<double> expected = losses("ids.bin");
  EXPECT_EQ(losses("ids.u32"), expected);
  EXPECT_EQ(losses("ids.npy"), expected);
}

}  // namespace
}  // namespace tsprun::detail::test::training_files_test
