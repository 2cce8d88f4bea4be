// The theory from the command line against runs: what `plan` says of a layout is what `train` measures under it.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::plan_test {
namespace {

using nlohmann::json;

std::vector<std::string> plus(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// `plan` of a layout beside `train` under it: the same bytes received, the same memory but for what depends on the text, a peak
/// within 5%.
void expect_plan_is_what_training_measures(const std::vector<std::string>& model, const std::string& where) {
  const TemporaryDirectory folder;
  {
    std::ofstream text(folder.path("text.txt"));
    for (int i = 0; i < 4000; ++i) text << "number " << i * 7919 % 4001 << '\n';
  }
  const Finished trained =
      run_tsprun(plus({"train", "--data", folder.path("text.txt"), "--steps", "2", "--json", folder.path("train.json")}, model));
  ASSERT_EQ(trained.end.code, 0) << where << ": " << trained.describe();
  const Finished planned = run_tsprun(plus({"plan", "--json", folder.path("plan.json")}, model));
  ASSERT_EQ(planned.end.code, 0) << where << ": " << planned.describe();

  const json ranks = read_json(folder.path("train.json")).at("per_rank");
  const json plan = read_json(folder.path("plan.json")).at("plan").at(0);
  ASSERT_EQ(plan.at("layout"), read_json(folder.path("train.json")).at("layout")) << where;
  for (const char* pass : {"forward", "backward"}) {
    for (const char* purpose : {"weights", "kv", "activations", "gradients", "head"}) {
      std::uint64_t sum = 0;
      for (const json& rank : ranks) sum += rank.at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>();
      EXPECT_EQ(plan.at("traffic_bytes").at(pass).at(purpose).at("received"), sum) << purpose << " " << pass << ", " << where;
    }
  }
  json fullest = ranks.at(0).at("memory_peak_bytes");
  for (const json& rank : ranks) {
    if (rank.at("memory_peak_bytes").at("total") > fullest.at("total")) fullest = rank.at("memory_peak_bytes");
  }
  // How many rows of the embedding come from where depends on the text: a buffer of theirs is all that may differ.
  const auto certain = [](json memory) {
    for (const char* category : {"communication", "total"}) memory.erase(category);
    return memory;
  };
  EXPECT_TRUE(std::any_of(
      ranks.begin(), ranks.end(),
      [&](const json& rank) { return certain(rank.at("memory_peak_bytes")) == certain(plan.at("memory_peak_bytes")); }))
      << where << ": no rank holds exactly " << plan.at("memory_peak_bytes");
  EXPECT_NEAR(plan.at("memory_peak_bytes").at("total").get<double>() / fullest.at("total").get<double>(), 1, 0.05) << where;
}

const std::vector<std::string> kMicro = {"--config", "micro",       "--batch",   "2",         "--seq",
                                         "500",      "--recompute", "selective", "--threads", "1"};

TEST(PlanCommand, AgreesWithWhatTrainingUnderTspMeasures) {
  expect_plan_is_what_training_measures(plus({"--layout", "tsp=4"}, kMicro), "tsp=4");
}

/// Models so small that staging is a tenth of what they hold.
TEST(PlanCommand, AgreesWithWhatTrainingSmallModelsMeasures) {
  for (const char* config : {"nano", "nano-gpt2"}) {
    for (const char* layout : {"tsp=8", "tp=4", "sp=4", "zero3=4", "tp=2,tsp=2"}) {
      expect_plan_is_what_training_measures({"--config", config, "--layout", layout, "--threads", "1"},
                                            std::string(config) + " " + layout);
    }
  }
}

TEST(PlanCommand, AgreesWithWhatTrainingUnderOtherLayoutsMeasures) {
  const std::vector<std::vector<std::string>> layouts = {{"tp=4"},
                                                         {"tp=4", "--tp", "sequence"},
                                                         {"sp=3"},
                                                         {"sp=4", "--sp", "ring"},
                                                         {"sp=2", "--sp", "ulysses"},
                                                         {"zero3=3"},
                                                         {"tp=2,sp=2"},
                                                         {"sp=2,tp=2", "--tp", "sequence", "--sp", "ulysses"},
                                                         {"tp=2,tsp=2"},
                                                         {"dp=2,tsp=2"},
                                                         {"dp=2,tp=2"}};
  for (const std::vector<std::string>& layout : layouts) {
    std::string where;
    for (const std::string& word : layout) where += word + " ";
    expect_plan_is_what_training_measures(plus(plus({"--layout"}, layout), kMicro), where);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::plan_test
