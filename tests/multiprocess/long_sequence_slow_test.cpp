// Long sequences: memory grows with their length, not with its square, and the loss is that of one rank.
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::long_sequence_slow_test {
namespace {

using nlohmann::json;

json train(const TextData& data, const std::string& layout, std::size_t sequence) {
  const std::string report = data.path("report.json");
  const Finished run = run_tsprun({"train", "--layout", layout, "--config", data.path("config.json"), "--data", data.text(),
                                   "--seq", std::to_string(sequence), "--steps", "1", "--timeout", "120", "--json", report},
                                  {}, 300);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return read_json(report);
}

double loss(const json& report) { return report.at("steps").at(0).at("loss").get<double>(); }

std::uint64_t peak(const json& report, const std::string& category) {
  return report.at("per_rank")[0].at("memory_peak_bytes").at(category).get<std::uint64_t>();
}

TEST(LongSequence, TakesMemoryInProportionToItsLength) {
  const TextData data(20000);
  std::ofstream(data.path("config.json")) << json{{"model_type", "llama"},       {"hidden_size", 32},
                                                  {"num_hidden_layers", 1},      {"num_attention_heads", 4},
                                                  {"num_key_value_heads", 2},    {"intermediate_size", 64},
                                                  {"vocab_size", 256},           {"max_position_embeddings", 16384},
                                                  {"hidden_act", "silu"},        {"rms_norm_eps", 1e-5},
                                                  {"tie_word_embeddings", true}, {"rope_theta", 10000.0}}
                                                 .dump();
  const json half = train(data, "tsp=4", 8192);
  const json whole = train(data, "tsp=4", 16384);
  EXPECT_EQ(peak(whole, "activations"), 2 * peak(half, "activations"));
  // The one layer at work has rows of the length; what its kernels need besides has not.
  EXPECT_LT(peak(whole, "workspace"), 2 * peak(half, "workspace"));
  EXPECT_LT(peak(whole, "total"), 2 * peak(half, "total"));
  EXPECT_NEAR(loss(whole), loss(train(data, "tsp=1", 16384)), 2e-5);
}

}  // namespace
}  // namespace tsprun::detail::test::long_sequence_slow_test
