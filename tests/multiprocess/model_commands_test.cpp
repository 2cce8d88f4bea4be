// The model commands from the command line: the same numbers under every layout, a report that adds up, refusals, and nothing
// left behind.

#include "layers/io/safetensors.h"
#include "layers/io/safetensors_writer.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace tsprun::detail::test::model_commands_test {
namespace {

using nlohmann::json;

json run_for_report(const TextData& data, std::vector<std::string> arguments) {
  const std::string report = data.path("report.json");
  arguments.insert(arguments.end(), {"--json", report});
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return read_json(report);
}

std::vector<std::string> train(const TextData& data, const std::string& layout, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"train", "--layout", layout, "--config", "nano", "--data", data.text(), "--seq", "37"};
  if (std::find(more.begin(), more.end(), "--batch") == more.end()) arguments.insert(arguments.end(), {"--batch", "2"});
  if (std::find(more.begin(), more.end(), "--steps") == more.end()) arguments.insert(arguments.end(), {"--steps", "4"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// Sum over ranks of a pass' received bytes of one purpose.
std::uint64_t received(const json& per_rank, const std::string& pass, const std::string& purpose) {
  std::uint64_t sum = 0;
  for (const json& rank : per_rank) {
    sum += rank.at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>();
  }
  return sum;
}

const std::vector<std::string> kExactPurposes = {"weights", "kv", "activations", "gradients", "embedding", "head"};

TEST(Train, HasTheSameCurveUnderEveryLayout) {
  const TextData data(3000);
  const json one = run_for_report(data, train(data, "tsp=1", {"--dtype", "f64"}));
  ASSERT_EQ(one.at("steps").size(), 4U);
  EXPECT_NEAR(one.at("steps").at(0).at("loss").get<double>(), std::log(256.0), 0.1);
  for (const char* layout : {"tsp=2", "tsp=4", "tsp=8"}) {
    const json many = run_for_report(data, train(data, layout, {"--dtype", "f64"}));
    ASSERT_EQ(many.at("steps").size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
      const json& a = one.at("steps").at(i);
      const json& b = many.at("steps").at(i);
      EXPECT_EQ(b.at("step"), i + 1);
      EXPECT_NEAR(a.at("loss").get<double>(), b.at("loss").get<double>(), 1e-12) << layout;
      EXPECT_NEAR(a.at("grad_norm").get<double>(), b.at("grad_norm").get<double>(), 1e-11) << layout;
      EXPECT_GT(b.at("tokens_per_s").get<double>(), 0);
    }
    EXPECT_EQ(many.at("loss"), many.at("steps").at(3).at("loss"));
  }
}

TEST(Train, IsBitIdenticalFromRunToRunAndForAnyThreads) {
  const TextData data(3000);
  const auto losses = [&](const char* threads) {
    const json report = run_for_report(data, train(data, "tsp=2", {"--threads", threads}));
    std::vector<std::pair<double, double>> steps;
    for (const json& step : report.at("steps")) steps.emplace_back(step.at("loss"), step.at("grad_norm"));
    return steps;
  };
  const auto first = losses("1");
  EXPECT_EQ(first, losses("1"));
  EXPECT_EQ(first, losses("3"));
}

TEST(Train, EvaluatesAsEvalDoesWithoutAnotherByte) {
  const TextData data(3000);
  const TextData other(700);
  for (const char* layout : {"tsp=2", "dp=2,tp=2", "sp=2", "zero3=2"}) {
    SCOPED_TRACE(layout);
    const std::string save = data.path(fmt::format("of-{}", layout));
    const json report = run_for_report(data, train(data, layout,
                                                   {"--eval-data", other.text(), "--eval-every", "2", "--steps", "5", "--save",
                                                    save, "--save-every", "1", "--audit", "strict"}));
    const json& evaluations = report.at("evaluations");
    ASSERT_EQ(evaluations.size(), 3U);
    for (const std::size_t i : {0U, 1U, 2U}) {
      const int step = i == 2 ? 5 : static_cast<int>(2 * i + 2);
      const json eval = run_for_report(data, {"eval", "--layout", layout, "--model", fmt::format("{}/step-{:06}", save, step),
                                              "--data", other.text(), "--seq", "37", "--batch", "2"});
      EXPECT_EQ(evaluations[i].at("step"), step);
      EXPECT_EQ(evaluations[i].at("loss"), eval.at("loss"));
      EXPECT_EQ(evaluations[i].at("tokens"), eval.at("tokens"));
    }
    const json parts = run_for_report(data, train(data, layout,
                                                  {"--eval-data", other.text(), "--eval-every", "1", "--audit", "strict",
                                                   "--batch", "4", "--micro-batches", "2"}));
    EXPECT_EQ(parts.at("evaluations").size(), 4U);
    const json plain = run_for_report(data, train(data, layout, {"--steps", "5"}));
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(report.at("steps")[i].at("loss"), plain.at("steps")[i].at("loss"));
  }
}

TEST(Train, EvaluatesBeforeItSaves) {
  const TextData data(3000);
  const Finished run = run_tsprun(train(data, "tsp=2", {"--eval-data", data.text(), "--save", data.path("saved")}));
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const std::size_t evaluated = run.out.find("evaluated after step 4: loss ");
  ASSERT_NE(evaluated, std::string::npos) << run.describe();
  EXPECT_LT(evaluated, run.out.find("saved ")) << run.describe();
}

TEST(Train, ReadsWholeEpochs) {
  const TextData hundred(3701);  // 100 windows of 37 tokens; 0.07 · 100 is more than 7
  EXPECT_EQ(run_for_report(hundred, {"train", "--config", "nano", "--data", hundred.text(), "--seq", "37", "--epochs", "0.07"})
                .at("steps")
                .size(),
            7U);

  const TextData data(3000);  // 81 windows of 37 tokens, in batches of 2
  const std::string save = data.path("epochs");
  const auto epochs = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"train", "--layout", "dp=2", "--config", "nano", "--data", data.text(), "--seq", "37"};
    all.insert(all.end(), {"--batch", "2", "--save-every", "20", "--save", save});
    all.insert(all.end(), more.begin(), more.end());
    return run_for_report(data, all);
  };
  const json first = epochs({"--epochs", "0.6"});
  EXPECT_EQ(first.at("steps").size(), 25U);  // of 48.6 windows
  const json whole = epochs({"--epochs", "0.7", "--overwrite"});
  ASSERT_EQ(whole.at("steps").size(), 29U);
  for (std::size_t i = 0; i < 25; ++i) EXPECT_EQ(first.at("steps")[i].at("loss"), whole.at("steps")[i].at("loss"));
  const json rest = run_for_report(data, {"train", "--layout", "dp=2", "--data", data.text(), "--resume", save + "/step-000020"});
  ASSERT_EQ(rest.at("steps").size(), 9U);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(rest.at("steps")[i].at("loss"), whole.at("steps")[20 + i].at("loss"));
}

TEST(Train, GoesOnWithItsScheduleOfLearningRates) {
  const TextData data(3000);
  const std::vector<std::string> rates = {"--lr",     "0.01", "--lr-schedule", "cosine", "--min-lr", "0.002",
                                          "--warmup", "1",    "--save-every",  "2",      "--steps",  "5"};
  const auto saved = [&](const std::string& folder) {
    std::vector<std::string> all = {"--save", data.path(folder)};
    all.insert(all.end(), rates.begin(), rates.end());
    return run_for_report(data, train(data, "tsp=2", all));
  };
  const json whole = saved("whole").at("steps");
  for (const int step : {1, 2, 3, 4, 5}) {
    const double expected = step == 1 ? 0.01 : 0.002 + 0.008 * (1 + std::cos(std::acos(-1.0) * (step - 2) / 4)) / 2;
    EXPECT_NEAR(whole.at(static_cast<std::size_t>(step - 1)).at("learning_rate").get<double>(), expected, 1e-16) << step;
  }
  std::filesystem::create_directory(data.path("part"));
  std::filesystem::copy(data.path("whole/step-000002"), data.path("part/step-000002"), std::filesystem::copy_options::recursive);
  // Neither the rates nor the number of steps are said again.
  const json rest = run_for_report(data, {"train", "--layout", "tsp=2", "--data", data.text(), "--resume", data.path("part")});
  ASSERT_EQ(rest.at("steps").size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    for (const char* figure : {"step", "loss", "grad_norm", "learning_rate"})
      EXPECT_EQ(rest.at("steps").at(i).at(figure), whole.at(i + 2).at(figure)) << figure << " of row " << i;
  }
}

TEST(Train, ReceivesWhatTheFormulasSayUnderEveryRecomputation) {
  const TextData data(3000);
  for (const char* recompute : {"none", "selective", "full"}) {
    const json report = run_for_report(data, train(data, "tsp=4", {"--recompute", recompute}));
    const json& measured = report.at("per_rank");
    const json& theory = report.at("theory").at("per_rank");
    ASSERT_EQ(measured.size(), 4U);
    ASSERT_EQ(theory.size(), 4U);
    for (const char* pass : {"forward", "backward"}) {
      for (const std::string& purpose : kExactPurposes) {
        EXPECT_EQ(received(measured, pass, purpose), received(theory, pass, purpose))
            << recompute << " " << pass << " " << purpose;
      }
    }
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(measured[rank].at("memory_peak_bytes"), theory[rank].at("memory_peak_bytes")) << recompute;
    }
  }
}

