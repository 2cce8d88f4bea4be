// A link that is slower than the others shows in the report by pair, and is named, however it came to be slow.
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace tsprun::detail::test::slow_link_test {
namespace {

using nlohmann::json;

struct Measured {
  std::string err;
  json links;
};

Measured bench(const std::string& intra, const std::string& bytes, const std::string& times,
               const std::vector<std::string>& faults, int cores = 0) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = {"-n", "3", "--intra", intra, "--json", folder.path("report.json")};
  for (const std::string& fault : faults) arguments.insert(arguments.end(), {"--fault", fault});
  arguments.insert(arguments.end(), {"bench", "all_gather", "--sizes", bytes, "--iters", times, "--check=off"});
  const Finished run = run_tsprun(arguments, {.environment = {}, .cores = cores});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return {run.err, read_json(folder.path("report.json")).at("links")};
}

class SlowLink : public ::testing::TestWithParam<const char*> {};

// Each message takes 65 ms, so that ranks sleep nearly all the time: what they wait for a core on a busy machine explains little.
TEST_P(SlowLink, IsNamedAndHasTheSpeedItHas) {
  const Measured run = bench(GetParam(), "192K", "20", {"slow:from=1,to=2,gbps=0.001"});
  double pending = 0;
  for (const json& link : run.links) {
    const bool slow = link.at("from") == 1 && link.at("to") == 2;
    if (slow) {
      pending = link.at("pending_seconds");
      EXPECT_GT(link.at("fastest_gbps"), 0.00075) << link;
      EXPECT_LT(link.at("fastest_gbps"), 0.00105) << link;
      EXPECT_GE(link.at("messages"), 16) << link;
    }
  }
  for (const json& link : run.links) EXPECT_LE(link.at("pending_seconds"), pending) << link;
  EXPECT_NE(run.err.find("messages from rank 1 to rank 2 come slowly"), std::string::npos) << run.err;
}

// A rank that waits yields its core to whoever wants it; that it then has none explains nothing.
TEST_P(SlowLink, IsNamedWhereStrangersUseTheCores) {
  std::vector<std::unique_ptr<Process>> strangers;
  const std::vector<std::string> busy = {"timeout", "60", "sh", "-c", "while :; do :; done"};
  for (int i = 0; i < 4; ++i) strangers.push_back(std::make_unique<Process>(busy, ProcessOptions{.environment = {}, .cores = 2}));
  const Measured run = bench(GetParam(), "192K", "60", {"slow:from=1,to=2,gbps=0.001"}, 2);
  EXPECT_NE(run.err.find("messages from rank 1 to rank 2 come slowly"), std::string::npos) << run.err;
}

// Runs alone (serial.cmake): who is kept from its core by a stranger's process is late, and rightly named.
TEST_P(SlowLink, IsNoneWhereAllAreAlike) {
  EXPECT_EQ(bench(GetParam(), "6M", "500", {}).err.find("come slowly"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Over, SlowLink, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tsprun::detail::test::slow_link_test
