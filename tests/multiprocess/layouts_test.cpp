// The model commands under every layout from the command line: the same numbers, the bytes of the formulas, files that any layout
// reads; refusals by name.
#include "layers/io/safetensors.h"
#include "layers/io/safetensors_writer.h"
#include "tests/support/each_axis.h"
#include "tests/support/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test::layouts_test {
namespace {

using nlohmann::json;

/// Holds what stands after the command: a layout and its variant.
using Arguments = std::vector<std::string>;

std::string joined(const Arguments& arguments) {
  std::string text;
  for (const std::string& argument : arguments) text += argument + " ";
  return text;
}

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Returns what is typed for a layout: its axes, and the options of their variants.
Arguments typed(const Layout& layout) {
  Arguments words = {"--layout", layout.print()};
  for (const AxisRow& row : kAxes) {
    if (layout.variant(row.kind) == 0) continue;
    words.push_back("--" + std::string(row.name));
    words.emplace_back(variant_name(layout, row));
  }
  return words;
}

std::vector<Arguments> layouts() {
  std::vector<Arguments> all;
  for (const Layout& layout : each_axis(
           4, {Layout::parse("tp=2,sp=2"), Layout::parse("sp=2,tp=2").with(TensorExchange::sequence).with(SequenceExchange::ring),
               Layout::parse("tp=2,tsp=2"), Layout::parse("dp=2,tsp=2"), Layout::parse("dp=2,tp=2,sp=2")})) {
    all.push_back(typed(layout));
  }
  return all;
}

json run_for_report(const TextData& data, const Arguments& arguments) {
  const std::string report = data.path("report.json");
  const Finished run = run_tsprun(arguments + Arguments{"--json", report});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return read_json(report);
}

std::uint64_t received(const json& per_rank, const std::string& pass, const std::string& purpose) {
  std::uint64_t sum = 0;
  for (const json& rank : per_rank) sum += rank.at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>();
  return sum;
}

void expect_as_forecast(const json& report, const std::string& where) {
  const json& measured = report.at("per_rank");
  const json& theory = report.at("theory");
  for (const char* pass : {"forward", "backward"}) {
    for (const char* purpose : {"weights", "kv", "activations", "gradients", "embedding", "head", "other"}) {
      EXPECT_EQ(received(measured, pass, purpose),
                theory.at("all_ranks").at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>())
          << where << pass << " " << purpose;
    }
  }
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    EXPECT_EQ(measured[rank].at("memory_peak_bytes"), theory.at("per_rank")[rank].at("memory_peak_bytes")) << where;
  }
}

TEST(Layouts, TrainTheSameModelAndMoveWhatTheFormulasSay) {
  const TextData data(1200);
  const Arguments train = {"train",   "--config", "nano",    "--data", data.text(), "--seq", "37",
                           "--batch", "4",        "--steps", "3",      "--dtype",   "f64",   "--recompute"};
  const json one = run_for_report(data, train + Arguments{"none", "-n", "1"});
  const char* const modes[] = {"none", "selective", "full"};
  std::size_t number = 0;
  for (const Arguments& layout : layouts()) {
    const json many = run_for_report(data, train + Arguments{modes[number++ % 3]} + layout);
    ASSERT_EQ(many.at("steps").size(), 3U) << joined(layout);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(many.at("steps").at(i).at("loss").get<double>(), one.at("steps").at(i).at("loss").get<double>(), 1e-11)
          << joined(layout);
      EXPECT_NEAR(many.at("steps").at(i).at("grad_norm").get<double>(), one.at("steps").at(i).at("grad_norm").get<double>(),
                  1e-10)
          << joined(layout);
    }
    expect_as_forecast(many, joined(layout));
  }
}

