// A job may be as slow as it likes: eight ranks on one core, whose sequences are long and whose deadline is short, are never
// taken for dead.
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::slow_but_living_slow_test {
namespace {

using nlohmann::json;

/// Trains with eight ranks on one core and a deadline of 2 s. Returns the report.
json train(const TextData& data, const std::vector<std::string>& more) {
  const std::string report = data.path("report.json");
  std::vector<std::string> arguments = {"train", "--data", data.text(), "--timeout", "2", "--json", report};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Finished run = run_tsprun(arguments, {.environment = {}, .input = {}, .cores = 1}, 500);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return read_json(report);
}

class SlowButLiving : public ::testing::TestWithParam<const char*> {};

TEST_P(SlowButLiving, EightRanksOnOneCoreAreNotTakenForDead) {
  const TextData data(40000);
  const json report = train(data, {"--layout", GetParam(), "--config", "micro", "--seq", "1024", "--batch", "8", "--steps", "3"});
  EXPECT_EQ(report.at("steps").size(), 3U);
  EXPECT_TRUE(report.at("failure").is_null()) << report.at("failure");
}

INSTANTIATE_TEST_SUITE_P(Under, SlowButLiving, ::testing::Values("tsp=8", "tp=4,sp=2"),
                         [](const auto& test) { return test.index == 0 ? "Tsp" : "TpAndSp"; });

TEST(SlowButLivingJob, OfLongSequencesIsNotTakenForDead) {
  const TextData data(20000);
  std::ofstream(data.path("config.json")) << json{{"model_type", "llama"},       {"hidden_size", 64},
                                                  {"num_hidden_layers", 2},      {"num_attention_heads", 8},
                                                  {"num_key_value_heads", 2},    {"intermediate_size", 128},
                                                  {"vocab_size", 256},           {"max_position_embeddings", 16384},
                                                  {"hidden_act", "silu"},        {"rms_norm_eps", 1e-5},
                                                  {"tie_word_embeddings", true}, {"rope_theta", 10000.0}}
                                                 .dump();
  const json report = train(data, {"--layout", "tsp=8", "--config", data.path("config.json"), "--seq", "16384", "--steps", "1"});
  EXPECT_TRUE(report.at("failure").is_null()) << report.at("failure");
}

}  // namespace
}  // namespace tsprun::detail::test::slow_but_living_slow_test