TEST(Train, ReportHoldsWhatScriptsRelyOn) {
  const TextData data(3000);
  const json report = run_for_report(data, train(data, "tsp=2", {"--dtype", "bf16"}));
  EXPECT_EQ(report.at("command"), "train");
  EXPECT_EQ(report.at("layout"), (json{{"tsp", 2}}));
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("nodes"), 1);
  EXPECT_EQ(report.at("dtype"), "bf16");
  EXPECT_EQ(report.at("batch"), 2);
  EXPECT_EQ(report.at("seq"), 37);
  EXPECT_EQ(report.at("recompute"), "none");
  EXPECT_TRUE(report.at("kernels").is_string());
  EXPECT_TRUE(report.at("failure").is_null());
  EXPECT_GT(report.at("theory").at("paper").at("layer_bytes").at("forward").get<double>(), 0);
  for (const json& rank : report.at("per_rank")) {
    EXPECT_GT(rank.at("memory_peak_bytes").at("total").get<std::uint64_t>(), 0U);
    for (const char* key : {"total", "compute", "communication", "exposed_communication"}) {
      EXPECT_GE(rank.at("seconds").at(key).get<double>(), 0) << key;
    }
    EXPECT_EQ(rank.at("traffic_bytes").at("forward").size(), 7U);
  }
}

