// A link that is slower than the others shows in the report by pair, and is named, however it came to be slow.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::test::slow_link_test {
namespace {

using nlohmann::json;

struct Measured {
  std::string err;
  json links;
};

Measured bench(const std::string& intra, const std::vector<std::string>& faults) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = {"-n", "4", "--intra", intra, "--json", folder.path("report.json")};
  for (const std::string& fault : faults) arguments.insert(arguments.end(), {"--fault", fault});
  arguments.insert(arguments.end(), {"bench", "all_gather", "--sizes", "1M", "--iters", "60", "--check=off"});
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return {run.err, read_json(folder.path("report.json")).at("links")};
}

class SlowLink : public ::testing::TestWithParam<const char*> {};

TEST_P(SlowLink, IsNamedAndHasTheSpeedItHas) {
  const Measured run = bench(GetParam(), {"slow:from=1,to=2,gbps=0.01"});
  double pending = 0;
  for (const json& link : run.links) {
    const bool slow = link.at("from") == 1 && link.at("to") == 2;
    if (slow) {
      pending = link.at("pending_seconds");
      EXPECT_GT(link.at("fastest_gbps"), 0.0075) << link;
      EXPECT_LT(link.at("fastest_gbps"), 0.0105) << link;
      EXPECT_GE(link.at("messages"), 60) << link;
    }
  }
  for (const json& link : run.links) EXPECT_LE(link.at("pending_seconds"), pending) << link;
  EXPECT_NE(run.err.find("messages from rank 1 to rank 2 come slowly"), std::string::npos) << run.err;
}

// Runs alone (serial.cmake): who is kept from its core by a stranger's process is late, and rightly named.
TEST_P(SlowLink, IsNoneWhereAllAreAlike) { EXPECT_EQ(bench(GetParam(), {}).err.find("come slowly"), std::string::npos); }

INSTANTIATE_TEST_SUITE_P(Over, SlowLink, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tsprun::detail::test::slow_link_test
