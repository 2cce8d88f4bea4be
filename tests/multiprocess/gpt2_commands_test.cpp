// Models of GPT-2's kind through the commands: the same curve under every layout, dropout included; a checkpoint that is
// evaluated and generates; what isn't supported, refused by name.
#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tsp::test::gpt2_commands_test {
namespace {

using nlohmann::json;

/// A folder with text and a small GPT-2's config.json, which drops.
class Gpt2Files {
 public:
  explicit Gpt2Files(double attention_dropout = 0) {
    std::ofstream text(path("text.txt"), std::ios::binary);
    for (int i = 0; i < 200; ++i) text << "line " << i * i % 97 << " of " << i << "\n";
    std::ofstream(path("config.json")) << json{{"model_type", "gpt2"}, {"n_embd", 24},      {"n_layer", 2},
                                               {"n_head", 4},          {"n_positions", 64}, {"vocab_size", 256},
                                               {"resid_pdrop", 0.2},   {"embd_pdrop", 0.1}, {"attn_pdrop", attention_dropout}}
                                              .dump();
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

 private:
  TemporaryDirectory folder_;
};

std::vector<std::string> train(const Gpt2Files& files, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"train",
                                        "--config",
                                        files.path("config.json"),
                                        "--data",
                                        files.path("text.txt"),
                                        "--seq",
                                        "37",
                                        "--batch",
                                        "2",
                                        "--steps",
                                        "4",
                                        "--dtype",
                                        "f64",
                                        "--json",
                                        files.path("report.json"),
                                        "--lr",
                                        "1e-2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

json report_of(const Gpt2Files& files, const std::vector<std::string>& arguments) {
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return read_json(files.path("report.json"));
}

TEST(Gpt2, TrainsAlongTheSameCurveUnderEveryLayoutAndReceivesWhatTheFormulasSay) {
  const Gpt2Files files;
  const json one = report_of(files, train(files, {"-n", "1"})).at("steps");
  ASSERT_EQ(one.size(), 4U);
  const std::vector<std::vector<std::string>> layouts = {{"--layout", "tsp=4", "--recompute", "full"},
                                                         {"--layout", "tp=2,sp=2", "--tp", "sequence"},
                                                         {"--layout", "dp=2,zero3=2", "--recompute", "selective"}};
  for (const auto& layout : layouts) {
    const json report = report_of(files, train(files, layout));
    for (std::size_t i = 0; i < one.size(); ++i) {
      const double loss = one[i].at("loss").get<double>();
      EXPECT_NEAR(report.at("steps").at(i).at("loss").get<double>(), loss, 1e-9 * loss) << layout[1] << ", step " << i + 1;
      const double norm = one[i].at("grad_norm").get<double>();
      EXPECT_NEAR(report.at("steps").at(i).at("grad_norm").get<double>(), norm, 1e-9 * norm) << layout[1] << ", step " << i + 1;
    }
    const json& theory = report.at("theory").at("all_ranks").at("traffic_bytes");
    for (const char* pass : {"forward", "backward"}) {
      for (const auto& [purpose, bytes] : theory.at(pass).items()) {
        if (purpose == "other") continue;  // any algorithm
        std::uint64_t received = 0;
        for (const json& rank : report.at("per_rank"))
          received += rank.at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>();
        EXPECT_EQ(received, bytes.at("received").get<std::uint64_t>()) << layout[1] << ", " << pass << ", " << purpose;
      }
    }
  }
}

TEST(Gpt2, ItsCheckpointIsEvaluatedAndGenerates) {
  const Gpt2Files files;
  report_of(files, train(files, {"-n", "2", "--save", files.path("run")}));
  const std::string folder = files.path("run") + "/step-000004";
  double loss = 0;
  std::string text;
  for (const char* ranks : {"1", "2"}) {
    const json evaluated = report_of(files, {"eval", "-n", ranks, "--model", folder, "--data", files.path("text.txt"), "--seq",
                                             "50", "--dtype", "f64", "--json", files.path("report.json")});
    const json generated = report_of(files, {"generate", "-n", ranks, "--model", folder, "--prompt", "line 1", "--tokens", "20",
                                             "--temperature", "0", "--dtype", "f64", "--json", files.path("report.json")});
    if (loss == 0) loss = evaluated.at("loss").get<double>();
    if (text.empty()) text = generated.at("generate").at("text").get<std::string>();
    EXPECT_NEAR(evaluated.at("loss").get<double>(), loss, 1e-11 * loss);
    EXPECT_EQ(generated.at("generate").at("text").get<std::string>(), text);
  }
  EXPECT_GT(loss, 0);
  EXPECT_FALSE(text.empty());
}

TEST(Gpt2, WhatIsntSupportedIsRefusedByName) {
  const auto expect_refused = [](const std::vector<std::string>& arguments, const std::string& what) {
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_NE(run.err.find(what), std::string::npos) << run.describe();
  };
  const Gpt2Files dropping(0.1);
  expect_refused(train(dropping, {"-n", "1"}), "\"attn_pdrop\"");
  const Gpt2Files files;
  expect_refused({"block", "--config", files.path("config.json"), "--weights", "w", "--input", "x", "--output", "y"}, "Llama");
  std::vector<std::string> longer = train(files, {"-n", "1"});
  longer[6] = "65";
  expect_refused(longer, "64 positions");
}

}  // namespace
}  // namespace tsp::test::gpt2_commands_test
