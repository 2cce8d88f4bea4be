// --trace: what lies in the file, held against the report of the same run and against the format's own rules.
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tsprun::detail::test::trace_test {
namespace {

using nlohmann::json;

/// Times are printed in nanoseconds of a microsecond: two roundings.
constexpr double kRounding = 0.002;

json train(const TextData& data, const std::string& layout, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"train",
                                        "--layout",
                                        layout,
                                        "--config",
                                        "nano",
                                        "--data",
                                        data.text(),
                                        "--seq",
                                        "37",
                                        "--batch",
                                        "2",
                                        "--json",
                                        data.path("report.json")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return read_json(data.path("report.json"));
}

struct Slice {
  int rank;
  std::string row;
  std::string name;
  double begin;
  double end;
  json arguments;
};

/// A trace taken apart: slices in the file's order, and the other events.
struct Parts {
  std::vector<Slice> slices;
  std::vector<json> counters;
  std::map<std::string, int> begins;
  std::map<std::string, int> ends;
  std::set<std::pair<int, std::string>> rows;
};

Parts take_apart(const json& trace) {
  Parts parts;
  std::map<std::pair<int, int>, std::string> names;
  for (const json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "M" && event.at("name") == "thread_name") {
      names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
      parts.rows.emplace(event.at("pid"), event.at("args").at("name"));
    }
    if (phase == "s") ++parts.begins[event.at("id")];
    if (phase == "f") ++parts.ends[event.at("id")];
    if (phase == "C") parts.counters.push_back(event);
    if (phase != "X") continue;
    const double begin = event.at("ts");
    parts.slices.push_back({.rank = event.at("pid"),
                            .row = names.at({event.at("pid"), event.at("tid")}),
                            .name = event.at("name"),
                            .begin = begin,
                            .end = begin + event.at("dur").get<double>(),
                            .arguments = event.at("args")});
  }
  return parts;
}

std::vector<Slice> of(const Parts& parts, int rank, const std::string& row) {
  std::vector<Slice> slices;
  std::copy_if(parts.slices.begin(), parts.slices.end(), std::back_inserter(slices),
               [&](const Slice& slice) { return slice.rank == rank && slice.row == row; });
  return slices;
}

/// "forward/layer 0" for each span, with all that hold it; fails where one lies neither within nor behind another.
std::vector<std::string> nested(const std::vector<Slice>& spans) {
  std::vector<Slice> open;
  std::vector<std::string> paths;
  for (const Slice& span : spans) {
    while (!open.empty() && open.back().end <= span.begin + kRounding) open.pop_back();
    if (!open.empty()) {
      EXPECT_GE(span.begin, open.back().begin - kRounding) << span.name << " in " << open.back().name;
      EXPECT_LE(span.end, open.back().end + kRounding) << span.name << " in " << open.back().name;
    }
    open.push_back(span);
    std::string path;
    for (const Slice& each : open) path += (path.empty() ? "" : "/") + each.name;
    paths.push_back(path);
  }
  return paths;
}

TEST(Trace, HoldsAllRanksStreamsAndMatchingArrows) {
  const TextData data(3000);
  train(data, "tsp=4", {"--steps", "2", "--trace", data.path("trace.json")});
  const Parts parts = take_apart(read_json(data.path("trace.json")));
  for (int rank = 0; rank < 4; ++rank) {
    for (const char* row : {"schedule", "compute", "control", "weights", "kv", "gradients"}) {
      EXPECT_TRUE(parts.rows.contains({rank, row})) << row;
    }
  }
  EXPECT_FALSE(parts.begins.empty());
  EXPECT_EQ(parts.begins, parts.ends);
  for (const auto& [id, count] : parts.begins) EXPECT_EQ(count, 1) << id;
  double flops = 0;
  std::uint64_t bytes = 0;
  std::map<std::pair<int, std::string>, double> last_begin;
  std::map<std::pair<int, std::string>, double> last_end;
  for (const Slice& slice : parts.slices) {
    // In the order in which they begin; but for spans one ends before the next begins.
    EXPECT_GE(slice.begin, (last_begin[{slice.rank, slice.row}]));
    last_begin[{slice.rank, slice.row}] = slice.begin;
    double& end = last_end[{slice.rank, slice.row}];
    if (slice.row != "schedule") {
      EXPECT_GE(slice.begin, end - kRounding) << slice.name;
    }
    end = slice.end;
    flops += slice.arguments.value("flops", 0.0);
    bytes += slice.arguments.value("bytes", std::uint64_t{0});
  }
  // Two steps of nano, three times the forward pass' matrix products: 6·tokens·parameters of blocks and head.
  const double products = 6.0 * 2 * 37 * (2 * (2 * 64 * 8 * 12 + 3 * 64 * 176) + 256 * 64);
  EXPECT_GT(flops, 2 * products);
  EXPECT_LT(flops, 2 * products * 1.6);
  EXPECT_GT(bytes, 0U);
}

/// Calls and seconds.
using CallsAndSeconds = std::pair<std::uint64_t, double>;

// What --profile adds up is what the trace of the same run shows slice by slice.
TEST(Profile, AddsUpTheSlicesOfTheTrace) {
  const TextData data(3000);
  const json report =
      train(data, "tsp=2", {"--steps", "3", "--profile", "--trace", data.path("trace.json"), "--trace-steps", "2:3"});
  std::map<std::string, CallsAndSeconds> of_trace;
  std::map<std::string, CallsAndSeconds> waits_of_trace;
  std::set<std::string> matrices;
  for (const Slice& slice : take_apart(read_json(data.path("trace.json"))).slices) {
    if (slice.row != "compute") continue;
    const json& of = slice.arguments;
    if (slice.name == "wait") {
      auto& [calls, seconds] = waits_of_trace[of.contains("op") ? of.at("op").get<std::string>() + of.at("for_rank").dump() : ""];
      ++calls;
      seconds += (slice.end - slice.begin) * 1e-6;
      continue;
    }
    std::string key = slice.name;
    if (slice.name.starts_with("gemm")) {
      matrices.insert(slice.name.substr(5));
      EXPECT_EQ(of.at("flops"), 2 * of.at("m").get<double>() * of.at("n").get<double>() * of.at("k").get<double>()) << slice.name;
      key += of.at("m").dump() + "," + of.at("n").dump() + "," + of.at("k").dump();
    }
    auto& [calls, seconds] = of_trace[key];
    ++calls;
    seconds += (slice.end - slice.begin) * 1e-6;
  }
  const std::set<std::string> expected = {
      "W_Q", "dW_Q", "dX of W_Q", "W_K", "dW_K", "dX of W_K", "W_V", "dW_V", "dX of W_V", "W_O",     "dW_O",     "dX of W_O",
      "W_1", "dW_1", "dX of W_1", "W_2", "dW_2", "dX of W_2", "W_3", "dW_3", "dX of W_3", "W_vocab", "dW_vocab", "dX of W_vocab"};
  EXPECT_EQ(matrices, expected);

  const json& profile = report.at("profile");
  std::map<std::string, CallsAndSeconds> of_profile;
  double all = 0;
  for (const json& row : profile.at("kernels")) {
    std::string key = row.at("kernel");
    if (const auto matrix = row.at("matrix").get<std::string>(); !matrix.empty()) {
      const json& sizes = row.at("sizes");
      key += " " + matrix + sizes.at("m").dump() + "," + sizes.at("n").dump() + "," + sizes.at("k").dump();
    }
    auto& [calls, seconds] = of_profile[key];
    calls += row.at("calls").get<std::uint64_t>();
    seconds += row.at("seconds").get<double>();
    all += row.at("seconds").get<double>();
  }
  std::map<std::string, CallsAndSeconds> waits_of_profile;
  for (const json& row : profile.at("waits")) {
    auto& [calls, seconds] =
        waits_of_profile[row.at("op").is_null() ? "" : row.at("op").get<std::string>() + row.at("for_rank").dump()];
    calls += row.at("calls").get<std::uint64_t>();
    seconds += row.at("seconds").get<double>();
    all += row.at("seconds").get<double>();
  }
  const auto compare = [](const auto& one, const auto& other) {
    ASSERT_EQ(one.size(), other.size());
    for (const auto& [key, sum] : one) {
      ASSERT_TRUE(other.contains(key)) << key;
      EXPECT_EQ(sum.first, other.at(key).first) << key;
      EXPECT_NEAR(sum.second, other.at(key).second, 1e-9 * kRounding * 1e3 * static_cast<double>(sum.first)) << key;
    }
  };
  compare(of_profile, of_trace);
  compare(waits_of_profile, waits_of_trace);
  EXPECT_LT(all, profile.at("seconds"));
  EXPECT_EQ(profile.at("ranks"), 2);
}

TEST(Profile, IsATableThatFitsAndNeedsNoFile) {
  const TextData data(3000);
  ProcessOptions narrow;
  narrow.environment = {{"COLUMNS", "80"}};
  const Finished run = run_tsprun(
      {"train", "-n", "2", "--config", "nano", "--data", data.text(), "--seq", "37", "--steps", "2", "--profile"}, narrow);
  ASSERT_EQ(run.end.code, 0) << run.describe();
  EXPECT_NE(run.out.find("profile, a rank's mean of 2: "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("gemm "), std::string::npos) << run.out;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(std::ranges::count_if(line, [](char each) { return (static_cast<unsigned char>(each) & 0xc0U) != 0x80; }), 80)
        << line;
  EXPECT_NE(run.out.find("wait for"), std::string::npos) << run.out;
  const Finished none = run_tsprun({"bench", "barrier", "--profile"});
  EXPECT_EQ(none.end.code, 2) << none.describe();
  EXPECT_NE(none.err.find("--profile: bench has none; these print one: "), std::string::npos) << none.err;
}

// Every token of a text attends to one key more; that makes no row for each.
TEST(Profile, OfATextHasFewRows) {
  const TextData data(3000);
  const Finished run = run_tsprun({"generate", "-n", "2", "--config", "nano", "--prompt", "The ", "--tokens", "60", "--profile",
                                   "--json", data.path("report.json")});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const json profile = read_json(data.path("report.json")).at("profile");
  std::size_t rows = 0;
  for (const json& row : profile.at("kernels")) {
    if (row.at("kernel") != "flash forward" || row.at("sizes").at("queries") != 1) continue;
    ++rows;
    EXPECT_TRUE(std::has_single_bit(row.at("sizes").at("keys").get<unsigned>())) << row;
  }
  EXPECT_GT(rows, 1U);
  EXPECT_LE(rows, 14U);  // powers of two up to 64, for ranks with unlike numbers of heads or tokens
  EXPECT_NE(run.err.find("profile, a rank's mean of 2: "), std::string::npos) << run.err;
}

TEST(Trace, SpansOfStepsPassesAndLayersNest) {
  const TextData data(3000);
  train(data, "tsp=2", {"--steps", "2", "--trace", data.path("trace.json")});
  const Parts parts = take_apart(read_json(data.path("trace.json")));
  std::vector<std::string> expected;
  for (const std::string step : {"step 1", "step 2"}) {
    for (const char* path : {"", "/forward", "/forward/layer 0", "/forward/layer 1", "/backward", "/backward/layer 1",
                             "/backward/layer 0", "/gradient norm", "/update"}) {
      expected.push_back(step + path);
    }
  }
  for (const int rank : {0, 1}) {
    const std::vector<Slice> spans = of(parts, rank, "schedule");
    EXPECT_EQ(nested(spans), expected);
    // Every kernel of the steps lies in one of them.
    for (const Slice& kernel : of(parts, rank, "compute")) {
      if (kernel.name == "wait" || kernel.begin < spans.front().begin) continue;
      EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [&](const Slice& span) {
        return span.name.starts_with("step") && kernel.begin >= span.begin - kRounding && kernel.end <= span.end + kRounding;
      })) << kernel.name;
    }
  }
}

