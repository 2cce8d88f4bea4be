// `compare` before and after its jobs: which points there are, and what is made of a job's report.
#include "launcher/commands/compare.h"
#include "launcher/table.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::compare_test {
namespace {

using nlohmann::ordered_json;
using test::refusal;

TEST(Compare, LayoutsStandBetweenSemicolons) {
  EXPECT_EQ(split_layouts("tsp=4; tp=2,sp=2 ;zero3=4"), (std::vector<std::string>{"tsp=4", "tp=2,sp=2", "zero3=4"}));
  EXPECT_EQ(refusal([] { split_layouts("tsp=4;;tp=4"); }), "--layouts tsp=4;;tp=4: part 2 is empty; write values between ';'");
  EXPECT_NE(refusal([] { split_layouts(""); }).find("part 1 is empty"), std::string::npos);
}

struct Request {
  test::TemporaryFolder folder;
  CompareOptions options;
  ModelCommandOptions model;
  GlobalOptions global;

  Request() {
    model.data = {folder.write("text.txt", std::string(3000, 'a')).string()};
    model.config = "nano";
    options.layouts = "tsp=1;tsp=2";
  }
  std::vector<ComparePoint> points() const { return compare_points(options, model, global); }
};

TEST(Compare, GoesOverEveryCombination) {
  Request request;
  request.model.config = "";
  request.options.configs = "nano,micro";
  request.options.sequences = "16, 32,64";
  request.options.batches = "1,2";
  const std::vector<ComparePoint> points = request.points();
  ASSERT_EQ(points.size(), 2U * 3 * 2 * 2);
  EXPECT_EQ(points.front().layout, "tsp=1");
  EXPECT_EQ(points[1].layout, "tsp=2");
  EXPECT_EQ(points[1].global.ranks, 2);
  EXPECT_EQ(points[2].model.sequence, 32U);
  EXPECT_EQ(points.back().model.shape.name, "micro");
  EXPECT_EQ(points.back().model.batch, 2U);
  for (const ComparePoint& point : points) EXPECT_EQ(point.why, "");
}

TEST(Compare, WhatOneCombinationCannotDoIsARowWithTheModelCommandsMessage) {
  Request request;
  request.options.layouts = "tsp=2;tsp=3";
  const std::vector<ComparePoint> points = request.points();
  EXPECT_EQ(points[0].why, "");
  EXPECT_EQ(points[1].why, "--layout tsp=3: 8 query heads don't divide by 3; try 2 or 4");
  const ordered_json row = compare_json(points[1], {}, false);
  EXPECT_EQ(row.at("fits"), false);
  EXPECT_EQ(row.at("why"), points[1].why);
  EXPECT_EQ(row.at("config"), "nano");
  EXPECT_TRUE(row.at("tokens_per_s").is_null());
}

TEST(Compare, ABatchThatDpDoesNotDivideNeverStartsARank) {
  Request request;
  request.options.layouts = "dp=2;tsp=2";
  request.options.batches = "3,4";
  const std::vector<ComparePoint> points = request.points();
  EXPECT_EQ(points[0].why, "--layout dp=2: --batch 3 doesn't divide by dp=2; try --batch 2 or 4");
  for (const std::size_t other : {1U, 2U, 3U}) EXPECT_EQ(points[other].why, "");
  EXPECT_EQ(compare_json(points[0], {}, false).at("fits"), false);
}

TEST(Compare, ARowThatCannotBeSaysWhatWasAskedFor) {
  Request request;
  request.options.sequences = "16,999";
  request.options.layouts = "tsp=2;tsp=2000";
  const std::vector<ComparePoint> points = request.points();
  EXPECT_EQ(points[0].why, "");
  EXPECT_EQ(points[1].why, "--layout tsp=2000 needs 2000 ranks; at most 1024 fit on one node");
  EXPECT_EQ(compare_json(points[1], {}, false).at("layout"), (ordered_json{{"tsp", 2000}}));
  EXPECT_EQ(compare_json(points[1], {}, false).at("ranks"), 2000);
  EXPECT_EQ(points[2].why, "--seq 999: nano has 256 positions; try --seq 256");
  EXPECT_EQ(compare_json(points[2], {}, false).at("seq"), 999);
}

TEST(Compare, ValuesThatNoLayoutTakesAreRefusedAtOnce) {
  Request sequence;
  sequence.options.sequences = "16,0";
  EXPECT_NE(refusal([&] { sequence.points(); }).find("--seq 0: 1 to "), std::string::npos);
  Request batch;
  batch.options.batches = "1,many";
  EXPECT_NE(refusal([&] { batch.points(); }).find("--batch many: not a whole number"), std::string::npos);
  Request config;
  config.model.config = "";
  config.options.configs = "nano,nanno";
  EXPECT_NE(refusal([&] { config.points(); }).find("--config nanno: neither a built-in configuration"), std::string::npos);
}

TEST(Compare, VariantsMustMeanSomethingToALayout) {
  Request request;
  request.global.variant(AxisKind::sp) = 1;
  EXPECT_EQ(refusal([&] { request.points(); }), "--sp ring: --layout tsp=1 has no sp axis to exchange over; try --layout sp=2");
  request.options.layouts = "tsp=2;sp=2";
  EXPECT_EQ(request.points()[0].why, "");
  EXPECT_EQ(compare_json(request.points()[1], {}, false).at("label"), "sp=2 (ring)");
}

TEST(Compare, NodesAndFaultsAreHeldAgainstTheRanksOfEachLayout) {
  Request request;
  request.options.layouts = "tsp=2;tsp=4;tsp=1";
  request.global.nodes.text = "2";
  request.global.faults.texts = {"kill:rank=1,op=all_gather,seq=1"};
  validate_global(request.global, RankUse::jobs, 1);
  const std::vector<ComparePoint> points = request.points();
  EXPECT_EQ(points[0].why, "");
  EXPECT_EQ(points[1].global.nodes, 2);
  EXPECT_EQ(points[2].why, "--nodes 2: 1 to 1 work; try 1");
}

TEST(Compare, RefusesSweepsBesidePlainOptionsAndBadLayouts) {
  Request request;
  request.options.sequences = "16,32";
  request.model.sequence.text = "8";
  EXPECT_EQ(refusal([&] { request.points(); }), "--seqs 16,32 and --seq 8: give one of them");
  Request layout;
  layout.options.layouts = "tsp=2;warp=3";
  EXPECT_NE(refusal([&] { layout.points(); }).find("there is no axis 'warp'"), std::string::npos);
}

/// A job's report of two ranks, by hand.
ordered_json job() {
  const auto traffic = [](int forward, int backward) {
    return ordered_json{
        {"forward", {{"weights", {{"sent", 1}, {"received", forward}}}, {"kv", {{"sent", 1}, {"received", 1}}}}},
        {"backward", {{"weights", {{"sent", 1}, {"received", backward}}}, {"other", {{"sent", 1}, {"received", 7}}}}}};
  };
  const auto memory = [](int total) {
    return ordered_json{{"parameters", 1},    {"gradients", 2}, {"optimizer", 3}, {"activations", 4},
                        {"communication", 5}, {"workspace", 6}, {"total", total}};
  };
  ordered_json report;
  report["failure"] = nullptr;
  report["transports"] = {{{"from", 0}, {"to", 1}, {"kind", "tcp"}}};
  report["steps"] = {{{"step", 2}, {"seconds", 0.5}}, {{"step", 3}, {"seconds", 0.25}}, {{"step", 4}, {"seconds", 4.0}}};
  report["per_rank"] = {{{"rank", 0},
                         {"memory_peak_bytes", memory(20)},
                         {"traffic_bytes", traffic(10, 20)},
                         {"seconds", {{"total", 2.0}, {"exposed_communication", 0.5}}}},
                        {{"rank", 1},
                         {"memory_peak_bytes", memory(21)},
                         {"traffic_bytes", traffic(30, 40)},
                         {"seconds", {{"total", 2.0}, {"exposed_communication", 1.0}}}}};
  report["theory"]["per_rank"] = report["per_rank"];
  report["theory"]["all_ranks"]["traffic_bytes"] = {
      {"forward", {{"weights", {{"received", 40}}}, {"kv", {{"received", 2}}}}},
      {"backward", {{"weights", {{"received", 60}}}, {"other", {{"received", 14}}}}}};
  return report;
}

TEST(Compare, ARowSumsTrafficTakesTheFullestRankAndTheMedianStep) {
  Request request;
  request.model.sequence.text = "16";
  const ComparePoint point = request.points()[1];
  const ordered_json row = compare_json(point, job(), false);
  EXPECT_EQ(row.at("traffic_bytes").at("forward").at("weights").at("received"), 40);
  EXPECT_EQ(row.at("traffic_bytes").at("forward").at("kv").at("received"), 2);
  EXPECT_EQ(row.at("traffic_bytes").at("backward").at("weights").at("received"), 60);
  EXPECT_EQ(row.at("memory_peak_bytes").at("total"), 21);
  EXPECT_DOUBLE_EQ(row.at("tokens_per_s").get<double>(), 16 / 0.5);
  EXPECT_DOUBLE_EQ(row.at("exposed_share").get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(row.at("exposed_share_least").get<double>(), 0.25);
  EXPECT_EQ(row.at("fits"), true);
  EXPECT_EQ(row.at("layout"), (ordered_json{{"tsp", 2}}));
  EXPECT_EQ(row.at("transports"), job().at("transports"));

  ordered_json rows = ordered_json::array({row});
  const std::vector<std::string> table = compare_table(rows).lines();
  // `other` stands apart, so that the rest is equal to its formula.
  EXPECT_NE(table.back().find("0.00 ="), std::string::npos) << table.back();
  EXPECT_EQ(table.back().find('/'), std::string::npos) << table.back();
  EXPECT_NE(table.back().find("25.0-50.0%"), std::string::npos) << table.back();
  const std::string csv = compare_table(rows).csv();
  EXPECT_NE(csv.find("\ntsp=2,2,nano,1,16,false,1,2,3,4,5,6,21,42,42,60,60,14,32.0,0.5,true,,21,,0.25\n"), std::string::npos)
      << csv;

  // Where formula and measurement differ both are shown.
  rows[0]["theory"]["traffic_bytes"]["forward"]["weights"]["received"] = 40 + 3 * 1048576;
  EXPECT_NE(compare_table(rows).lines().back().find("0.00 / 3.00"), std::string::npos) << compare_table(rows).lines().back();
}

TEST(Compare, TheTableFitsATerminalAndRowsStayToldApart) {
  Request request;
  request.model.sequence.text = "16";
  ordered_json rows = ordered_json::array({compare_json(request.points()[1], job(), false)});
  rows.push_back(rows.front());
  rows[1]["seq"] = 131072;
  rows[1]["why"] = "out_of_memory: rank 1: 3 bytes of activations more than the budget of --mem-per-rank allows at this length";
  const std::vector<std::string> table = compare_table(rows).lines(80);
  for (const std::string& line : table) EXPECT_LE(text_columns(line), 80U) << line;
  const std::size_t heads =
      static_cast<std::size_t>(std::ranges::count_if(table, [](const std::string& line) { return line.starts_with("layout"); }));
  const std::size_t longer = static_cast<std::size_t>(
      std::ranges::count_if(table, [](const std::string& line) { return line.find("131072") != std::string::npos; }));
  EXPECT_GT(heads, 1U);
  EXPECT_EQ(longer, heads) << "S differs, so each block has it";
  EXPECT_EQ(compare_table(rows).lines().size(), 3U) << "a pipe gets whole rows";
}

TEST(Compare, AFailureIsARowThatSaysWhy) {
  Request request;
  ordered_json report = job();
  report["failure"] = {{"kind", "out_of_memory"}, {"detail", "rank 1: 3 bytes, over \"budget\""}};
  const ordered_json row = compare_json(request.points()[1], report, false);
  EXPECT_EQ(row.at("fits"), false);
  EXPECT_TRUE(row.at("memory_peak_bytes").is_null());
  EXPECT_NE(compare_table(ordered_json::array({row})).csv().find("\"out_of_memory: rank 1: 3 bytes, over \"\"budget\"\"\""),
            std::string::npos);
  report["failure"]["kind"] = "killed";
  EXPECT_TRUE(compare_json(request.points()[1], report, false).at("fits").is_null());
}

TEST(Compare, ABudgetGivesTheLongestSequenceThatFits) {
  Request request;
  request.global.mem_per_rank.text = "16M";
  request.model.sequence.text = "16";
  const std::vector<ComparePoint> points = request.points();
  const std::size_t one = compare_json(points[0], {}, false).at("longest_seq");
  const std::size_t two = compare_json(points[1], {}, false).at("longest_seq");
  EXPECT_GT(one, 0U);
  EXPECT_LE(one, two);
  EXPECT_LE(two, 256U);
}

}  // namespace
}  // namespace tsprun::detail::launcher::compare_test
