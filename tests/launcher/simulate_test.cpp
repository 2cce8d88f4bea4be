// `simulate` from its command line to its report.
#include "tests/launcher/answer.h"
#include "tests/layers/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::simulate_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

/// What `simulate` answers, with its table as CSV.
struct Answer : test::Answer {
  std::string csv{};
};

/// Runs `tsprun simulate` on a model that takes milliseconds.
Answer simulate(const std::vector<std::string>& words, const std::string& config = "--config") {
  const detail::test::TemporaryFolder folder;
  const std::string csv = (folder / "table.csv").string();
  std::vector<std::string> all = {config, "micro", "--dtype", "bf16", "--csv", csv};
  all.insert(all.end(), words.begin(), words.end());
  Answer answer{test::answer_of("simulate", all)};
  std::ifstream stream(csv);
  answer.csv = {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  return answer;
}

const json& only_row(const Answer& answer) {
  static const json kNone;
  const json& rows = answer.report.at("simulate");
  EXPECT_EQ(rows.size(), 1U) << answer.err;
  return rows.empty() ? kNone : rows.front();
}

Answer test_of_two_models() {
  return {test::answer_of("simulate", {"--configs", "nano,micro", "--machine", "h100", "--gpus", "2", "--dtype", "bf16", "--seq",
                                       "64", "--batch", "2"})};
}

TEST(SimulateCommand, PricesKernelsAsItIsAsked) {
  const auto with = [](const std::string& machine, std::vector<std::string> words) {
    std::vector<std::string> all = {"--machine", machine, "--gpus", "1", "--batch", "2", "--seq", "4096"};
    all.insert(all.end(), words.begin(), words.end());
    return simulate(all);
  };
  const auto seconds = [&](const std::vector<std::string>& words) {
    const Answer answer = with("h100", words);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return only_row(answer).at("seconds").get<double>();
  };
  EXPECT_GT(seconds({"--attention", "flash2"}), seconds({}));
  EXPECT_LT(seconds({"--attention", "flash3"}), seconds({"--attention", "flash2"}));
  EXPECT_GT(seconds({"--attention", "unfused"}), seconds({"--attention", "flash2"}));
  EXPECT_GT(seconds({"--attention", "unfused-again"}), seconds({"--attention", "unfused"}));
  EXPECT_GT(seconds({"--elementwise", "eager"}), seconds({}));
  EXPECT_EQ(seconds({"--elementwise", "fused"}), seconds({}));
  EXPECT_GT(seconds({"--elementwise", "eager", "--host-us", "100"}), 1.5 * seconds({"--host-us", "100"}));
  const Answer unknown = with("mi300x", {"--attention", "flash2"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--attention flash2: of mi300x these are known: unfused, unfused-again, aiter"));
}

TEST(SimulateCommand, PlaysMicroBatches) {
  const auto step = [](const std::string& layout, const std::string& micro_batches) {
    const Answer answer =
        simulate({"--machine", "mi300x", "--layout", layout, "--batch", "8", "--seq", "512", "--micro-batches", micro_batches});
    EXPECT_EQ(answer.code, 0) << answer.err;
    return only_row(answer);
  };
  for (const char* layout : {"tsp=4", "dp=2,tp=2"}) {
    const json one = step(layout, "1");
    const json four = step(layout, "4");
    EXPECT_EQ(four.at("micro_batches"), 4);
    const auto moved = [](const json& row, const char* purpose) {
      return row.at("traffic_bytes").at(purpose).get<std::uint64_t>();
    };
    // Weights travel with each micro-batch; activations are the same tokens'.
    EXPECT_EQ(moved(four, "weights"), 4 * moved(one, "weights"));
    EXPECT_EQ(moved(four, "activations"), moved(one, "activations"));
    EXPECT_EQ(moved(four, "kv"), moved(one, "kv"));
    EXPECT_GT(four.at("seconds").get<double>(), one.at("seconds").get<double>());
    const auto held = [](const json& row) { return row.at("memory_peak_bytes").at("activations").get<std::uint64_t>(); };
    EXPECT_EQ(4 * held(four), held(one));
  }
  EXPECT_THAT(simulate({"--machine", "mi300x", "--layout", "tsp=4", "--batch", "8", "--micro-batches", "3"}).err,
              HasSubstr("--micro-batches 3 doesn't divide --batch 8; try --micro-batches 2 or --batch 9"));
  EXPECT_THAT(simulate({"--machine", "mi300x", "--layout", "tsp=4", "--batch", "8", "--micro-batches", "2", "--forward"}).err,
              HasSubstr("leave --forward out"));
}

TEST(SimulateCommand, ReportsAStep) {
  const Answer answer = simulate({"--machine", "mi300x", "--layout", "dp=2,tsp=8", "--batch", "4", "--seq", "512"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const json& row = only_row(answer);
  EXPECT_EQ(row.at("layout"), "dp=2,tsp=8");
  EXPECT_EQ(row.at("gpus"), 16);
  EXPECT_EQ(row.at("seq"), 512);
  EXPECT_EQ(row.at("batch"), 4);
  EXPECT_EQ(row.at("classes"), 8);
  const double seconds = row.at("seconds");
  EXPECT_GT(seconds, 0);
  EXPECT_DOUBLE_EQ(row.at("tokens_per_s"), 4 * 512 / seconds);
  EXPECT_GT(row.at("mfu"), 0);
  EXPECT_LT(row.at("mfu"), 1);
  EXPECT_LE(row.at("compute_seconds"), seconds);
  EXPECT_LE(row.at("exposed_seconds"), seconds);
  EXPECT_GT(row.at("traffic_bytes").at("weights"), 0);
  EXPECT_GT(row.at("memory_peak_bytes").at("total"), row.at("memory_peak_bytes").at("parameters"));
  EXPECT_FALSE(row.at("links").empty());
  // A model of a few thousand parameters does nothing but launch kernels and send short messages.
  EXPECT_THAT(row.at("binds").get<std::string>(),
              testing::AnyOf("launches of kernels", HasSubstr("links within nodes"), HasSubstr("NICs")));
  EXPECT_THAT(answer.out, HasSubstr("step ms"));
  for (const char* category : {"parameters", "gradients", "optimizer", "activations", "communication", "workspace"})
    EXPECT_THAT(answer.out, HasSubstr(category));
  EXPECT_THAT(answer.out, HasSubstr("dp=2,tsp=8"));
}

// NCCL and RCCL add across nodes by rails, so that each of a node's NICs carries a part; the canonical order is one ring.
TEST(SimulateCommand, AddsByRailsWhereNodesHaveSeveralNics) {
  const auto seconds = [](const std::vector<std::string>& sums, const std::string& said) {
    std::vector<std::string> words = {"--machine", "h100", "--layout", "dp=16", "--batch", "16", "--seq", "64"};
    words.insert(words.end(), sums.begin(), sums.end());
    const Answer answer = simulate(words);
    EXPECT_EQ(answer.code, 0) << answer.err;
    EXPECT_THAT(answer.out, HasSubstr(said));
    return only_row(answer).at("seconds").get<double>();
  };
  const double usual = seconds({}, "go by rails");
  EXPECT_EQ(usual, seconds({"--reassociate"}, "go by rails"));
  EXPECT_EQ(usual, seconds({"--sums", "rails"}, "go by rails"));
  EXPECT_LT(usual, seconds({"--sums", "canonical"}, "canonical order, as real ranks"));
  EXPECT_THAT(simulate({"--machine", "h100", "--layout", "dp=2", "--sums", "canonical", "--reassociate"}).err,
              HasSubstr("--reassociate and --sums canonical: give one of them"));
  // On one node nothing is to be said.
  EXPECT_THAT(simulate({"--machine", "h100", "--layout", "dp=8", "--batch", "8"}).out, testing::Not(HasSubstr("rails")));
}

TEST(SimulateCommand, SaysWhereARingUsesOneOfSeveralLinks) {
  const auto said = [](const std::string& machine, const std::string& layout) {
    return simulate({"--machine", machine, "--layout", layout, "--batch", "8", "--seq", "64"}).out;
  };
  EXPECT_THAT(said("mi300x", "tsp=8"), HasSubstr("ring of tsp=8 uses one of the 7 links"));
  for (const char* layout : {"tsp=2", "dp=8"}) EXPECT_THAT(said("mi300x", layout), testing::Not(HasSubstr("ring of"))) << layout;
  EXPECT_THAT(said("h100", "tsp=8"), testing::Not(HasSubstr("ring of")));
}

TEST(SimulateCommand, AnswersAlikeToTheByte) {
  const std::vector<std::string> words = {"--machine", "h100", "--gpus", "8", "--batch", "8", "--seq", "256"};
  const Answer one = simulate(words);
  const Answer other = simulate(words);
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, other.out);
  EXPECT_EQ(one.csv, other.csv);
}

TEST(SimulateCommand, SweepsOverLayoutsAndSizes) {
  const Answer answer =
      simulate({"--machine", "h100", "--layouts", "tsp=4;tp=3; tp=2,sp=2", "--seqs", "256,512", "--batches", "4"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const json& rows = answer.report.at("simulate");
  ASSERT_EQ(rows.size(), 6U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("layout"), (std::vector<std::string>{"tsp=4", "tp=3", "tp=2,sp=2"})[i % 3]);
    EXPECT_EQ(rows[i].at("seq"), i < 3 ? 256 : 512);
    EXPECT_EQ(rows[i].contains("seconds"), i % 3 != 1);
  }
  EXPECT_THAT(rows[1].at("why").get<std::string>(), HasSubstr("--layouts tp=3: "));
  EXPECT_THAT(answer.out, HasSubstr("why"));
  EXPECT_EQ(std::ranges::count(answer.csv, '\n'), 7);
  EXPECT_THAT(answer.csv, StartsWith("layout,gpus,config,batch,seq,seconds,"));
  EXPECT_THAT(answer.csv, HasSubstr("\n\"tp=2,sp=2\",4,micro,4,256,"));
  // Each line has as many cells as the head; commas within quotes aren't counted.
  std::size_t cells = 0;
  std::size_t commas = 0;
  bool quoted = false;
  for (const char c : answer.csv) {
    if (c == '"') quoted = !quoted;
    commas += c == ',' && !quoted;
    if (c != '\n') continue;
    if (cells == 0) cells = commas;
    EXPECT_EQ(commas, cells);
    commas = 0;
  }
}

TEST(SimulateCommand, SweepsOverModels) {
  const Answer answer = simulate({"--machine", "h100", "--gpus", "2", "--seq", "128", "--batch", "2"}, "--configs");
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(only_row(answer).at("config"), "micro");
  const Answer both = test_of_two_models();
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(both.report.at("simulate").at(0).at("config"), "nano");
  EXPECT_EQ(both.report.at("simulate").at(1).at("config"), "micro");
}

// The others keep their rows, and the refused one shows what was asked for.
TEST(SimulateCommand, ARefusedPointHasARow) {
  const Answer long_one = simulate({"--machine", "h100", "--gpus", "2", "--seqs", "128,2048"});
  ASSERT_EQ(long_one.code, 0) << long_one.err;
  const json& rows = long_one.report.at("simulate");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_TRUE(rows[0].contains("seconds"));
  EXPECT_TRUE(rows[1].contains("seconds")) << "beyond the model's positions, of which it is warned";
  EXPECT_EQ(long_one.report.at("dtype"), "bf16");
  const Answer large_one =
      simulate({"--machine", "h100", "--layouts", "dp=131072,tsp=8;tsp=2", "--batch", "131072", "--seq", "16"});
  ASSERT_EQ(large_one.code, 0) << large_one.err;
  EXPECT_THAT(large_one.report.at("simulate").at(0).at("why").get<std::string>(), HasSubstr("1048576 ranks; 65536 are the most"));
  EXPECT_TRUE(large_one.report.at("simulate").at(1).contains("seconds"));
}

TEST(SimulateCommand, FoldsToTheSameTime) {
  const std::vector<std::string> words = {"--machine", "mi300x", "--layout", "dp=4,tsp=8", "--batch", "8", "--seq", "512"};
  const Answer folded = simulate(words);
  std::vector<std::string> all = words;
  all.insert(all.end(), {"--fold", "off"});
  const Answer whole = simulate(all);
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(only_row(folded).at("classes"), 8);
  EXPECT_EQ(only_row(whole).at("classes"), 32);
  const double seconds = only_row(whole).at("seconds");
  EXPECT_NEAR(only_row(folded).at("seconds"), seconds, 1e-3 * seconds);
}

TEST(SimulateCommand, ASlowRankOrLinkSlowsTheStep) {
  const std::vector<std::string> words = {"--machine", "mi300x", "--layout", "tsp=4", "--batch", "2", "--seq", "512"};
  const double usual = only_row(simulate(words)).at("seconds");
  for (const char* slow : {"rank=2,factor=3", "link=0-1,factor=50"}) {
    std::vector<std::string> slower = words;
    slower.insert(slower.end(), {"--slow", slow});
    const Answer answer = simulate(slower);
    ASSERT_EQ(answer.code, 0) << answer.err;
    EXPECT_GT(only_row(answer).at("seconds"), 1.2 * usual) << slow;
  }
}

TEST(SimulateCommand, ForwardBlockingAndStepsAreWhatTheySay) {
  const std::vector<std::string> words = {"--machine", "mi300x", "--layout", "tsp=4", "--batch", "2", "--seq", "512"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return simulate(all);
  };
  const double usual = only_row(with({})).at("seconds");
  EXPECT_LT(only_row(with({"--forward"})).at("seconds"), 0.5 * usual);
  EXPECT_GT(only_row(with({"--blocking"})).at("exposed_seconds"), only_row(with({})).at("exposed_seconds"));
  EXPECT_NEAR(only_row(with({"--steps", "3"})).at("seconds"), usual, 0.1 * usual);
}

TEST(SimulateCommand, RefusesWhatItCannotPlay) {
  struct Case {
    std::vector<std::string> words;
    std::string expected;
  };
  const Case cases[] = {
      {{"--layout", "tp=3"}, "--layout tp=3: "},
      {{"--gpus", "4", "--layout", "tsp=2"}, "--gpus 4: --layout tsp=2 has 2 ranks; a rank is a GPU"},
      {{"--layout", "tsp=2", "--layouts", "tsp=4"}, "--layouts tsp=4 and --layout tsp=2: give one of them"},
      {{"--layouts", "tsp=2;;tp=2"}, "--layouts tsp=2;;tp=2: part 2 is empty"},
      {{"--seqs", "128,x"}, "--seq x: not a whole number"},
      {{"--layouts", "tsp=2;zero3=2", "--tp", "sequence"}, "--tp sequence"},
      {{"--timeout", "9"}, "--timeout 9: simulate has no ranks; leave it out"},
      {{"--no-prefix"}, "--no-prefix: simulate has no ranks"},
      {{"--nodes", "1"}, "--nodes 1: no rank runs here"},
      {{"--threads", "2"}, "--threads 2: no rank runs here"},
      {{"--slow", "rank=1"}, "--slow rank=1: no factor says"},
      {{"--slow", "gpu=1,factor=2"}, "--slow gpu=1,factor=2: it names neither a rank nor a link"},
      {{"--slow", "rank=1,factor=0.5"}, "factor 0.5: numbers from 1"},
      {{"--slow", "rank=1,factor=2"}, "--slow rank=1: --gpus 1 has ranks 0 to 0"},
      {{"--slow", "link=0-9,factor=2", "--gpus", "4"}, "--slow link=0-9: --gpus 4 has ranks 0 to 3"},
      {{"--slow", "rank=1,factor=2", "--layout", "dp=2,tsp=8", "--batch", "2"}, "add --fold off"},
      {{"--forward", "--recompute", "full"}, "--recompute full: a forward pass keeps nothing"},
      {{"--layouts", "tsp=2;tsp=4", "--trace", "t.json"}, "--trace t.json: it holds one step; give one layout and size"},
      {{"--trace", "/nowhere/t.json"}, "--trace /nowhere/t.json: "},
      {{"--gpus", "100000000"}, "--gpus 100000000: "},
      {{"--export", "step.goal"}, "--export step.goal: expected goal:FILE or chakra:DIR"},
      {{"--export", "goal:"}, "--export goal:: expected goal:FILE or chakra:DIR"},
      {{"--export", "dot:step"}, "--export dot:step: expected goal:FILE or chakra:DIR"},
      {{"--export", "goal:/nowhere/step.goal"}, "--export goal /nowhere/step.goal: "},
      {{"--export", "chakra:/nowhere/step"}, "--export chakra /nowhere/step: "},
      {{"--layouts", "tsp=2;tsp=4", "--export", "goal:/tmp/step.goal"}, "it holds one step; give one layout and size"},
      {{"--layout", "dp=2,tsp=8", "--batch", "2", "--export", "goal:/tmp/step.goal"}, "add --fold off"},
  };
  for (const Case& each : cases) {
    std::vector<std::string> words = {"--machine", "mi300x"};
    words.insert(words.end(), each.words.begin(), each.words.end());
    const Answer answer = simulate(words);
    EXPECT_EQ(answer.code, 2) << each.expected;
    EXPECT_THAT(answer.err, HasSubstr(each.expected));
  }
  EXPECT_THAT(simulate({"--gpus", "2"}).err, HasSubstr("--machine"));
  EXPECT_THAT(test::answer_of("simulate", {"--machine", "h100"}).err, HasSubstr("no model: give --config NAME|FILE (nano, "));
  EXPECT_THAT(simulate({"--machine", "b100x"}).err, HasSubstr("--machine b100x: neither a machine that comes with tsprun"));
}

}  // namespace
}  // namespace tsprun::detail::launcher::simulate_test