// What the heap held when it held most is in the report to the byte; the counters reach just that, of every category and their
// sum.
TEST(Trace, CountersOfMemoryReachTheReportsPeaks) {
  for (const char* layout : {"tsp=2", "tp=2", "zero3=2"}) {
    const TextData data(3000);
    const json report = train(data, layout, {"--steps", "2", "--trace", data.path("trace.json")});
    const Parts parts = take_apart(read_json(data.path("trace.json")));
    std::map<std::pair<int, std::string>, std::uint64_t> most;
    std::map<int, double> last;
    for (const json& counter : parts.counters) {
      EXPECT_GE(counter.at("ts").get<double>(), last[counter.at("pid")]);
      last[counter.at("pid")] = counter.at("ts");
      for (const auto& [name, bytes] : counter.at("args").items()) {
        std::uint64_t& peak = most[{counter.at("pid"), name}];
        peak = std::max(peak, bytes.get<std::uint64_t>());
      }
    }
    for (const json& rank : report.at("per_rank")) {
      for (const auto& [name, bytes] : rank.at("memory_peak_bytes").items()) {
        EXPECT_EQ((most[{rank.at("rank"), name}]), bytes.get<std::uint64_t>()) << layout << " " << name;
      }
    }
  }
}

// A rank stands still for three seconds. Another may wait for it by way of a third (a reduction's root, say), which says so in
// turn.
TEST(Trace, WaitsSayForWhom) {
  const TextData data(3000);
  train(data, "tp=4", {"--steps", "3", "--fault", "stall:rank=2,step=2,seconds=3", "--trace", data.path("trace.json")});
  const Parts parts = take_apart(read_json(data.path("trace.json")));
  std::map<int, Slice> longest;
  for (const Slice& slice : parts.slices) {
    if (slice.name != "wait" || !slice.arguments.contains("for_rank")) continue;
    EXPECT_NE(slice.arguments.at("for_rank"), slice.rank);
    EXPECT_GT(slice.arguments.at("sequence"), 0);
    EXPECT_FALSE(slice.arguments.at("op").get<std::string>().empty());
    const auto known = longest.find(slice.rank);
    if (known == longest.end() || slice.end - slice.begin > known->second.end - known->second.begin) {
      longest.insert_or_assign(slice.rank, slice);
    }
  }
  for (const int rank : {0, 1, 3}) {
    ASSERT_TRUE(longest.contains(rank)) << rank;
    EXPECT_GT(longest.at(rank).end - longest.at(rank).begin, 1.5e6) << rank;
    int root = rank;
    for (int hops = 0; root != 2 && hops < 3; ++hops) root = longest.at(root).arguments.at("for_rank");
    EXPECT_EQ(root, 2) << "from rank " << rank;
  }
}

