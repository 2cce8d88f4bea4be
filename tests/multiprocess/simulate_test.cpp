// A played step beside a training that ran: the same bytes for every purpose that doesn't depend on the text, in the same order.
#include "tests/support/process.h"
#include "tsprun/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::simulate_test {
namespace {

using nlohmann::json;

void write_text(const std::string& file) {
  std::ofstream text(file);
  for (int i = 0; i < 4000; ++i) text << "number " << i * 7919 % 4001 << '\n';
}

/// Runs tsprun with these words and the model's.
void run(std::vector<std::string> words, const std::vector<std::string>& model) {
  words.insert(words.end(), model.begin(), model.end());
  const Finished finished = run_tsprun(words);
  ASSERT_EQ(finished.end.code, 0) << finished.describe();
}

TEST(SimulateCommand, MovesWhatATrainingMoves) {
  const TemporaryDirectory folder;
  write_text(folder.path("text.txt"));
  std::ofstream(folder.path("windows.json"))
      << R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 256,
             "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
             "sliding_window": 11, "tie_word_embeddings": false})";
  const std::string windows = folder.path("windows.json");
  for (const auto& [layout, config] : {std::pair<std::string, std::string>{"tsp=4", "micro"},
                                       {"tp=2,sp=2", "micro"},
                                       {"zero3=4", "micro"},
                                       {"dp=2,tsp=2", "micro"},
                                       {"tsp=4", windows},
                                       {"sp=4", windows}}) {
    const std::vector<std::string> model = {"--layout", layout, "--config", config, "--batch", "2", "--seq", "64"};
    run({"train", "--data", folder.path("text.txt"), "--steps", "1", "--json", folder.path("t.json")}, model);
    run({"simulate", "--machine", "mi300x", "--json", folder.path("s.json")}, model);
    const json played = read_json(folder.path("s.json")).at("simulate").at(0).at("traffic_bytes");
    const json ranks = read_json(folder.path("t.json")).at("per_rank");
    for (const char* purpose : {"weights", "kv", "activations", "gradients", "head"}) {
      std::uint64_t sum = 0;
      for (const json& rank : ranks) {
        for (const char* pass : {"forward", "backward"})
          sum += rank.at("traffic_bytes").at(pass).at(purpose).at("received").get<std::uint64_t>();
      }
      EXPECT_EQ(played.at(purpose), sum) << layout << ", " << purpose;
    }
  }
}

/// Returns the names of a trace's kernels and operations in order, by rank and row. Spans of the schedule aren't played, and
/// whether something is waited for depends on time.
std::map<std::pair<int, int>, std::vector<std::string>> order(const std::string& file) {
  std::vector<json> slices;
  const json trace = read_json(file);
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name") != "wait" && event.at("tid") < TraceEvent::kSpans) slices.push_back(event);
  }
  std::ranges::stable_sort(
      slices, {}, [](const json& slice) { return std::pair(slice.at("ts").get<double>(), slice.at("dur").get<double>()); });
  std::map<std::pair<int, int>, std::vector<std::string>> names;
  for (const json& slice : slices) names[{slice.at("pid"), slice.at("tid")}].push_back(slice.at("name"));
  return names;
}

TEST(SimulateCommand, TracesTheOrderInWhichATrainingWorks) {
  const TemporaryDirectory folder;
  write_text(folder.path("text.txt"));
  for (const char* layout : {"dp=2,tsp=2", "tp=2,sp=2"}) {
    const std::vector<std::string> model = {"--layout", layout, "--config", "micro", "--batch", "4", "--seq", "64"};
    // Buffers that are kept for later steps exist from the second on, so that is the one that is played.
    run({"train", "--data", folder.path("text.txt"), "--steps", "2", "--trace", folder.path("t.json"), "--trace-steps", "2:2"},
        model);
    run({"simulate", "--machine", "mi300x", "--fold", "off", "--trace", folder.path("s.json")}, model);
    const auto real = order(folder.path("t.json"));
    EXPECT_GE(real.size(), 4U * 4) << layout;
    EXPECT_EQ(order(folder.path("s.json")), real) << layout;
  }
}

// What a counter of a link adds up to is what the report says of its kind's busiest link, and no counter is faster than its link.
TEST(SimulateCommand, LinksAreCountersThatAddUpToTheReportsBytes) {
  const TemporaryDirectory folder;
  for (const auto& [layout, every_link] : {std::pair("dp=2,tsp=8", true), std::pair("dp=4,tsp=4", false)}) {
    run({"simulate", "--machine", "mi300x", "--fold", every_link ? "on" : "off", "--trace", folder.path("t.json"), "--json",
         folder.path("s.json")},
        {"--layout", layout, "--config", "micro", "--batch", "4", "--seq", "256"});
    struct Counter {
      double at = 0;
      double rate = 0;
      double bytes = 0;
    };
    std::map<std::string, Counter> counters;
    const json trace = read_json(folder.path("t.json"));
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "C" || !event.at("args").contains("bytes/s")) continue;
      const std::string name = event.at("name");
      Counter& counter = counters[name];
      const double at = event.at("ts");
      EXPECT_GE(at, counter.at);
      counter.bytes += (at - counter.at) * 1e-6 * counter.rate;
      counter.at = at;
      counter.rate = event.at("args").at("bytes/s");
      EXPECT_LE(counter.rate, (name.starts_with("NIC") ? 42e9 : 48e9) * (1 + 1e-9)) << name;
    }
    const json links = read_json(folder.path("s.json")).at("simulate").at(0).at("links");
    ASSERT_EQ(links.size(), 3U) << layout;
    // A unit of 8 GPUs has 56 links; of 16 there would be too many counters.
    EXPECT_EQ(counters.size(), every_link ? 56U + 8 + 8 : 3U) << layout;
    for (const json& link : links) {
      const std::string kind = link.at("kind");
      double most = 0;
      for (const auto& [name, counter] : counters) {
        EXPECT_EQ(counter.rate, 0) << name;
        if (name.starts_with(kind)) most = std::max(most, counter.bytes);
      }
      const double bytes = link.at("bytes");
      EXPECT_NEAR(most, bytes, 1e-9 * bytes) << layout << ", " << kind;
    }
  }
}