TEST(Train, HoldsAllRanksAtTheKernelLevelThatIsAskedFor) {
  const TextData data(3000);
  const std::string report = data.path("report.json");
  ProcessOptions options;
  options.environment["TSP_KERNELS"] = "baseline";
  std::vector<std::string> arguments = train(data, "tsp=2");
  arguments.insert(arguments.end(), {"--json", report});
  const Finished run = run_tsprun(arguments, options);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  EXPECT_EQ(read_json(report).at("kernels"), "baseline");
}

TEST(Train, GoesOnBitIdenticallyAndUnderAnotherLayout) {
  const TextData data(3000);
  const std::string folder = data.path("checkpoints");
  const json whole = run_for_report(data, train(data, "tsp=2", {"--lr", "0.001", "--save", folder, "--save-every", "2"}));
  EXPECT_TRUE(std::filesystem::exists(folder + "/step-000002/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/step-000004/model.safetensors"));
  const std::vector<std::string> resume = {"train", "--resume", folder + "/step-000002", "--data", data.text(), "--steps", "4"};
  for (const char* layout : {"tsp=2", "tsp=4"}) {
    std::vector<std::string> arguments = resume;
    arguments.insert(arguments.end(), {"--layout", layout});
    const json rest = run_for_report(data, arguments);
    ASSERT_EQ(rest.at("steps").size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      const double then = whole.at("steps").at(2 + i).at("loss");
      const double now = rest.at("steps").at(i).at("loss");
      EXPECT_EQ(rest.at("steps").at(i).at("step"), 3 + i);
      if (std::string(layout) == "tsp=2") EXPECT_EQ(now, then);
      else EXPECT_NEAR(now, then, 1e-4);
    }
  }
}

