// The promises about memory, on the command line: the audit equals the forecast over several steps on every transport; a budget
// as large as the audit's peak suffices, to the byte; what `plan` says to fit does.
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace tsprun::detail::test::memory_budget_test
