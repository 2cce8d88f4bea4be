// `plan --paper`: the paper's figures, printed and exact, and its equations.
#include "launcher/plan/paper_figures.h"
#include "launcher/plan/paper_tables.h"
#include "layers/layout/zigzag.h"
#include "tests/launcher/answer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::plan_paper_test {
namespace {

using nlohmann::json;

using test::Answer;
using test::row;

Answer plan(const std::vector<std::string>& words) { return test::answer_of("plan", words); }

class Paper : public testing::Test {
 protected:
  static const json& figures() {
    static const json all = paper_figures_json();
    return all;
  }
};

TEST_F(Paper, Figure1) {
  const std::map<int, std::vector<std::pair<std::string, double>>> table = {
      {8192, {{"DP", 162}, {"TP", 50}, {"SP", 132.25}, {"TP2+SP4", 72.5}, {"TSP", 20.25}}},
      {65536, {{"DP", 400}, {"TP", 288}, {"SP", 162}, {"TP2+SP4", 132}, {"TSP", 50}}}};
  for (const auto& [S, columns] : table) {
    for (const auto& [scheme, gibibytes] : columns) {
      const json& found = row(figures().at("fig1"), {{"seq", S}, {"scheme", scheme}});
      EXPECT_DOUBLE_EQ(found.at("printed").get<double>() / (1 << 30), gibibytes) << scheme << " at " << S;
    }
  }
}

TEST_F(Paper, Figure5aPrintedAndExact) {
  const std::map<int, std::vector<std::pair<std::string, double>>> table = {
      {8192, {{"TP", .2349}, {"SP", .1174}, {"TP2+SP4", .0839}, {"TSP", .6040}}},
      {32768, {{"TP", .9395}, {"SP", .4698}, {"TP2+SP4", .3355}, {"TSP", .9563}}},
      {131072, {{"TP", 3.7581}, {"SP", 1.8790}, {"TP2+SP4", 1.3422}, {"TSP", 2.3656}}}};
  const std::map<int, double> exact_tsp = {{8192, .5872}, {32768, .9395}, {131072, 2.3488}};
  for (const auto& [S, columns] : table) {
    for (const auto& [scheme, gigabytes] : columns) {
      const json& found = row(figures().at("fig5"), {{"seq", S}, {"scheme", scheme}});
      EXPECT_NEAR(found.at("printed").get<double>() / 1e9, gigabytes, 5e-5) << scheme << " at " << S;
      const double counted = found.at("counted").get<double>() / 1e9;
      EXPECT_NEAR(counted, scheme == "TSP" ? exact_tsp.at(S) : gigabytes, 5e-5) << scheme << " at " << S;
    }
  }
}

TEST_F(Paper, Figure6) {
  for (const auto& [h, ratio] : {std::pair{2048, .759}, {4096, 1.018}, {5120, 1.147}, {8192, 1.536}})
    EXPECT_NEAR(row(figures().at("fig6"), {{"hidden", h}}).at("ratio_printed").get<double>(), ratio, 5e-4);
}

TEST_F(Paper, Figure7PrintedAndExact) {
  for (const auto& [S, ratio] : {std::pair{16384, 1.536}, {32768, 1.018}, {65536, .759}, {131072, .629}})
    EXPECT_NEAR(row(figures().at("fig7"), {{"batch", 1}, {"seq", S}}).at("printed").get<double>(), ratio, 5e-4);
  for (const json& each : figures().at("fig7")) {
    const double tokens = each.at("batch").get<double>() * each.at("seq").get<double>();
    EXPECT_NEAR(each.at("printed").get<double>(), 0.5 + 4.142857 * 4096 / tokens, 1e-6);
    EXPECT_NEAR(each.at("counted").get<double>(), 0.5 + 4.0 * 4096 / tokens, 1e-12);
  }
}

TEST_F(Paper, Figure9StandsBesideOwnCounts) {
  for (const auto& [scheme, S, gigabytes] : {std::tuple{"TSP", 16384, 31.0},
                                             {"TSP", 131072, 38.8},
                                             {"TP", 16384, 31.5},
                                             {"TP", 131072, 70.0},
                                             {"TP4+SP2", 131072, 85.0},
                                             {"TP2+SP4", 131072, 140.0}}) {
    const json& found = row(figures().at("fig9"), {{"seq", S}, {"scheme", scheme}});
    EXPECT_DOUBLE_EQ(found.at("measured").get<double>(), gigabytes * 1e9);
    EXPECT_GT(found.at("counted").get<double>(), 0);
  }
  // What must hold for any program: TSP takes least, and grows least; at long sequences TP×SP with more tp takes less than with
  // less.
  const auto counted = [&](const char* scheme, int S) {
    return row(figures().at("fig9"), {{"seq", S}, {"scheme", scheme}}).at("counted").get<double>();
  };
  EXPECT_LT(counted("TSP", 16384), counted("TP", 16384));
  for (const char* other : {"TP", "TP4+SP2", "TP2+SP4"}) EXPECT_LT(counted("TSP", 131072), counted(other, 131072)) << other;
  EXPECT_LT(counted("TSP", 131072) - counted("TSP", 16384), counted("TP", 131072) - counted("TP", 16384));
  EXPECT_LT(counted("TP4+SP2", 131072), counted("TP2+SP4", 131072));
}

TEST_F(Paper, BreakEvens) {
  struct Row {
    int g;
    double forward, both, both_bf16;  // 0: never
  };
  for (const Row& expected : {Row{1, 8, 24, 0}, Row{2, 5, 9, 15}, Row{4, 4.143, 6.69, 9.67}, Row{8, 3.8, 5.90, 8.14}}) {
    const json& found = row(figures().at("break_even"), {{"g", expected.g}});
    EXPECT_NEAR(found.at("forward_printed").get<double>(), expected.forward, 5e-4);
    EXPECT_NEAR(found.at("forward").get<double>(), expected.forward, 5e-4);
    EXPECT_NEAR(found.at("forward_backward").get<double>(), expected.both, 5e-3);
    if (expected.both_bf16 == 0) EXPECT_TRUE(found.at("forward_backward_bf16").is_null());
    else EXPECT_NEAR(found.at("forward_backward_bf16").get<double>(), expected.both_bf16, 5e-3);
  }
}

TEST_F(Paper, FlopsPerTokenAt128K) {
  const json& flops = figures().at("flops_per_token");
  EXPECT_NEAR(flops.at("linear").get<double>() / 1e9, 17.18, 5e-3);
  EXPECT_NEAR(flops.at("attention_printed").get<double>() / 1e9, 68.72, 5e-3);
  EXPECT_NEAR(flops.at("attention_causal").get<double>() / 1e9, 34.36, 5e-3);
}

TEST_F(Paper, ReferenceModelAndZigzag) {
  const Setting reference = reference_setting(8192);
  EXPECT_EQ(reference.block_parameters({}), 268'435'456U);
  EXPECT_EQ(reference.model.layers * reference.block_parameters({}), 8'589'934'592U);
  // State of 16 bytes a parameter.
  EXPECT_EQ(8'589'934'592U * 16, 128ULL << 30);
  const Zigzag zigzag(8192, 8);
  for (int p = 0; p < 8; ++p) EXPECT_EQ(zigzag.attention_pairs(p), 2U * 8 * 512 * 512 + 512);
}

TEST_F(Paper, EquationsAreAllThereAndAgreeWhereNoDifferenceIsNoted) {
  const Setting setting = reference_setting(8192);
  const std::vector<Equation> equations = paper_equations(setting, {.axes = {{AxisKind::tsp, 8}}});
  ASSERT_EQ(equations.size(), 30U);
  for (int n = 1; n <= 30; ++n) {
    const Equation& each = equations[static_cast<std::size_t>(n - 1)];
    EXPECT_EQ(each.number, n);
    ASSERT_TRUE(each.exact) << n;
    if (each.note.empty()) {
      EXPECT_DOUBLE_EQ(*each.exact, each.printed) << "(" << n << ")";
    }
  }
  // (14) counts the broadcast whole: too much by P_attn β/D.
  EXPECT_DOUBLE_EQ(equations[13].printed - *equations[13].exact, 4.0 * 4096 * 4096 * 2 / 8);
  // (9): MHA has no copies of K/V heads.
  EXPECT_DOUBLE_EQ(*equations[8].exact, equations[8].printed);
  // With K/V heads that are copied, it isn't so.
  Setting grouped = setting;
  grouped.model.kv_heads = 1;
  const std::vector<Equation> copied = paper_equations(grouped, {.axes = {{AxisKind::tsp, 8}}});
  EXPECT_GT(*copied[8].exact, copied[8].printed);
}

TEST_F(Paper, EquationsThatTheModelCannotBeCutForAreNotCounted) {
  const std::vector<Equation> equations = paper_equations(reference_setting(8192), {.axes = {{AxisKind::sp, 3}}});
  EXPECT_FALSE(equations[13].exact);  // 32 heads over tsp=3
  EXPECT_TRUE(equations[10].exact);   // K/V over sp=3
}

TEST_F(Paper, CommandPrintsEquationsAndDifferencesAndReportsFigures) {
  const Answer answer = plan({"--paper"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  for (int n = 1; n <= 30; ++n) EXPECT_NE(answer.out.find(fmt::format("\n({}) ", n)), std::string::npos) << n;
  for (int n = 1; n <= 8; ++n) EXPECT_NE(answer.out.find(fmt::format("\n{}. ", n)), std::string::npos) << n;
  const json& paper = answer.report.at("paper");
  EXPECT_EQ(paper.at("figures"), figures());
  EXPECT_EQ(paper.at("equations").size(), 30U);
  EXPECT_EQ(paper.at("differences").size(), 8U);
  EXPECT_EQ(paper.at("symbols").at("D"), 8);
  EXPECT_TRUE(answer.report.at("failure").is_null());
}

}  // namespace
}  // namespace tsprun::detail::launcher::plan_paper_test