TEST(Train, GoesOnByItselfAfterARankWasKilled) {
  const TextData data(3000);
  const std::string report = data.path("report.json");
  Process job({tsprun_path(),
               "train",
               "-n",
               "2",
               "--config",
               "nano",
               "--data",
               data.text(),
               "--steps",
               "400",
               "--seq",
               "64",
               "--save",
               data.path("checkpoints"),
               "--save-every",
               "20",
               "--max-restarts",
               "1",
               "--json",
               report});
  ASSERT_TRUE(job.wait_for_output("saved ", 1)) << job.out() << job.err();
  std::vector<pid_t> ranks = job.marked();
  std::erase(ranks, job.pid());
  ASSERT_FALSE(ranks.empty());
  ::kill(ranks.front(), SIGKILL);
  EXPECT_EQ(job.wait(120).code, 0) << job.err();
  EXPECT_TRUE(job.wait_until_nothing_is_left(2));
  const json result = read_json(report);
  EXPECT_EQ(result.at("restarts"), 1);
  EXPECT_TRUE(result.at("failure").is_null());
  ASSERT_EQ(result.at("steps").size(), 400U);
  for (std::size_t i = 0; i < 400; ++i) EXPECT_EQ(result.at("steps").at(i).at("step"), i + 1);
}

TEST(Train, ABudgetThatIsTooSmallIsNamedBeforeRanksRun) {
  const TextData data(3000);
  const Finished before = run_tsprun(train(data, "tsp=2", {"--mem-per-rank", "1M", "--dtype", "f64"}));
  EXPECT_EQ(before.end.code, 2) << before.describe();
  EXPECT_NE(before.err.find("too small by"), std::string::npos) << before.describe();
  // A little more than it holds in any case: what it needs is found by playing it.
  const Finished played = run_tsprun(train(data, "tsp=2", {"--mem-per-rank", "1400K"}));
  EXPECT_EQ(played.end.code, 2) << played.describe();
  const std::size_t at = played.err.find("needs ");
  ASSERT_NE(at, std::string::npos) << played.describe();
  const std::string least = std::to_string(std::stoull(played.err.substr(at + 6)));
  EXPECT_EQ(run_tsprun(train(data, "tsp=2", {"--mem-per-rank", least, "--steps", "2"})).end.code, 0);
  EXPECT_EQ(run_tsprun(train(data, "tsp=2", {"--mem-per-rank", std::to_string(std::stoull(least) - 1), "--steps", "2"})).end.code,
            2);
}

TEST(Train, EndsWithTheSignalItGets) {
  const TextData data(3000);
  Process job({tsprun_path(), "train", "-n", "2", "--config", "nano", "--data", data.text(), "--steps", "1000000"});
  ASSERT_TRUE(job.wait_for_output("loss", 2)) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait().code, 128 + SIGINT) << job.err();
  EXPECT_TRUE(job.wait_until_nothing_is_left(2));
}

TEST(Eval, LossAndLogitsAreThoseOfOneRank) {
  const TextData data(3000);
  const auto evaluate = [&](const char* ranks) {
    const std::string logits = data.path(fmt::format("logits{}.safetensors", ranks));
    const json report = run_for_report(data, {"eval", "-n", ranks, "--config", "nano", "--data", data.text(), "--seq", "250",
                                              "--batch", "5", "--dtype", "f64", "--logits", logits});
    EXPECT_EQ(report.at("tokens"), 2999);
    EXPECT_EQ(report.at("windows"), 12);
    const safetensors::File file(logits);
    const std::vector<std::size_t> shape = {12, 250, 256};
    const safetensors::TensorInfo& tensor = file.require("logits", shape);
    EXPECT_EQ(tensor.type, StoredType::F32);
    std::vector<float> values(tensor.elements());
    file.read(tensor, Buffer(std::span(values)));
    return std::pair(report.at("loss").get<double>(), values);
  };
  const auto [loss, logits] = evaluate("1");
  EXPECT_NEAR(loss, std::log(256.0), 0.1);

  // The loss is the mean of what the logits say; rows past the end are zero.
  std::ifstream stream(data.text(), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  double sum = 0;
  for (std::size_t t = 0; t + 1 < text.size(); ++t) {
    const std::span row = std::span(logits).subspan(t * 256, 256);
    double total = 0;
    for (const float value : row) total += std::exp(static_cast<double>(value));
    sum += std::log(total) - static_cast<double>(row[static_cast<unsigned char>(text[t + 1])]);
  }
  EXPECT_NEAR(loss, sum / 2999, 1e-6);
  EXPECT_TRUE(std::all_of(logits.begin() + 2999 * 256, logits.end(), [](float value) { return value == 0; }));

  for (const char* ranks : {"2", "4"}) {
    const auto [other_loss, other_logits] = evaluate(ranks);
    EXPECT_NEAR(loss, other_loss, 1e-12);
    double worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      worst = std::max(worst, static_cast<double>(std::fabs(logits[i] - other_logits[i])));
    }
    EXPECT_LT(worst, 1e-6);
  }
}