TEST(Layouts, MicroBatchesChangeNoLossAndMoveWhatTheFormulasSay) {
  const TextData data(1200);
  const Arguments train = {"train",   "--config", "nano",    "--data", data.text(), "--seq", "37",
                           "--batch", "12",       "--steps", "3",      "--dtype",   "f64",   "--recompute"};
  const json one = run_for_report(data, train + Arguments{"none", "-n", "1"});
  const char* const modes[] = {"none", "selective", "full"};
  std::size_t number = 0;
  for (const Arguments& layout : layouts()) {
    const Arguments parts = {"--micro-batches", "3"};
    const json many = run_for_report(data, train + Arguments{modes[number++ % 3]} + parts + layout);
    ASSERT_EQ(many.at("steps").size(), 3U) << joined(layout);
    EXPECT_EQ(many.at("micro_batches"), 3) << joined(layout);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(many.at("steps").at(i).at("loss").get<double>(), one.at("steps").at(i).at("loss").get<double>(), 1e-11)
          << joined(layout);
    }
    expect_as_forecast(many, joined(layout));
  }
}

TEST(Layouts, ARunOfMicroBatchesGoesOnWithAsMany) {
  const TextData data(1200);
  const std::string folder = data.path("checkpoints");
  const Arguments train = {"train", "--data", data.text(), "--steps", "4"};
  const json whole = run_for_report(data, train + Arguments{"--config", "nano", "--seq", "37", "--batch", "4", "--micro-batches",
                                                            "2", "--layout", "tsp=2", "--save", folder, "--save-every", "2"});
  const json rest = run_for_report(data, train + Arguments{"--resume", folder + "/step-000002", "--layout", "tsp=2"});
  EXPECT_EQ(rest.at("micro_batches"), 2);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(rest.at("steps").at(i).at("loss"), whole.at("steps").at(2 + i).at("loss"));
}

TEST(Layouts, MicroBatchesThatDontDivideAreRefusedBeforeRanksStart) {
  const TextData data(1200);
  const Finished run = run_tsprun({"train", "--config", "nano", "--data", data.text(), "--seq", "37", "--batch", "4", "--layout",
                                   "dp=2,tsp=2", "--micro-batches", "4"});
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("--micro-batches 4 doesn't divide the 2 sequences of --batch 4 that each rank of dp=2 has; try "
                         "--micro-batches 2 or --batch 8"),
            std::string::npos)
      << run.describe();
}

// Every figure: the sums of the loss and of norm gains' gradients among them, whose algorithm depends on the ranks, on what they
// can read of each other, and on the size. The learned positions of nano-gpt2 are long enough for every algorithm.
TEST(Layouts, TheAuditsFirstLineSaysThatAllEqualsTheForecast) {
  const TextData data(1200);
  const Arguments nano = {"--config", "nano", "--dtype", "f32"};
  const Arguments halves = {"--config", "nano", "--dtype", "bf16"};
  const Arguments gpt2 = {"--config", "nano-gpt2", "--dtype", "f64"};
  const auto expect_equal = [&](const Arguments& layout, const Arguments& way, const Arguments& kind) {
    const Arguments train = {"train", "--data", data.text(), "--seq", "37", "--steps", "2", "--batch", "4"};
    const Finished run = run_tsprun(layout + way + train + kind);
    EXPECT_NE(run.out.find("\naudit: memory and traffic equal the forecast\n"), std::string::npos) << run.describe();
  };
  std::vector<Arguments> all = layouts();
  all.push_back({"-n", "2"});
  all.push_back({"-n", "8"});
  all.push_back({"--layout", "dp=2,zero3=2"});
  all.push_back({"--layout", "dp=2,tp=2", "--dp", "zero1"});
  all.push_back({"--layout", "dp=2,tsp=2", "--dp", "zero3"});
  all.push_back({"--layout", "dp=2,sp=2", "--dp", "zero3"});
  all.push_back({"--layout", "dp=2,shard=2", "--dp", "zero3"});
  all.push_back({"--layout", "tp=2,sp=4", "--sp", "ulysses"});
  const std::vector<Arguments> ways = {{}, {"--intra", "tcp"}, {"--nodes", "2"}, {"--nodes", "2", "--reassociate"}};
  const std::vector<Arguments> kinds = {nano, gpt2, halves};
  std::size_t number = 0;
  for (const Arguments& layout : all) {
    expect_equal(layout, ways[number % ways.size()], kinds[number % kinds.size()]);
    ++number;
  }
  // Long sums of shards that differ, on rings.
  expect_equal({"-n", "8"}, {"--intra", "tcp"}, gpt2);
}

