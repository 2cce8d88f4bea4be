// tools/plot: pictures of what `plan` and `compare` report, as PNG and SVG, which need Debian's python3-matplotlib; and the
// paper's statements in virtual time.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::plot_test {
namespace {

using nlohmann::json;

std::string content(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Finished plot(const TemporaryDirectory& folder, const std::vector<std::string>& reports) {
  const std::string script = std::string(TSP_TOOLS_DIR) + "/plot/plot.py";
  std::vector<std::string> arguments = {"/usr/bin/python3", script, "--check", "--out", folder.path("pictures")};
  for (const std::string& report : reports) arguments.push_back(folder.path(report));
  ProcessOptions options;
  options.environment = {{"MPLCONFIGDIR", folder.path("matplotlib")}, {"PYTHONDONTWRITEBYTECODE", "1"}};
  return run_program(arguments, options, 120);
}

void expect_picture(const TemporaryDirectory& folder, const std::string& name) {
  EXPECT_EQ(content(folder.path("pictures/" + name + ".png")).substr(1, 3), "PNG") << name;
  EXPECT_NE(content(folder.path("pictures/" + name + ".svg")).find("<svg"), std::string::npos) << name;
}

/// Expects what Fig. 4 shows: each of four ranks computes its MLP with its own shard of the weights first, then with the others',
/// each of which has arrived before.
void expect_every_shard_on_every_rank(const json& mlp) {
  std::map<std::pair<int, int>, double> here;  // when a shard has come to a rank
  for (const json& row : mlp.at("rotations")) here[{row.at("rank"), row.at("shard")}] = row.at("end_ms");
  EXPECT_EQ(here.size(), 12U);
  std::map<std::pair<int, int>, int> kernels;
  for (const json& row : mlp.at("kernels")) {
    const std::pair<int, int> where(row.at("rank"), row.at("shard"));
    ++kernels[where];
    if (where.first == where.second) continue;
    EXPECT_GE(row.at("begin_ms").get<double>(), here.at(where) - 1e-6);
  }
  EXPECT_EQ(kernels.size(), 16U);
  for (const auto& [where, number] : kernels) EXPECT_EQ(number, 4) << where.first << ", " << where.second;
}

TEST(Played, SaysWhichOfThePapersStatementsHoldInVirtualTime) {
  const TemporaryDirectory folder;
  const std::string tools = TSP_TOOLS_DIR;
  ProcessOptions options;
  options.environment = {{"PYTHONDONTWRITEBYTECODE", "1"}};
  const Finished run = run_program({"/usr/bin/python3", tools + "/plot/played.py", tsprun_path(),
                                    tools + "/../layers/theory/machines/mi300x.json", folder.path("."), "--quick"},
                                   options, 120);
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const json played = read_json(folder.path("played.json"));
  ASSERT_EQ(played.at("rows").size(), 8U);
  for (const json& row : played.at("rows")) {
    EXPECT_DOUBLE_EQ(row.at("ratio"), row.at("tsp_tokens_per_s").get<double>() / row.at("matched_tokens_per_s").get<double>());
    EXPECT_GT(row.at("tsp_tokens_per_s"), 0);
  }
  EXPECT_NE(run.out.find("TSP is faster at "), std::string::npos) << run.out;
  ASSERT_EQ(played.at("crossover").size(), 2U);
  for (const json& row : played.at("crossover")) {
    EXPECT_GT(row.at("tokens"), 256);
    EXPECT_LT(row.at("tokens"), 131072);
  }
  expect_every_shard_on_every_rank(played.at("mlp"));
  const Finished drawn = run_program(
      {"/usr/bin/python3", tools + "/plot/plot.py", "--check", "--out", folder.path("pictures"), folder.path("played.json")},
      options, 120);
  EXPECT_EQ(drawn.end.code, 0) << drawn.describe();
  expect_picture(folder, "crossover");
  expect_picture(folder, "mlp_turns");
}

TEST(Plot, DrawsThePapersFiguresAndThoseOfPlannedAndMeasuredPoints) {
  const TemporaryDirectory folder;
  const auto report = [&](std::vector<std::string> arguments, const std::string& name) {
    arguments.insert(arguments.end(), {"--json", folder.path(name)});
    const Finished run = run_tsprun(arguments);
    ASSERT_EQ(run.end.code, 0) << run.describe();
  };
  std::ofstream(folder.path("text.txt")) << std::string(2000, 'x');
  report({"plan", "--paper"}, "paper.json");
  report({"plan", "--config", "nano", "-n", "2", "--seq", "32"}, "short.json");
  report({"plan", "--config", "nano", "-n", "2", "--seq", "64"}, "long.json");
  report(
      {"compare", "--config", "nano", "--layouts", "tsp=2", "--seqs", "32,64", "--steps", "1", "--data", folder.path("text.txt")},
      "measured.json");
  const Finished drawn = plot(folder, {"paper.json", "short.json", "long.json", "measured.json"});
  ASSERT_EQ(drawn.end.code, 0) << drawn.describe();
  for (const char* name :
       {"paper_figure_1", "paper_figure_5", "paper_figure_6", "paper_figure_7", "paper_figure_9", "memory_by_category",
        "traffic_over_sequence", "memory_over_sequence", "tsp_over_tp", "throughput_over_sequence"}) {
    expect_picture(folder, name);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("pictures/throughput_over_batch.png")));  // one batch makes no line
  EXPECT_NE(drawn.out.find("throughput_over_batch: left out"), std::string::npos);
}

TEST(Plot, DrawsRunsAndASearch) {
  const TemporaryDirectory folder;
  const auto report = [&](std::vector<std::string> arguments, const std::string& name) {
    arguments.insert(arguments.end(), {"--json", folder.path(name)});
    const Finished run = run_tsprun(arguments);
    ASSERT_EQ(run.end.code, 0) << run.describe();
  };
  std::ofstream(folder.path("text.txt")) << std::string(4000, 'x');
  report({"train", "--config", "nano", "-n", "2", "--seq", "32", "--steps", "4", "--data", folder.path("text.txt"), "--eval-data",
          folder.path("text.txt"), "--eval-every", "2"},
         "train.json");
  report({"bench", "all_reduce,barrier", "-n", "2", "--sizes", "1K,8K", "--min-time", "0"}, "bench.json");
  report({"simulate", "--machine", "h100", "--config", "nano", "--layouts", "tsp=2;tp=2", "--seq", "64"}, "simulate.json");
  report({"plan", "--search", "--gpus", "4", "--machine", "h100", "--config", "nano", "--seq", "64"}, "search.json");
  const Finished drawn = plot(folder, {"train.json", "bench.json", "simulate.json", "search.json"});
  ASSERT_EQ(drawn.end.code, 0) << drawn.describe();
  for (const char* name : {"loss_over_steps", "bench_over_size", "step_times", "memory_by_category"})
    expect_picture(folder, name);
  const std::string loss = content(folder.path("pictures/loss_over_steps.svg"));
  EXPECT_NE(loss.find("train, evaluated"), std::string::npos);
}

// Two reports that measured the same point make one of it, at the median of their speeds.
TEST(Plot, APointOfTwoReportsIsOne) {
  const std::string script = R"(
import sys
sys.path.insert(0, sys.argv[1])
import points

def report(speed, total):
    row = {"label": "tsp=2", "config": "nano", "seq": 32, "batch": 1, "ranks": 2, "parameters": 9, "tokens_per_s": speed,
           "memory_peak_bytes": {"total": total}}
    return {"compare": [row, {**row, "batch": 2}]}

rows = points.one_each(points.points_of(report(10, 5)) + points.points_of(report(30, 7)) + points.points_of(report(11, 6)))
assert [(row.batch, row.tokens_per_s, row.memory["total"]) for row in rows] == [(1, 11, 7), (2, 11, 7)], rows

forward = report(40, 3)
forward["compare"] = [{**row, "forward_only": True} for row in forward["compare"]]
training = report(10, 5)
training["compare"] = [{**row, "forward_only": False} for row in training["compare"]]
rows = points.told_apart(points.one_each(points.points_of(forward) + points.points_of(training)))
assert sorted((row.label, row.tokens_per_s) for row in rows if row.batch == 1) == [
    ("tsp=2, forward_only False", 10), ("tsp=2, forward_only True", 40)], rows

overfull = {"plan": [{"label": "tp=2", "config": "nano", "seq": 32, "batch": 1, "ranks": 2, "fits": False, "step_seconds": None,
                      "memory_peak_bytes": {"total": 9}}], "origin": {"options": []}}
assert len(points.points_of(overfull)) == 1
overfull["origin"]["options"] = [{"name": "--search", "value": "true"}]
assert points.points_of(overfull) == []
print("one each")
)";
  ProcessOptions options;
  options.environment = {{"PYTHONDONTWRITEBYTECODE", "1"}};
  const Finished run = run_program({"/usr/bin/python3", "-c", script, TSP_TOOLS_DIR "/plot"}, options, 120);
  EXPECT_EQ(run.out, "one each\n") << run.describe();
}