/// Returns what a run of tsprun that must be refused says.
std::string refused(const std::vector<std::string>& words) {
  const Finished finished = run_tsprun(words);
  EXPECT_EQ(finished.end.code, 2) << finished.describe();
  return finished.err;
}

TEST(CalibrateCommand, WritesAMachineThatPlaysWhatCompareMeasured) {
  const TemporaryDirectory folder;
  write_text(folder.path("text.txt"));
  run({"compare", "--layouts", "tsp=2;tp=2;tsp=3", "--seqs", "32,64", "--data", folder.path("text.txt"), "--steps", "1",
       "--threads", "1", "--json", folder.path("m.json")},
      {"--config", "nano"});
  run({"calibrate", "--like", folder.path("m.json"), "--passes", "1", "--json", folder.path("host.json")}, {});
  run({"simulate", "--machine", folder.path("host.json"), "--against", folder.path("m.json"), "--json", folder.path("s.json")},
      {});
  const json measured = read_json(folder.path("m.json")).at("compare");
  const json report = read_json(folder.path("s.json"));
  std::vector<json> points;
  for (const json& row : measured) {
    if (row.contains("step_seconds")) points.push_back(row);
  }
  const json& played = report.at("simulate");
  ASSERT_EQ(played.size(), points.size());
  ASSERT_GE(played.size(), 4U);
  double largest = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(played[i].at("layout"), points[i].at("label"));
    EXPECT_EQ(played[i].at("seq"), points[i].at("seq"));
    const double seconds = played[i].at("measured_seconds");
    EXPECT_EQ(seconds, points[i].at("step_seconds"));
    const double error = played[i].at("error");
    EXPECT_NEAR(error, (played[i].at("seconds").get<double>() - seconds) / seconds, 1e-9);
    largest = std::max(largest, std::abs(error));
  }
  EXPECT_DOUBLE_EQ(report.at("against").at("largest_error"), largest);
  // What it lacks, and what it isn't.
  const std::string host = folder.path("host.json");
  EXPECT_NE(
      refused({"simulate", "--machine", host, "--layout", "tsp=2", "--config", "nano", "--dtype", "bf16"}).find("--dtype bf16: "),
      std::string::npos);
  EXPECT_NE(refused({"simulate", "--machine", host, "--against", host}).find("not a report of compare, but of \"calibrate\""),
            std::string::npos);
  json damaged = read_json(folder.path("m.json"));
  damaged["compare"][0]["forward_only"] = "yes";
  std::ofstream(folder.path("damaged.json")) << damaged;
  EXPECT_NE(refused({"simulate", "--machine", host, "--against", folder.path("damaged.json")})
                .find("field \"compare[0].forward_only\": expected true or false"),
            std::string::npos);
  json of_nodes = read_json(folder.path("m.json"));
  of_nodes["nodes"] = 2;
  std::ofstream(folder.path("nodes.json")) << of_nodes;
  EXPECT_NE(
      refused({"simulate", "--machine", host, "--against", folder.path("nodes.json")}).find("field \"nodes\": expected 1, for"),
      std::string::npos);
  json of_tcp = read_json(folder.path("m.json"));
  EXPECT_EQ(of_tcp["compare"][1]["transports"][0]["kind"], "shm") << of_tcp["compare"][1];
  of_tcp["compare"][1]["transports"][0]["kind"] = "tcp";
  std::ofstream(folder.path("tcp.json")) << of_tcp;
  EXPECT_NE(refused({"simulate", "--machine", host, "--against", folder.path("tcp.json")})
                .find("field \"compare[1].transports[0].kind\": expected \"shm\", for what is played here is shared memory"),
            std::string::npos);
  EXPECT_NE(refused({"simulate", "--machine", host, "--against", folder.path("m.json"), "--sp", "ring"})
                .find("it says which models, layouts and sizes; leave --sp ring out"),
            std::string::npos);
  EXPECT_NE(refused({"simulate", "--machine", "mi300x", "--against", folder.path("m.json")}).find("mi300x describes GPUs"),
            std::string::npos);
  EXPECT_NE(refused({"plan", "--machine", host, "--layout", "tsp=2", "--config", "nano"}).find("simulate"), std::string::npos);
  EXPECT_NE(refused({"calibrate", "--config", "nano"}).find("calibrate needs what to time"), std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::test::simulate_test
