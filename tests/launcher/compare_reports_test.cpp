// How two reports differ: held against differences that were made by hand.
#include "launcher/commands/compare_reports.h"

#include "tests/launcher/answer.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::compare_reports_test {
namespace {

using nlohmann::ordered_json;

/// A training's report, as short as it can be.
ordered_json training() {
  return ordered_json::parse(R"({
    "command": "train",
    "origin": {"version": "0.2.0", "host": "a", "words": ["train", "-q"], "options": [{"name": "--lr", "value": "0.001"}, {"name": "--seed", "value": "0"}]},
    "steps": [{"step": 1, "loss": 5.5, "seconds": 0.5}, {"step": 2, "loss": 5.0, "seconds": 0.2},
              {"step": 3, "loss": 4.5, "seconds": 0.4}],
    "per_rank": [{"rank": 0, "memory": 100}],
    "failure": null})");
}

std::vector<std::string> whats(const std::vector<ReportDifference>& differences) {
  std::vector<std::string> result;
  for (const ReportDifference& each : differences) result.push_back(each.what);
  return result;
}

TEST(CompareReports, TheSameReportDoesNotDiffer) { EXPECT_TRUE(report_differences(training(), training()).empty()); }

TEST(CompareReports, ListsWhatDiffersByItsPlaceAndStepsByTheirMedianAndLosses) {
  ordered_json other = training();
  other["origin"]["options"][0]["value"] = "0.003";
  other["origin"]["options"].insert(other["origin"]["options"].begin(),
                                    ordered_json::object({{"name", "--clip"}, {"value", "1"}}));
  other["steps"][0]["seconds"] = 0.9;  // not the median
  other["steps"][2]["loss"] = 4.0;
  for (const int i : {0, 1, 2}) other["steps"][static_cast<std::size_t>(i)]["tokens_per_s"] = 100 * (3 - i);
  other["per_rank"][0]["memory"] = 150;
  other["origin"]["words"] = ordered_json::array({"train"});
  other.erase("failure");  // which is null
  const std::vector<ReportDifference> differences = report_differences(training(), other);
  EXPECT_EQ(whats(differences),
            (std::vector<std::string>{"origin.words", "origin.options.--lr", "steps.last_loss", "per_rank[0].memory",
                                      "origin.options.--clip", "steps.median_tokens_per_s"}));
  EXPECT_EQ(differences[2].first, 4.5);
  EXPECT_EQ(differences[2].second, 4.0);
  const std::vector<std::string> lines = differences_table(differences, "a.json", "b.json").lines();
  ASSERT_EQ(lines.size(), 7U) << "a line for each";
  EXPECT_NE(lines[1].find("train -q → train"), std::string::npos) << lines[1];
  EXPECT_NE(lines[4].find("100 → 150 (+50.0 %)"), std::string::npos) << lines[4];
}

/// What a stranger's report holds neither commands a terminal nor takes more than a line.
TEST(CompareReports, TextsAreShownSafeAndCut) {
  ordered_json one = training();
  ordered_json other = training();
  one["text"] = "first\nsecond\x1b[2J" + std::string(5000, 'x');
  other["text"] = "";
  other["\x1b[2J"] = 1;
  const std::vector<std::string> lines = differences_table(report_differences(one, other), "a\x1b.json", "b.json").lines();
  ASSERT_EQ(lines.size(), 3U);
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find_first_of("\x1b\n"), std::string::npos) << line;
    EXPECT_LT(line.size(), 500U);
  }
}

TEST(CompareReports, EachReportSaysWhichRunItIsOf) {
  const test::Answer answer = test::answer_of("plan", {"--config", "nano", "-n", "2", "--batch", "3"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const nlohmann::json& run = answer.report.at("origin");
  EXPECT_FALSE(run.at("version").get<std::string>().empty());
  const std::string began = run.at("began");
  ASSERT_EQ(began.size(), std::string("2026-03-01T09:30:00Z").size()) << began;
  EXPECT_EQ(began.substr(10, 1) + began.substr(19), "TZ") << began;
  EXPECT_GE(run.at("cores"), 1);
  EXPECT_FALSE(run.at("host").get<std::string>().empty());
  EXPECT_EQ(run.at("words").at(0), "plan");
  const auto has = [&](const char* name, const char* value) {
    return std::ranges::count(run.at("options"), nlohmann::json{{"name", name}, {"value", value}}) == 1;
  };
  EXPECT_TRUE(has("--batch", "3")) << run.at("options").dump(1);
  EXPECT_TRUE(has("--dtype", "f32")) << "a default is an option of the run, too: " << run.at("options").dump(1);
}

TEST(CompareReports, TheCommandReadsTwoFilesAndRunsNothing) {
  const detail::test::TemporaryFolder folder;
  ordered_json other = training();
  other["steps"][2]["seconds"] = 0.6;  // so that the median is 0.5
  folder.write("a.json", training().dump());
  folder.write("b.json", other.dump());
  folder.write("c.json", "[]");
  folder.write("deep.json", R"({"command":"train","a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  folder.write("half.json", R"({"command":"train")");
  ordered_json middle = training();
  middle["steps"][1]["loss"] = 4.9;  // neither the first nor the last
  folder.write("middle.json", middle.dump());
  const std::string a = (folder / "a.json").string();
  const std::string b = (folder / "b.json").string();
  const test::Answer answer = test::answer_of("compare", {a, b});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(std::ranges::count(answer.out, '\n'), 2) << answer.out;
  EXPECT_NE(answer.out.find("steps.median_seconds"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("+25.0 %"), std::string::npos) << answer.out;
  EXPECT_EQ(answer.report.at("differences").size(), 1U);
  EXPECT_NE(test::answer_of("compare", {a, a}).out.find("say the same"), std::string::npos);
  const std::string agree = test::answer_of("compare", {a, (folder / "middle.json").string()}).out;
  EXPECT_NE(agree.find("agree in all that is compared"), std::string::npos) << agree;
  for (const auto& [words, what] :
       {std::pair{std::vector{a}, "two reports are compared"},
        {std::vector{a, (folder / "c.json").string()}, "it is no report"},
        {std::vector{a, (folder / "d.json").string()}, "d.json"},
        {std::vector{a, (folder / "deep.json").string()}, "nested"},
        {std::vector{a, (folder / "half.json").string()}, "half.json"},
        {std::vector{a, b, std::string("--steps"), std::string("3")}, "--steps 3: two reports"},
        {std::vector{a, b, std::string("-n"), std::string("3")}, "-n 3: two reports"},
        {std::vector{a, b, std::string("--layouts"), std::string("tsp=2")}, "--layouts tsp=2: two reports"},
        {std::vector<std::string>{}, "--layouts SPEC[;SPEC...] is missing, or two reports"}}) {
    const test::Answer refused = test::answer_of("compare", words);
    EXPECT_EQ(refused.code, 2) << what << refused.err;
    EXPECT_NE(refused.err.find(what), std::string::npos) << refused.err;
  }
}

}  // namespace
}  // namespace tsprun::detail::launcher::compare_reports_test
