// The promises about memory, on the command line: the audit equals the forecast over several steps on every transport; a budget
// as large as the audit's peak suffices, to the byte; what `plan` says to fit does.
#include "tests/support/block_files.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test::memory_budget_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string joined(const Arguments& arguments) {
  std::string text;
  for (const std::string& argument : arguments) text += argument + " ";
  return text;
}

json run_for_report(const TextData& data, const Arguments& arguments) {
  const std::string report = data.path("report.json");
  const Finished run = run_tsprun(arguments + Arguments{"--json", report});
  EXPECT_EQ(run.end.code, 0) << joined(arguments) << run.describe();
  return read_json(report);
}

void expect_memory_as_forecast(const json& report, const std::string& where) {
  const json& measured = report.at("per_rank");
  ASSERT_GT(measured.size(), 1U);
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    EXPECT_EQ(measured[rank].at("memory_peak_bytes"), report.at("theory").at("per_rank")[rank].at("memory_peak_bytes"))
        << where << "rank " << rank;
  }
}

std::uint64_t peak_of(const json& report) {
  std::uint64_t most = 0;
  for (const json& rank : report.at("per_rank"))
    most = std::max(most, rank.at("memory_peak_bytes").at("total").get<std::uint64_t>());
  return most;
}

TEST(Memory, OfRunsOfSeveralStepsIsAsForecastOnEveryTransport) {
  const TextData data(3000);
  const Arguments train = {"train", "--config", "nano", "--data", data.text(), "--seq", "61", "--batch", "4", "--steps", "4"};
  const std::vector<Arguments> layouts = {
      {"--layout", "tsp=4"}, {"--layout", "tp=2,sp=2"}, {"--layout", "zero3=4"}, {"--layout", "dp=2,tsp=2"}};
  for (const Arguments& transport : {Arguments{}, Arguments{"--intra", "tcp"}, Arguments{"--nodes", "2"}}) {
    for (const Arguments& layout : layouts)
      expect_memory_as_forecast(run_for_report(data, train + layout + transport), joined(layout + transport));
  }
}

TEST(Memory, OfOtherCommandsIsAsForecastOverSockets) {
  const TextData data(3000);
  const Arguments sockets = {"--layout", "tsp=2", "--intra", "tcp", "--config", "nano"};
  expect_memory_as_forecast(
      run_for_report(data, Arguments{"eval", "--data", data.text(), "--seq", "250", "--batch", "3"} + sockets), "eval ");
  expect_memory_as_forecast(
      run_for_report(data, Arguments{"generate", "--prompt", "Once upon a time", "--tokens", "5"} + sockets), "generate ");
}

TEST(Memory, ABudgetOfThePeakSufficesAndPlanSaysSo) {
  const TextData data(3000);
  const Arguments shape = {"--config", "nano", "--seq", "72", "--batch", "4"};
  const Arguments train = Arguments{"train", "--data", data.text(), "--steps", "2"} + shape;
  std::mt19937 random(23);
  std::uniform_real_distribution<double> around(0.9, 1.1);
  for (const Arguments& layout : {Arguments{"--layout", "tsp=4"}, Arguments{"--layout", "sp=4", "--sp", "ulysses"},
                                  Arguments{"--layout", "zero3=4", "--intra", "tcp"}}) {
    const std::uint64_t peak = peak_of(run_for_report(data, train + layout));
    const auto other = static_cast<std::uint64_t>(static_cast<double>(peak) * around(random));
    for (const std::uint64_t budget : {peak, peak - 1, other}) {
      const std::string where = fmt::format("{} budget {} of peak {}", joined(layout), budget, peak);
      const Arguments limit = {"--mem-per-rank", std::to_string(budget)};
      const Finished run = run_tsprun(train + layout + limit);
      EXPECT_EQ(run.end.code == 0, budget >= peak) << where << run.describe();  // refused, or failed in a later step
      const json planned = run_for_report(data, Arguments{"plan"} + shape + layout + limit).at("plan").at(0);
      const std::string why = planned.at("why").get<std::string>();
      const bool fits = planned.at("fits").get<bool>();
      const bool depends_on_ids = why.find("where all tokens") != std::string::npos;
      EXPECT_EQ(fits, budget >= peak && !depends_on_ids) << where << " " << why;
    }
  }
}

