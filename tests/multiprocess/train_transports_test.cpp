// Training over every way that bytes can go on one machine: the same bits.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test::train_transports_test {
namespace {

using nlohmann::json;

/// Losses and gradient norms of all steps. JSON holds doubles to the last bit.
json curve(const TemporaryDirectory& folder, const std::vector<std::string>& how) {
  const std::string report = folder.path("report.json");
  std::vector<std::string> arguments = {"train",  "--config",          "nano",  "--layout", "tsp=4",
                                        "--data", folder.path("text"), "--seq", "50",       "--batch",
                                        "2",      "--steps",           "5",     "--json",   report};
  arguments.insert(arguments.end(), how.begin(), how.end());
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  json steps = json::array();
  const json whole = read_json(report);
  for (const json& step : whole.at("steps")) steps.push_back({step.at("loss"), step.at("grad_norm")});
  return steps;
}

TEST(TrainOverTransports, IsBitIdentical) {
  const TemporaryDirectory folder;
  std::mt19937 random(3);
  std::ofstream text(folder.path("text"), std::ios::binary);
  for (int i = 0; i < 3000; ++i) text.put(static_cast<char>(random() % 256));
  text.close();
  const json shm = curve(folder, {});
  ASSERT_EQ(shm.size(), 5U);
  EXPECT_EQ(curve(folder, {}), shm) << "from run to run";
  EXPECT_EQ(curve(folder, {"--intra", "tcp"}), shm);
  EXPECT_EQ(curve(folder, {"--nodes", "2"}), shm);
  EXPECT_EQ(curve(folder, {"--nodes", "4"}), shm);
  EXPECT_EQ(curve(folder, {"--threads", "3"}), shm);
}

}  // namespace
}  // namespace tsprun::detail::test::train_transports_test