TEST(Eval, LeavesNoFileWhenItIsRefusedOrKilled) {
  const TextData data(3000);
  const Finished run =
      run_tsprun({"eval", "--config", "nano", "--data", data.text(), "--logits", "/no/such/folder/l.safetensors"});
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("--logits /no/such/folder"), std::string::npos) << run.describe();
}

TEST(ModelRefusal, NamesOptionValueAndWhatWorks) {
  const TextData data(3000);
  const auto refused = [&](const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_EQ(run.out, "") << run.describe();
    EXPECT_EQ(lines_of(run.err).size(), 1U) << run.describe();
    for (const std::string& word : words) EXPECT_NE(run.err.find(word), std::string::npos) << run.describe();
  };
  refused(train(data, "tsp=3"), {"--layout tsp=3", "8 query heads", "try 2 or 4"});
  refused(train(data, "tp=3"), {"--layout tp=3", "8 query heads", "try 2 or 4"});
  refused(train(data, "tsp=2", {"--steps", "0"}), {"--steps 0", "try 1"});
  refused(train(data, "tsp=2", {"--lr", "-1"}), {"--lr -1", "try 0"});
  refused(train(data, "tsp=2", {"--eps", "1e-46"}), {"--eps 1e-46", "--dtype f32", "1.18e-38", "try --eps 1e-8"});
  refused(train(data, "tsp=2", {"--beta1", "1"}), {"--beta1 1", "try 0.9"});
  refused(train(data, "tsp=2", {"--save-every", "5"}), {"--save-every 5", "--save"});
  refused(train(data, "tsp=2", {"--keep", "2"}), {"--keep 2", "--save DIR"});
  refused(train(data, "tsp=2", {"--resume", data.path("nowhere")}), {"nowhere"});
  refused(train(data, "tsp=2", {"--threads", "0"}), {"--threads 0", "try 1"});
  refused(train(data, "tsp=3", {"--trace", data.path("refused.json")}), {"tsp=3"});
  EXPECT_FALSE(std::filesystem::exists(data.path("refused.json")));
  refused(train(data, "tsp=2", {"--trace", "/no/such/folder/t.json"}), {"--trace /no/such/folder"});
  refused({"bench", "barrier", "--trace", "t.json"}, {"--trace t.json"});
  refused(train(data, "tsp=2", {"--trace-steps", "1:2"}), {"--trace-steps 1:2", "give --trace FILE"});
  refused(train(data, "tsp=2", {"--trace-flows", "none"}), {"--trace-flows none", "give --trace FILE"});
  const std::string unwritten = data.path("refused.json");
  refused(train(data, "tsp=2", {"--trace", unwritten, "--trace-flows", "few"}),
          {"--trace-flows few", "all, neighbours and none work"});
  refused(train(data, "tsp=2", {"--trace", unwritten, "--trace-steps", "3:2"}), {"--trace-steps 3:2", "try --trace-steps 2:3"});
  refused(train(data, "tsp=2", {"--trace", unwritten, "--trace-steps", "0:2"}), {"--trace-steps 0", "1"});
  refused(train(data, "tsp=2", {"--trace", unwritten, "--trace-steps", "8:9"}),
          {"--trace-steps 8:9", "steps 1 to 4 are trained"});
  refused({"eval", "--config", "nano", "--data", data.text(), "--trace", unwritten, "--trace-steps", "1"},
          {"--trace-steps 1", "eval has no training steps"});
  EXPECT_FALSE(std::filesystem::exists(unwritten));
  refused({"train", "--config", "nano"}, {"--data"});
  refused({"eval", "--data", data.text()}, {"--config"});
  ProcessOptions options;
  options.environment["TSP_KERNELS"] = "sse9";
  const Finished run = run_tsprun(train(data, "tsp=2"), options);
  EXPECT_EQ(run.end.code, 2);
  EXPECT_NE(run.err.find("TSP_KERNELS=sse9"), std::string::npos) << run.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::model_commands_test