// --check finds each fault that a picture could have: good ones have none, and of these each has the one that is named.
TEST(Plot, ItsCheckFindsWhatIsWrong) {
  const std::string script = R"(
import sys
sys.path.insert(0, sys.argv[1])
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as pyplot
import looks

def picture(spoil):
    figure, panels = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axes in panels:
        axes.plot([1, 2], [30, 400], label="tsp", **looks.look("tsp", ["tsp", "tp"]))
        axes.plot([1, 2], [20, 300], label="tp", **looks.look("tp", ["tsp", "tp"]))
        axes.set_title("a panel")
        looks.log_scale(axes.yaxis)
    looks.same_scale(list(panels))
    spoil(figure, panels)
    looks.legend_below(figure)
    return looks.complaints(figure)

def nothing(figure, panels): pass
def unnamed(figure, panels): panels[0].plot([1, 2], [50, 60])
def covered(figure, panels): panels[0].legend()
def alike(figure, panels): panels[0].plot([1, 2], [50, 60], label="sp", **looks.look("tp", ["tsp", "tp"]))
def rescaled(figure, panels): panels[1].set_ylim(1, 1000)
def numberless(figure, panels): panels[0].yaxis.set_major_formatter(matplotlib.ticker.NullFormatter())
def doubled(figure, panels): panels[0].plot([1, 1, 2], [50, 60, 70], label="sp", color="black")
def reddish(figure, panels): looks.COLORS[:] = ["#d62728", "#8c564b"]

assert picture(nothing) == [], picture(nothing)
for spoil, words in ((unnamed, "a line without a label"), (covered, "a legend lies on it"), (alike, "sp looks like tp"),
                     (rescaled, "its scale differs"), (numberless, "a log axis with 0 numbers"),
                     (doubled, "sp has two heights at one place"), (reddish, "alike without green")):
    found = picture(spoil)
    assert any(words in each for each in found), (words, found)
print("all found")
)";
  const TemporaryDirectory folder;
  ProcessOptions options;
  options.environment = {{"MPLCONFIGDIR", folder.path("matplotlib")}, {"PYTHONDONTWRITEBYTECODE", "1"}};
  const Finished run = run_program({"/usr/bin/python3", "-c", script, TSP_TOOLS_DIR "/plot"}, options, 120);
  EXPECT_EQ(run.out, "all found\n") << run.describe();
}

