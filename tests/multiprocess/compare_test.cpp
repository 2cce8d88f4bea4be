// `compare` from the command line: a job for every point, a table, JSON and CSV.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tsprun::detail::test::compare_test {
namespace {

using nlohmann::json;

std::string text_file(const TemporaryDirectory& folder) {
  std::ofstream text(folder.path("text.txt"));
  for (int i = 0; i < 400; ++i) text << "number " << i * 7919 % 4001 << '\n';
  return folder.path("text.txt");
}

TEST(CompareCommand, MeasuresEveryPointBesideItsFormula) {
  const TemporaryDirectory folder;
  const Finished run =
      run_tsprun({"compare", "--layouts", "tsp=2;tsp=1;tsp=3", "--config", "nano", "--seqs", "33,64", "--batch", "2", "--steps",
                  "2", "--data", text_file(folder), "--json", folder.path("r.json"), "--csv", folder.path("r.csv")});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const json report = read_json(folder.path("r.json"));
  EXPECT_EQ(report.at("command"), "compare");
  const json& rows = report.at("compare");
  ASSERT_EQ(rows.size(), 6U);
  for (const json& row : rows) {
    for (const char* key : {"layout", "seq", "batch", "memory_peak_bytes", "traffic_bytes", "tokens_per_s", "fits", "why"})
      EXPECT_TRUE(row.contains(key)) << key;
    if (row.at("label") == "tsp=3") {
      EXPECT_EQ(row.at("fits"), false);
      EXPECT_EQ(row.at("why"), "--layout tsp=3: 8 query heads don't divide by 3; try 2 or 4");
      continue;
    }
    EXPECT_EQ(row.at("fits"), true);
    EXPECT_GT(row.at("tokens_per_s").get<double>(), 0);
    EXPECT_GE(row.at("exposed_share").get<double>(), 0);
    EXPECT_LE(row.at("exposed_share").get<double>(), 1);
    EXPECT_GT(row.at("memory_peak_bytes").at("total").get<std::uint64_t>(), 0U);
    std::uint64_t moved = 0;
    for (const char* pass : {"forward", "backward"}) {
      for (const char* purpose : {"weights", "kv", "gradients", "head", "embedding"}) {
        const json& measured = row.at("traffic_bytes").at(pass).at(purpose).at("received");
        EXPECT_EQ(measured, row.at("theory").at("traffic_bytes").at(pass).at(purpose).at("received")) << purpose;
        moved += measured.get<std::uint64_t>();
      }
    }
    EXPECT_EQ(moved > 0, row.at("ranks") == 2);
  }
  EXPECT_NE(run.out.find("tokens/s"), std::string::npos);
  std::ifstream csv(folder.path("r.csv"));
  const std::string table{std::istreambuf_iterator<char>(csv), std::istreambuf_iterator<char>()};
  EXPECT_EQ(lines_of(table).size(), 7U) << table;
}

/// Checks that a budget holds what it is said to hold, in pieces, too.
TEST(CompareCommand, TheLongestSequenceThatFitsRuns) {
  const TemporaryDirectory folder;
  const std::string data = text_file(folder);
  const auto rows = [&](const std::string& layouts, const std::string& seq, bool forward) {
    std::vector<std::string> arguments = {"compare",
                                          "--layouts",
                                          layouts,
                                          "--config",
                                          "nano",
                                          "--seq",
                                          seq,
                                          "--steps",
                                          "1",
                                          "--threads",
                                          "1",
                                          "--mem-per-rank",
                                          forward ? "1M" : "2M",
                                          "--data",
                                          data,
                                          "--json",
                                          folder.path("r.json")};
    if (forward) arguments.emplace_back("--forward");
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 0) << run.describe();
    return read_json(folder.path("r.json")).at("compare");
  };
  for (const bool forward : {false, true}) {
    for (const json& row : rows(forward ? "tsp=2;sp=2" : "tp=2;tsp=4;tp=2,sp=2", "1", forward)) {
      const int longest = row.at("longest_seq");
      const std::string layout = row.at("label");
      ASSERT_GT(longest, 0) << layout;
      const json again = rows(layout, std::to_string(longest), forward).at(0);
      EXPECT_EQ(again.at("fits"), true) << layout << " at " << longest << ": " << again.at("why");
    }
  }
}

TEST(CompareCommand, ForwardAloneHasNoBackwardTraffic) {
  const TemporaryDirectory folder;
  const Finished run = run_tsprun({"compare", "--layouts", "tsp=2", "--config", "nano", "--seq", "40", "--forward", "--steps",
                                   "1", "--data", text_file(folder), "--json", folder.path("r.json")});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const json row = read_json(folder.path("r.json")).at("compare").at(0);
  EXPECT_FALSE(row.at("traffic_bytes").contains("backward"));
  EXPECT_EQ(row.at("memory_peak_bytes").at("optimizer"), 0);
}

TEST(CompareCommand, EveryRowSaysByWhichTransportItWasMeasured) {
  const TemporaryDirectory folder;
  const Finished run =
      run_tsprun({"compare", "--layouts", "tsp=2;tsp=1;tsp=3", "--config", "nano", "--seq", "32", "--forward", "--steps", "1",
                  "--intra", "tcp", "--tls", "on", "--data", text_file(folder), "--json", folder.path("r.json")});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  EXPECT_EQ(run.err.find("no effect"), std::string::npos) << run.err;
  const json rows = read_json(folder.path("r.json")).at("compare");
  ASSERT_EQ(rows.size(), 3U);
  ASSERT_EQ(rows[0].at("transports").size(), 1U) << rows[0];
  EXPECT_EQ(rows[0].at("transports")[0].at("kind"), "tcp");
  EXPECT_EQ(rows[0].at("transports")[0].at("why"), "same node, but --intra tcp");
  EXPECT_EQ(rows[1].at("transports"), json::array());
  EXPECT_FALSE(rows[2].contains("transports"));
}

TEST(CompareCommand, RefusesWhatNoPointCanDo) {
  const TemporaryDirectory folder;
  const std::string data = text_file(folder);
  const auto refused = [&](std::vector<std::string> more, const std::string& part) {
    std::vector<std::string> arguments = {"compare", "--config", "nano", "--data", data};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_NE(run.err.find(part), std::string::npos) << run.describe();
  };
  refused({"--layouts", "tsp=3"}, "8 query heads don't divide by 3");
  refused({"--layouts", "tsp=2;tsp"}, "'tsp' has no '='");
  refused({"--layouts", "tsp=2", "-n", "2"}, "-n 2");
  refused({"--layouts", "tsp=2", "--layout", "tsp=2"}, "--layout tsp=2");
}

}  // namespace
}  // namespace tsprun::detail::test::compare_test
