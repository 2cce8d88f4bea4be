// `bench` as a user starts it: every operation is checked element by element, and figures stand beside what memcpy reaches.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <string>

namespace tsprun::detail::test::bench_test {
namespace {

TEST(BenchCommand, MeasuresUnevenPartsBesideMemcpy) {
  const TemporaryDirectory folder;
  const Finished run = run_tsprun({"-n", "3", "bench", "all_to_all_v", "--sizes", "120,96K,40M", "--iters", "2", "--dtype", "i32",
                                   "--json", folder.path("report.json")});
  ASSERT_EQ(run.end.code, 0) << run.describe();
  const nlohmann::json report = read_json(folder.path("report.json"));
  ASSERT_EQ(report.at("bench").size(), 3U);
  for (const nlohmann::json& row : report.at("bench")) EXPECT_EQ(row.at("wrong"), 0);
  EXPECT_GT(report.at("memcpy_gbps"), 0);
  EXPECT_NE(run.out.find("# For comparison: a memcpy of 41943036 bytes by each of 3 ranks at once has "), std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("(all_to_all_v)"), std::string::npos) << run.out;
  EXPECT_EQ(report.at("memcpy_bytes"), 41943036);

  const Finished small = run_tsprun({"-n", "2", "bench", "barrier,all_reduce", "--sizes", "1K", "--iters", "2"});
  EXPECT_EQ(small.end.code, 0) << small.describe();
  EXPECT_EQ(small.out.find("memcpy"), std::string::npos) << small.out;
}

}  // namespace
}  // namespace tsprun::detail::test::bench_test