/// Runs a command with as many bytes as its forecast has, and with one byte less, which is refused before a rank starts by an
/// error that names what works.
void expect_the_forecast_to_be_the_least_budget(const TextData& data, const Arguments& command) {
  std::uint64_t need = 0;
  const json report = run_for_report(data, command);
  for (const json& rank : report.at("theory").at("per_rank"))
    need = std::max(need, rank.at("memory_peak_bytes").at("total").get<std::uint64_t>());
  ASSERT_GT(need, 0U) << joined(command);
  const auto with = [&](const std::string& budget) {
    return run_tsprun(command + Arguments{"--mem-per-rank", budget, "--log-level", "debug"});
  };
  const Finished enough = with(std::to_string(need));
  EXPECT_EQ(enough.end.code, 0) << joined(command) << "needs " << need << enough.describe();
  EXPECT_NE(enough.err.find(" cores"), std::string::npos) << "no line tells that ranks start\n" << enough.err;
  const Finished less = with(std::to_string(need - 1));
  EXPECT_EQ(less.end.code, 2) << joined(command) << "needs " << need << less.describe();
  EXPECT_EQ(less.err.find(" cores"), std::string::npos) << joined(command) << "ranks have started\n" << less.err;
  EXPECT_NE(less.err.find(fmt::format("needs {} B", need)), std::string::npos) << joined(command) << less.err;
  const std::string works = fmt::format("{}K", (need + 1023) / 1024);
  EXPECT_NE(less.err.find(fmt::format("try --mem-per-rank {};", works)), std::string::npos) << joined(command) << less.err;
  const Finished proposed = with(works);
  EXPECT_EQ(proposed.end.code, 0) << joined(command) << proposed.describe();
}

TEST(Memory, OfGenerateIsTheLeastBudgetToTheByte) {
  const TextData data(10);
  std::string prompt;
  for (int i = 0; i < 12; ++i) prompt += "Once upon a time ";
  std::ofstream(data.path("prompts.txt")) << prompt << "\n" << prompt << "and once more\n";  // the second is the second replica's
  const Arguments one = {"generate", "--config", "nano", "--prompt", prompt, "--tokens", "30"};
  const Arguments several = {"generate", "--config", "nano", "--prompts", data.path("prompts.txt"), "--tokens", "30"};
  for (const Arguments& command :
       {one + Arguments{"--layout", "tsp=2"}, one + Arguments{"--layout", "tp=2", "--intra", "tcp"},
        one + Arguments{"--layout", "sp=2", "--dtype", "f64"}, several + Arguments{"--layout", "tp=2,tsp=2", "--nodes", "2"},
        several + Arguments{"--layout", "dp=2"}}) {
    expect_the_forecast_to_be_the_least_budget(data, command);
  }
}

/// A wide residual and little else, so that rows of the embedding are the peak; the rank that owns byte 0 gives one to every
/// token of the second replica, to fewer of the first.
TEST(Memory, OfReplicasIsThatOfTheLargest) {
  const TextData data(10);
  std::string text(1, '\0');
  for (int i = 0; i < 1024; ++i) text += static_cast<char>(i * 37 % 256);
  text += std::string(1024, '\0');
  std::ofstream(data.path("unlike.txt"), std::ios::binary) << text;
  std::ofstream(data.path("wide.json"))
      << R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,)"
         R"("num_key_value_heads": 2, "head_dim": 4, "vocab_size": 256, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,)"
         R"("rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"})";
  for (const char* layout : {"dp=2,tsp=2", "dp=2,sp=2"}) {
    expect_the_forecast_to_be_the_least_budget(
        data, {"eval", "--config", data.path("wide.json"), "--data", data.path("unlike.txt"), "--layout", layout, "--seq", "256",
               "--batch", "8"});
  }
}

TEST(Memory, OfABlockIsTheLeastBudgetToTheByte) {
  const TextData data(10);
  const Arguments block = BlockFiles(data).command();
  for (const Arguments& more :
       {Arguments{"--layout", "tsp=2", "--backward"}, Arguments{"--layout", "tp=2", "--backward", "--intra", "tcp"},
        Arguments{"--layout", "sp=2", "--backward", "--dtype", "bf16"},
        Arguments{"--layout", "zero3=2", "--backward", "--nodes", "2"}}) {
    expect_the_forecast_to_be_the_least_budget(data, block + more);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::memory_budget_test