// The last of three sequences makes the data axis' replicas unlike.
TEST(Layouts, AnEvaluationOfUnlikeReplicasMovesWhatIsForecast) {
  const TextData data(1200);
  for (const Arguments& layout : {Arguments{"--layout", "dp=2,tp=2"}, Arguments{"--layout", "dp=2,tsp=2"},
                                  Arguments{"--layout", "dp=4"}, Arguments{"--layout", "dp=4", "--dp", "zero3"}}) {
    const Finished run =
        run_tsprun(layout + Arguments{"eval", "--config", "nano", "--data", data.text(), "--seq", "37", "--batch", "3"});
    EXPECT_NE(run.out.find("\naudit: memory and traffic equal the forecast\n"), std::string::npos) << run.describe();
  }
}

TEST(Layouts, EvaluateToTheSameLossAndLogits) {
  const TextData data(1200);
  const auto evaluate = [&](const Arguments& layout) {
    const std::string logits = data.path("logits.safetensors");
    const json report = run_for_report(data, Arguments{"eval", "--config", "nano", "--data", data.text(), "--seq", "250",
                                                       "--batch", "3", "--dtype", "f64", "--logits", logits} +
                                                 layout);
    const safetensors::File file(logits);
    const std::vector<std::size_t> shape = {5, 250, 256};
    const safetensors::TensorInfo& tensor = file.require("logits", shape);
    std::vector<float> values(tensor.elements());
    file.read(tensor, Buffer(std::span(values)));
    return std::pair(report.at("loss").get<double>(), values);
  };
  const auto [loss, logits] = evaluate({"-n", "1"});
  for (const Arguments& layout : std::vector<Arguments>{{"--layout", "tp=4"},
                                                        {"--layout", "tp=4", "--tp", "sequence"},
                                                        {"--layout", "sp=4", "--sp", "ring"},
                                                        {"--layout", "tp=2,sp=2"},
                                                        {"--layout", "dp=2,tsp=2"}}) {
    const auto [other_loss, other_logits] = evaluate(layout);
    EXPECT_NEAR(loss, other_loss, 1e-12) << joined(layout);
    double worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      worst = std::max(worst, static_cast<double>(std::fabs(logits[i] - other_logits[i])));
    }
    EXPECT_LT(worst, 1e-6) << joined(layout);
  }
}

TEST(Layouts, ACheckpointOfTpGoesOnUnderTsp) {
  const TextData data(1200);
  const std::string folder = data.path("checkpoints");
  const Arguments train = {"train", "--data", data.text(), "--steps", "4"};
  const json whole = run_for_report(data, train + Arguments{"--config", "nano", "--seq", "37", "--layout", "tp=2", "--lr",
                                                            "0.001", "--save", folder, "--save-every", "2"});
  for (const Arguments& layout :
       {Arguments{"--layout", "tsp=4"}, Arguments{"--layout", "tp=2"}, Arguments{"--layout", "zero3=3"}}) {
    const json rest = run_for_report(data, train + Arguments{"--resume", folder + "/step-000002"} + layout);
    ASSERT_EQ(rest.at("steps").size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      const double then = whole.at("steps").at(2 + i).at("loss");
      const double now = rest.at("steps").at(i).at("loss");
      if (layout[1] == "tp=2") EXPECT_EQ(now, then);
      else EXPECT_NEAR(now, then, 1e-4) << joined(layout);
    }
  }
}