/// A measured row as compare writes it.
json measured(const std::string& label, int seq, double total, double tokens_per_s) {
  return {{"layout", json::object()},
          {"label", label},
          {"ranks", 4},
          {"config", "nano"},
          {"hidden", 64},
          {"seq", seq},
          {"batch", 1},
          {"memory_peak_bytes", {{"total", total}}},
          {"traffic_bytes", {{"forward", {{"kv", {{"received", label == "tsp=4" ? 90 : 100}}}}}}},
          {"tokens_per_s", tokens_per_s},
          {"exposed_share", 0.2},
          {"exposed_share_least", 0.1},
          {"fits", true},
          {"why", ""}};
}

TEST(Statements, HoldOrDoNotAsTheNumbersSay) {
  const TemporaryDirectory folder;
  const json rows = {measured("tsp=4", 256, 100, 50),  measured("tp=4", 256, 104, 49),  measured("tp=2,sp=2", 256, 130, 60),
                     measured("tsp=4", 1024, 150, 80), measured("tp=4", 1024, 300, 40), measured("tp=2,sp=2", 1024, 140, 70)};
  std::ofstream(folder.path("r.json")) << json{{"compare", rows}};
  const Finished run = run_program({"/usr/bin/python3", TSP_TOOLS_DIR "/plot/statements.py", folder.path("r.json")},
                                   {.environment = {{"PYTHONDONTWRITEBYTECODE", "1"}}, .input = {}, .cores = 0});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 9U) << run.out;
  EXPECT_NE(lines[0].find("holds at 1 of 2 points; not at nano, B=1, S=1024, 4 ranks (tp=2,sp=2 takes 0.93 of it)"),
            std::string::npos)
      << lines[0];
  EXPECT_NE(lines[1].find("holds at all 1 points"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("holds at 1 of 2 points; not at nano, B=1, 4 ranks against tp+sp (1.30 → 0.93)"), std::string::npos)
      << lines[2];
  EXPECT_NE(lines[3].find("holds at all 1 points"), std::string::npos) << lines[3];
  EXPECT_NE(lines[4].find("not at nano, B=1, S=256, 4 ranks (0.83 of tp=2,sp=2)"), std::string::npos) << lines[4];
  EXPECT_NE(lines[5].find("holds at all 2 points"), std::string::npos) << lines[5];
  EXPECT_NE(lines[6].find("holds at all 2 points"), std::string::npos) << lines[6];
  // Of both lengths only S = 1024 is at least 8h.
  EXPECT_NE(lines[7].find("holds at all 1 points"), std::string::npos) << lines[7];
  EXPECT_NE(lines[8].find("S=1024, 4 ranks: tsp=4 10 to 20%, tp=4 10 to 20%, tp=2,sp=2 10 to 20%"), std::string::npos)
      << lines[8];
}