TEST(Trace, HoldsTheStepsThatAreAskedForAlone) {
  const TextData data(3000);
  train(data, "tsp=2", {"--steps", "5", "--trace", data.path("trace.json"), "--trace-steps", "2:3"});
  const Parts parts = take_apart(read_json(data.path("trace.json")));
  std::set<std::string> steps;
  double begin = 1e300;
  double end = 0;
  for (const Slice& slice : parts.slices) {
    if (!slice.name.starts_with("step")) continue;
    steps.insert(slice.name);
    begin = std::min(begin, slice.begin);
    end = std::max(end, slice.end);
  }
  EXPECT_EQ(steps, (std::set<std::string>{"step 2", "step 3"}));
  for (const Slice& slice : parts.slices) {
    EXPECT_GE(slice.end, begin - kRounding) << slice.name;
    EXPECT_LE(slice.begin, end + kRounding) << slice.name;
  }
}

TEST(Trace, IsGzippedWhenItsNameSaysSo) {
  const TextData data(3000);
  train(data, "tsp=4", {"--steps", "2", "--trace", data.path("trace.json.gz")});
  train(data, "tsp=4", {"--steps", "2", "--trace", data.path("trace.json")});
  const Finished unpacked = run_program({"/usr/bin/gzip", "-dc", data.path("trace.json.gz")});
  ASSERT_EQ(unpacked.end.code, 0) << unpacked.describe();
  const Parts packed = take_apart(json::parse(unpacked.out));
  const Parts plain = take_apart(read_json(data.path("trace.json")));
  EXPECT_EQ(packed.rows, plain.rows);
  EXPECT_EQ(packed.begins.size(), plain.begins.size());
  EXPECT_EQ(of(packed, 3, "schedule").size(), of(plain, 3, "schedule").size());
  EXPECT_LT(std::filesystem::file_size(data.path("trace.json.gz")) * 4, std::filesystem::file_size(data.path("trace.json")));
}