/// Tied embeddings, and layers that don't divide; a checkpoint of the pipeline goes on without one.
TEST(Layouts, APipelineTrainsAsForecastAndGoesOnUnderTsp) {
  const TextData data(1200);
  const std::string folder = data.path("checkpoints");
  const std::string config = data.path("config.json");
  std::ofstream(config) << R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000, "hidden_act": "silu", "tie_word_embeddings": true})";
  const Arguments train = {"train", "--data", data.text(), "--steps", "4", "--audit", "strict"};
  const Arguments kind = {"--config", config, "--seq", "37", "--batch", "6", "--dtype", "f64"};
  const json one = run_for_report(data, train + kind + Arguments{"-n", "1"});
  const json piped = run_for_report(data, train + kind +
                                              Arguments{"--layout", "pp=2,tsp=2", "--micro-batches", "3", "--nodes", "2",
                                                        "--save", folder, "--save-every", "2"});
  const json rest = run_for_report(data, train + Arguments{"--resume", folder + "/step-000002", "--layout", "tsp=4"});
  ASSERT_EQ(piped.at("steps").size(), 4U);
  ASSERT_EQ(rest.at("steps").size(), 2U);
  for (std::size_t i = 0; i < 4; ++i) {
    for (const char* figure : {"loss", "grad_norm"}) {
      const double expected = one.at("steps").at(i).at(figure);
      EXPECT_NEAR(piped.at("steps").at(i).at(figure).get<double>(), expected, 1e-11 * expected) << figure << " " << i;
      if (i < 2) continue;
      EXPECT_NEAR(rest.at("steps").at(i - 2).at(figure).get<double>(), expected, 1e-11 * expected) << figure << " " << i;
    }
  }
  EXPECT_NE(received(piped.at("per_rank"), "backward", "activations"), 0U);
}

TEST(Layouts, WhatKnowsNoPipelinesRefusesThemBeforeRanksStart) {
  const TextData data(1200);
  for (const Arguments& command :
       {Arguments{"eval", "--config", "nano", "--data", data.text()}, Arguments{"generate", "--config", "nano"},
        Arguments{"block", "--config", "nano", "--weights", "w", "--input", "x", "--output", "y"},
        Arguments{"simulate", "--config", "nano", "--machine", "mi300x"}}) {
    const Finished run = run_tsprun(command + Arguments{"--layout", "pp=2,tsp=2"});
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_NE(run.err.find("pp=2: pipelines train"), std::string::npos) << run.describe();
  }
  const Finished run = run_tsprun({"train", "--config", "nano", "--data", data.text(), "--layout", "pp=3"});
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("3 stages of 2 layers: each must have one; at most 2 work"), std::string::npos) << run.describe();
}

/// Weights and input of a block with GQA, a head_dim of its own and odd sizes.
struct BlockFiles {
  std::string config;
  std::string weights;
  std::string input;

  explicit BlockFiles(const TextData& data)
      : config(data.path("config.json")), weights(data.path("weights.safetensors")), input(data.path("input.safetensors")) {
    std::ofstream(config) << R"({"hidden_size": 20, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
      "head_dim": 10, "intermediate_size": 23, "vocab_size": 11, "model_type": "llama"})";
    const std::string layer = "model.layers.0.";
    write(weights, {{layer + "input_layernorm.weight", DType::f64, {20}},
                    {layer + "self_attn.q_proj.weight", DType::f64, {80, 20}},
                    {layer + "self_attn.k_proj.weight", DType::f64, {40, 20}},
                    {layer + "self_attn.v_proj.weight", DType::f64, {40, 20}},
                    {layer + "self_attn.o_proj.weight", DType::f64, {20, 80}},
                    {layer + "post_attention_layernorm.weight", DType::f64, {20}},
                    {layer + "mlp.gate_proj.weight", DType::f64, {23, 20}},
                    {layer + "mlp.up_proj.weight", DType::f64, {23, 20}},
                    {layer + "mlp.down_proj.weight", DType::f64, {20, 23}}});
    write(input, {{"x", DType::f64, {3, 13, 20}}, {"dy", DType::f64, {3, 13, 20}}});
  }

 private:
  void write(const std::string& path, const std::vector<safetensors::PlannedTensor>& tensors) {
    const safetensors::Plan plan(tensors);
    safetensors::Writer writer = safetensors::Writer::create(path, plan);
    std::normal_distribution<double> normal(0, 0.3);
    for (const auto& tensor : tensors) {
      std::size_t count = 1;
      for (const std::size_t size : tensor.shape) count *= size;
      std::vector<double> values(count);
      for (double& value : values) value = normal(random_);
      writer.write(tensor.name, ConstBuffer(std::span(values)));
    }
    writer.publish();
  }
  std::mt19937 random_{3};
};