TEST(Statements, SayWhyTspIsSlowerThanTheBestOther) {
  const TemporaryDirectory folder;
  const json rows = {measured("tsp=4", 512, 100, 50), measured("tp=4", 512, 104, 100), measured("sp=4", 512, 130, 70)};
  std::ofstream(folder.path("r.json")) << json{{"compare", rows}};
  const Finished run = run_program({"/usr/bin/python3", TSP_TOOLS_DIR "/plot/statements.py", folder.path("r.json")},
                                   {.environment = {{"PYTHONDONTWRITEBYTECODE", "1"}}, .input = {}, .cores = 0});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  EXPECT_NE(
      run.out.find("not at nano, B=1, S=512, 4 ranks (0.50 of tp=4; receives 0.9 times its bytes; exposed: tsp=4 10 to 20%, "
                   "tp=4 10 to 20%)"),
      std::string::npos)
      << run.out;
}

TEST(Plot, SaysWhatIsWrongWithAReport) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path("broken.json")) << "{";
  std::ofstream(folder.path("other.json")) << "{\"command\": \"train\"}";
  std::ofstream(folder.path("odd.json")) << "{\"plan\": [{\"layout\": 3}]}";
  for (const char* name : {"broken.json", "other.json", "odd.json", "missing.json"}) {
    const Finished run = plot(folder, {name});
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_NE(run.err.find(name), std::string::npos) << run.describe();
    EXPECT_EQ(run.err.find("Traceback"), std::string::npos) << run.describe();
  }
}

}  // namespace
}  // namespace tsprun::detail::test::plot_test
