// The theory from the command line against a run: what `plan` says of a layout is what `train` measures under it.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace tsp::test {
namespace {

using nlohmann::json;

TEST(PlanCommand, AgreesWithWhatTrainingMeasures) {
  const TemporaryDirectory folder;
  {
    std::ofstream text(folder.path("text.txt"));
    for (int i = 0; i < 4000; ++i) text << "number " << i * 7919 % 4001 << '\n';
  }
  const std::vector<std::string> model = {"--layout", "tsp=4", "--config",    "micro",     "--batch",   "2",
                                          "--seq",    "500",   "--recompute", "selective", "--threads", "1"};
  std::vector<std::string> training = {"train", "--data", folder.path("text.txt"),  "--steps",
                                       "2",     "--json", folder.path("train.json")};
  training.insert(training.end(), model.begin(), model.end());
  const Finished trained = run_tsprun(training);
  ASSERT_EQ(trained.end.code, 0) << trained.describe();
  std::vector<std::string> planning = {"plan", "--json", folder.path("plan.json")};
  planning.insert(planning.end(), model.begin(), model.end());
  const Finished planned = run_tsprun(planning);
  ASSERT_EQ(planned.end.code, 0) << planned.describe();

  const json ranks = read_json(folder.path("train.json")).at("per_rank");
  const json plan = read_json(folder.path("plan.json")).at("plan").at(0);
  ASSERT_EQ(plan.at("layout"), json({{"tsp", 4}}));
  for (const char* pass : {"forward", "backward"}) {
    for (const char* purpose : {"weights", "kv", "activations", "gradients", "head"}) {
      std::uint64_t sum = 0;
      for (const json& rank : ranks) sum += rank.at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>();
      EXPECT_EQ(plan.at("traffic_bytes").at(pass).at(purpose).at("received"), sum) << purpose << " " << pass;
    }
  }
  json fullest = ranks.at(0).at("memory_peak_bytes");
  for (const json& rank : ranks) {
    if (rank.at("memory_peak_bytes").at("total") > fullest.at("total")) fullest = rank.at("memory_peak_bytes");
  }
  for (const char* category : {"parameters", "gradients", "optimizer", "activations"})
    EXPECT_EQ(plan.at("memory_peak_bytes").at(category), fullest.at(category)) << category;
  EXPECT_NEAR(plan.at("memory_peak_bytes").at("total").get<double>() / fullest.at("total").get<double>(), 1, 0.05);
}

}  // namespace
}  // namespace tsp::test