TEST(Layouts, ABlockIsTheSame) {
  const TextData data(1200);
  const BlockFiles files(data);
  const auto tensors = [&](const Arguments& layout) {
    const std::string output = data.path("output.safetensors");
    const json report = run_for_report(data, Arguments{"block", "--config", files.config, "--weights", files.weights, "--input",
                                                       files.input, "--output", output, "--backward", "--dtype", "f64"} +
                                                 layout);
    if (layout[0] == "--layout") expect_as_forecast(report, joined(layout));
    const safetensors::File file(output);
    std::map<std::string, std::vector<double>> all;
    for (const safetensors::TensorInfo& tensor : file.tensors()) {
      std::vector<double>& values = all[tensor.name];
      values.resize(tensor.elements());
      file.read(tensor, Buffer(std::span(values)));
    }
    return all;
  };
  const auto one = tensors({"-n", "1"});
  ASSERT_EQ(one.size(), 11U);
  for (const Arguments& layout : layouts()) {
    if (layout[1].starts_with("dp")) continue;
    const auto many = tensors(layout);
    ASSERT_EQ(many.size(), one.size());
    for (const auto& [name, values] : one) {
      double difference = 0;
      double norm = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        difference += std::pow(many.at(name)[i] - values[i], 2);
        norm += std::pow(values[i], 2);
      }
      EXPECT_LE(std::sqrt(difference), 1e-11 * std::sqrt(norm)) << name << ", " << joined(layout);
    }
  }
}

TEST(Layouts, WhatCantBeIsRefusedByNameBeforeRanksStart) {
  const TextData data(1200);
  const Arguments train = {"train", "--config", "nano", "--data", data.text(), "--steps", "1"};
  const auto refusal = [](const Arguments& arguments) {
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    return run.err;
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(refusal(train + Arguments{"--layout", "tp=3"}), "--layout tp=3: 8 query heads don't divide by 3; try 2 or 4");
  expect(refusal(train + Arguments{"--layout", "dp=2,tp=2", "--batch", "3"}),
         "--batch 3 doesn't divide by dp=2; try --batch 2 or 4");
  expect(refusal(train + Arguments{"--layout", "sp=2", "--tp", "sequence"}), "has no tp axis");
  expect(refusal(train + Arguments{"--layout", "tsp=2", "--dp", "zero1"}), "has no dp axis");
  expect(refusal(train + Arguments{"--layout", "dp=2", "--dp", "zero2", "--batch", "2"}),
         "--dp zero2: dp's ranks share nothing, optimizer states, or weights and gradients, too: plain, zero1 and zero3 work");
  expect(refusal(train + Arguments{"--layout", "dp=2,zero3=2", "--dp", "zero3", "--batch", "2"}),
         "zero3 beside dp (zero3): its ranks have parts of each sublayer's weights already; try --dp zero1");
  expect(refusal(train + Arguments{"--layout", "dp=2,pp=2", "--dp", "zero3", "--batch", "2"}), "pp beside dp (zero3): ");
  expect(refusal(train + Arguments{"--layout", "dp=2,shard=2", "--batch", "4"}), "try --dp zero1 or zero3, or dp=4");
  expect(refusal({"generate", "--config", "nano", "--prompt", "a", "--tokens", "2", "--layout", "dp=2", "--dp", "zero3"}),
         "plain and zero1 work");
  expect(refusal(train + Arguments{"--layout", "sp=2", "--sp", "rings"}), "--sp rings: gather, ring and ulysses work");
  expect(refusal({"generate", "--config", "nano", "--prompt", "a", "--tokens", "2", "--layout", "zero3=2"}),
         "try --layout tsp=2");
  const BlockFiles files(data);
  expect(refusal({"block", "--config", files.config, "--weights", files.weights, "--input", files.input, "--output",
                  data.path("y.safetensors"), "--layout", "dp=2,tp=2"}),
         "dp doesn't work here; try --layout tp=2");
}

}  // namespace
}  // namespace tsprun::detail::test::layouts_test
