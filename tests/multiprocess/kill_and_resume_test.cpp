// Training that is killed at random moments, a rank of it or tsprun itself, goes on from its last checkpoint with the curve of a
// run that nothing struck, bit by bit, and ends with the same files.
#include "tests/support/oracle.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::test::kill_and_resume_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

constexpr std::uint64_t kSeed = 20;
constexpr std::uint64_t kKills = 8;
constexpr std::uint64_t kSteps = 12;

std::string step_folder(std::uint64_t step) { return fmt::format("step-{:06}", step); }

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

class KillAndResume : public ::testing::Test {
 protected:
  Arguments command(const std::string& save, const Arguments& more) const {
    Arguments arguments = {tsprun_path(), "train", "-n", "2", "--data", data_.text(), "--json", path("report.json")};
    arguments.insert(arguments.end(), {"--steps", std::to_string(kSteps), "--save", path(save), "--save-every", "1"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Arguments fresh(const std::string& save) const { return command(save, {"--config", "nano", "--batch", "2", "--seq", "64"}); }
  std::string path(const std::string& name) const { return data_.path(name); }
  json report() const { return read_json(path("report.json")); }

 private:
  TextData data_{20000};
};

/// The newest step that is saved whole; 0: none.
std::uint64_t last_saved(const std::string& folder) {
  std::uint64_t last = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    if (std::filesystem::exists(folder + "/" + step_folder(step))) last = step;
  }
  return last;
}

/// Returns what the last checkpoint's manifest says, but for which run it was.
json facts_of(const std::string& folder) {
  json manifest = read_json(fmt::format("{}/{}/manifest.json", folder, step_folder(kSteps)));
  manifest.erase("run");
  manifest.erase("checksum");
  return manifest;
}

TEST_F(KillAndResume, GoesOnWithTheSameBitsWheneverItWasKilled) {
  const Finished whole = run_program(fresh("whole"));
  ASSERT_EQ(whole.end.code, 0) << whole.describe();
  const json curve = report().at("steps");
  ASSERT_EQ(curve.size(), kSteps);
  const auto step_us = static_cast<std::uint64_t>(whole.end.seconds * 1e6 / kSteps);

  std::uint64_t went_on = 0;
  for (std::uint64_t i = 0; i < kKills; ++i) {
    const std::string save = fmt::format("struck-{}", i);
    // So long after so many checkpoints; every other time it is tsprun that dies, and its ranks with it.
    const std::uint64_t saved = 1 + mix(kSeed, i) % (kSteps - 5);
    const std::uint64_t later_us = mix(kSeed, i, 1) % step_us;  // the start counts in it: longer than a step
    const bool all = i % 2 == 0;
    SCOPED_TRACE(fmt::format("kill {} of {}: {} {} us after {} was saved", i, kKills, all ? "tsprun" : "a rank", later_us,
                             step_folder(saved)));
    {
      Process job(fresh(save));
      ASSERT_TRUE(job.wait_for_output(step_folder(saved))) << job.out() << job.err();
      ::usleep(static_cast<useconds_t>(later_us));
      std::vector<pid_t> victims = job.marked();
      if (all) victims = {job.pid()};
      else std::erase(victims, job.pid());
      // On a busy machine it may be over already: then nothing is struck, and its files are judged all the same.
      if (!victims.empty()) ::kill(victims[mix(kSeed, i, 2) % victims.size()], SIGKILL);
      EXPECT_TRUE(job.wait().ended);
      EXPECT_TRUE(job.wait_until_nothing_is_left(5));
    }
    const std::uint64_t before = last_saved(path(save));
    ASSERT_GE(before, saved);
    if (before < kSteps) {
      ++went_on;
      const Finished resumed = run_program(command(save, {"--resume", path(save)}));
      ASSERT_EQ(resumed.end.code, 0) << resumed.describe();
      const json steps = report().at("steps");
      ASSERT_EQ(steps.size(), kSteps - before);
      for (std::size_t k = 0; k < steps.size(); ++k) {
        const json& expected = curve.at(before + k);
        EXPECT_EQ(steps[k].at("step"), expected.at("step"));
        EXPECT_EQ(steps[k].at("loss"), expected.at("loss")) << "step " << before + k + 1;
        EXPECT_EQ(steps[k].at("grad_norm"), expected.at("grad_norm")) << "step " << before + k + 1;
      }
    }
    for (const char* file : {"model.safetensors", "optimizer.m.safetensors", "optimizer.v.safetensors"}) {
      const std::string name = fmt::format("{}/{}", step_folder(kSteps), file);
      EXPECT_TRUE(bytes_of(path(fmt::format("{}/{}", save, name))) == bytes_of(path(fmt::format("whole/{}", name)))) << name;
    }
    EXPECT_EQ(facts_of(path(save)), facts_of(path("whole")));
    std::filesystem::remove_all(path(save));
  }
  EXPECT_GE(went_on, kKills / 2);
}

}  // namespace
}  // namespace tsprun::detail::test::kill_and_resume_test