TEST(Trace, ArrowsAreThinnedOnRequest) {
  const auto arrows = [](const std::string& which) {
    const TextData data(3000);
    train(data, "tsp=4", {"--steps", "2", "--trace", data.path("trace.json"), "--trace-flows", which});
    const Parts parts = take_apart(read_json(data.path("trace.json")));
    EXPECT_EQ(parts.begins, parts.ends) << which;
    return parts.begins.size();
  };
  const std::size_t all = arrows("all");
  const std::size_t few = arrows("neighbours");
  EXPECT_EQ(arrows("none"), 0U);
  EXPECT_GT(few, 0U);
  EXPECT_LT(few * 3, all * 2);  // a collective of four ranks has twelve arrows, or four; messages keep theirs
}

// --- programs under `run`
// --------------------------------------------------------------------------------------------------------

/// The failures that a trace tells of.
std::vector<std::string> failures_in(const json& trace) {
  std::vector<std::string> names;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") == "failure") names.push_back(event.at("name"));
  }
  return names;
}

TEST(TraceOfAProgram, HoldsTheOperationsOfAllRanksAndMatchingArrows) {
  const TemporaryDirectory folder;
  const Finished run = run_program(tsprun_actor({"-n", "3", "--trace", folder.path("trace.json")}, {"sum", "2"}));
  ASSERT_EQ(run.end.code, 0) << run.describe();
  EXPECT_EQ(run.err.find("no events"), std::string::npos) << run.describe();
  const json trace = read_json(folder.path("trace.json"));
  const Parts parts = take_apart(trace);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<std::size_t> bytes;
    for (const Slice& slice : of(parts, rank, "control")) {
      if (slice.name == "all_reduce") bytes.push_back(slice.arguments.at("bytes"));
      EXPECT_GE(slice.begin, 0);
    }
    EXPECT_EQ(bytes, (std::vector<std::size_t>{4, 4000, 800'000, 4, 4000, 800'000})) << "rank " << rank;
  }
  EXPECT_EQ(parts.begins.size(), 6U * 3 * 2);
  EXPECT_EQ(parts.begins, parts.ends);
  EXPECT_EQ(failures_in(trace), std::vector<std::string>{});
}

