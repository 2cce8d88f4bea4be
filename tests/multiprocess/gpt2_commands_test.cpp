// Models of GPT-2's kind through the commands: the same curve under every layout, dropout included; a checkpoint that is
// evaluated and generates; what isn't supported, refused by name.
#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::gpt2_commands_test {
namespace {

using nlohmann::json;

/// A folder with text and a small GPT-2's config.json, which drops.
class Gpt2Files {
 public:
  Gpt2Files() {
    std::ofstream text(path("text.txt"), std::ios::binary);
    for (int i = 0; i < 200; ++i) text << "line " << i * i % 97 << " of " << i << "\n";
    std::ofstream(path("config.json")) << json{{"model_type", "gpt2"}, {"n_embd", 24},      {"n_layer", 2},
                                               {"n_head", 4},          {"n_positions", 64}, {"vocab_size", 256},
                                               {"resid_pdrop", 0.2},   {"embd_pdrop", 0.1}, {"attn_pdrop", 0.3}}
                                              .dump();
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

 private:
  TemporaryDirectory folder_;
};

std::vector<std::string> train(const Gpt2Files& files, std::vector<std::string> more, const std::string& steps = "4",
                               const std::string& dtype = "f64") {
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
                                        steps,
                                        "--dtype",
                                        dtype,
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
        std::uint64_t received = 0;
        for (const json& rank : report.at("per_rank"))
          received += rank.at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>();
        EXPECT_EQ(received, bytes.at("received").get<std::uint64_t>()) << layout[1] << ", " << pass << ", " << purpose;
      }
    }
  }
}

/// nano-gpt2 with dropout of attention probabilities alone, in f32.
TEST(Gpt2, DropsTheSameAttentionProbabilitiesUnderEveryLayoutAndOverEveryTransport) {
  const Gpt2Files files;
  const auto curve = [&](double dropped, const std::vector<std::string>& how) {
    std::ofstream(files.path("config.json"))
        << json{{"model_type", "gpt2"}, {"n_embd", 64},       {"n_layer", 2},      {"n_head", 8},          {"n_positions", 256},
                {"vocab_size", 256},    {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"attn_pdrop", dropped}}
               .dump();
    const json report = report_of(files, train(files, how, "8", "f32"));
    json steps = json::array();
    for (const json& step : report.at("steps")) steps.push_back({step.at("loss"), step.at("grad_norm")});
    return steps;
  };
  const auto distance = [](const json& a, const json& b) {  // relative, of losses
    EXPECT_EQ(a.size(), b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double loss = a[i][0].get<double>();
      largest = std::max(largest, std::abs(b[i][0].get<double>() / loss - 1));
    }
    return largest;
  };
  const json one = curve(0.1, {"--layout", "tsp=1"});
  ASSERT_EQ(one.size(), 8U);
  const json tsp = curve(0.1, {"--layout", "tsp=4", "--recompute", "full"});
  EXPECT_LE(distance(one, tsp), 1e-4);
  EXPECT_LE(distance(one, curve(0.1, {"--layout", "tp=2,sp=2", "--sp", "ring"})), 1e-4);
  EXPECT_GT(distance(one, curve(0, {"--layout", "tsp=1"})), 1e-3) << "nothing was dropped";
  EXPECT_EQ(curve(0.1, {"--layout", "tsp=4", "--recompute", "full", "--nodes", "2"}), tsp);
  EXPECT_EQ(curve(0.1, {"--layout", "tsp=4", "--recompute", "none", "--threads", "2"}), tsp);
}

TEST(Gpt2, ItsCheckpointIsEvaluatedAndGenerates) {
  const Gpt2Files files;
  report_of(files, train(files, {"-n", "2", "--save", files.path("run")}));
  const std::string folder = files.path("run") + "/step-000004";
  double loss = 0;
  std::string text;
  const auto expect_same = [&](const char* ranks) {
    const json evaluated = report_of(files, {"eval", "-n", ranks, "--model", folder, "--data", files.path("text.txt"), "--seq",
                                             "50", "--dtype", "f64", "--json", files.path("report.json")});
    const json generated = report_of(files, {"generate", "-n", ranks, "--model", folder, "--prompt", "line 1", "--tokens", "20",
                                             "--temperature", "0", "--dtype", "f64", "--json", files.path("report.json")});
    if (loss == 0) loss = evaluated.at("loss").get<double>();
    if (text.empty()) text = generated.at("generate").at("text").get<std::string>();
    EXPECT_NEAR(evaluated.at("loss").get<double>(), loss, 1e-11 * loss);
    EXPECT_EQ(generated.at("generate").at("text").get<std::string>(), text);
  };
  expect_same("1");
  expect_same("2");
  EXPECT_GT(loss, 0);
  EXPECT_FALSE(text.empty());
  // Nothing is dropped: a model that never drops says the same.
  json config = read_json(folder + "/config.json");
  EXPECT_EQ(config.at("attn_pdrop").get<double>(), 0.3);
  for (const char* field : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[field] = 0;
  std::ofstream(folder + "/config.json") << config.dump();
  std::filesystem::remove(folder + "/manifest.json");  // it is another model now
  expect_same("1");
}

TEST(Gpt2, WhatIsntSupportedIsRefusedByName) {
  const auto expect_refused = [](const std::vector<std::string>& arguments, const std::string& what) {
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_NE(run.err.find(what), std::string::npos) << run.describe();
  };
  const Gpt2Files files;
  expect_refused({"block", "--config", files.path("config.json"), "--weights", "w", "--input", "x", "--output", "y"}, "Llama");
  std::vector<std::string> longer = train(files, {"-n", "1"});
  longer[6] = "65";
  expect_refused(longer, "64 positions");
}

}  // namespace
}  // namespace tsprun::detail::test::gpt2_commands_test