TEST(TraceOfAProgram, ThatFailedHasTheFailureAndSaysWhoLeftNothing) {
  const TemporaryDirectory folder;
  const Finished run = run_program(tsprun_actor({"-n", "3", "--trace", folder.path("trace.json")}, {"fail", "kill", "1", "2"}));
  EXPECT_NE(run.end.code, 0) << run.describe();
  EXPECT_NE(run.err.find("no events of ranks"), std::string::npos) << run.describe();
  EXPECT_EQ(failures_in(read_json(folder.path("trace.json"))), std::vector<std::string>{"killed"});
}

TEST(TraceOfAProgram, ThatLeavesBadlyHasTheEventsOfThoseThatLeft) {
  const TemporaryDirectory folder;
  const Finished run = run_program(tsprun_actor({"-n", "2", "--trace", folder.path("trace.json")}, {"leave_badly", "1", "3"}));
  EXPECT_EQ(run.end.code, 3) << run.describe();
  const json trace = read_json(folder.path("trace.json"));
  const Parts parts = take_apart(trace);
  const std::vector<Slice> left = of(parts, 1, "control");
  EXPECT_TRUE(std::any_of(left.begin(), left.end(), [](const Slice& slice) { return slice.name == "barrier"; }));
  EXPECT_EQ(failures_in(trace), std::vector<std::string>{"exited"});
}

TEST(TraceOfAProgram, IsWhole) {
  const TemporaryDirectory folder;
  const Finished run = run_program(tsprun_actor({"--trace", folder.path("trace.json"), "--trace-steps", "1:2"}, {"sum"}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("--trace-steps 1:2: a program is traced whole"), std::string::npos) << run.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::trace_test
