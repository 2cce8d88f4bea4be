// A link that is slower than the others shows in the report by pair, and is named, however it came to be slow.
#include "tests/support/process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test::slow_link_test {
namespace {

using nlohmann::json;

struct Measured {
  std::string err;
  json links;
  double gbps = 0;  ///< of the slow link, if there is one
};

Measured bench(const std::string& intra, const std::string& bytes, int times, const std::vector<std::string>& faults,
               int cores = 0) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = {"-n", "3", "--intra", intra, "--json", folder.path("report.json")};
  for (const std::string& fault : faults) arguments.insert(arguments.end(), {"--fault", fault});
  arguments.insert(arguments.end(), {"bench", "all_gather", "--sizes", bytes, "--iters", std::to_string(times), "--check=off"});
  const Finished run = run_tsprun(arguments, {.environment = {}, .cores = cores});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  return {.err = run.err, .links = read_json(folder.path("report.json")).at("links")};
}

constexpr const char* kSlow = "messages from rank 1 to rank 2 come slowly";

/// Returns how many threads of this machine compute or want to, but for this one: the most of a fifth of a second.
int busy_threads() {
  int most = 0;
  for (int reading = 0; reading < 20; ++reading) {
    std::ifstream file("/proc/loadavg");  // "0.31 0.25 0.20 3/512 1234": three run
    std::string average;
    for (int i = 0; i < 3; ++i) file >> average;
    int running = 1;
    file >> running;
    most = std::max(most, running - 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return most;
}

/// Measures a job one of whose links is slow: each message takes 65 ms there, so that ranks sleep nearly all the time. A link is
/// named where it took a quarter of the job besides what ranks waited for a core, which is long on a busy machine, as is
/// starting: there slower links are tried. So many strangers use the job's two cores meanwhile, others than this test's included
/// where there are no more cores, but two of its own at least; 0: the job has all cores.
Measured with_slow_link(const std::string& intra, int times, int strangers) {
  const std::vector<std::string> busy = {"timeout", "60", "sh", "-c", "while :; do :; done"};
  const int cores = strangers > 0 ? 2 : 0;
  Measured measured;
  bool again = true;
  for (int tries = 0; tries < 3 && again; ++tries) {
    std::vector<std::unique_ptr<Process>> running;
    const int busy_before = busy_threads();
    const int others = std::thread::hardware_concurrency() > 2 ? 0 : busy_before;
    for (int i = std::min(others, strangers - 2); i < strangers; ++i)
      running.push_back(std::make_unique<Process>(busy, ProcessOptions{.environment = {}, .cores = cores}));
    const double gbps = 0.001 / std::pow(3, tries);
    measured = bench(intra, "192K", times, {fmt::format("slow:from=1,to=2,gbps={:.6f}", gbps)}, cores);
    measured.gbps = gbps;
    running.clear();
    again = measured.err.find(kSlow) == std::string::npos && (busy_before > 0 || busy_threads() > 0);
  }
  return measured;
}

class SlowLink : public ::testing::TestWithParam<const char*> {};

TEST_P(SlowLink, IsNamedAndHasTheSpeedItHas) {
  const Measured run = with_slow_link(GetParam(), 20, 0);
  double pending = 0;
  for (const json& link : run.links) {
    const bool slow = link.at("from") == 1 && link.at("to") == 2;
    if (slow) {
      pending = link.at("pending_seconds");
      EXPECT_GT(link.at("fastest_gbps"), 0.75 * run.gbps) << link;
      EXPECT_LT(link.at("fastest_gbps"), 1.05 * run.gbps) << link;
      EXPECT_GE(link.at("messages"), 16) << link;
    }
  }
  for (const json& link : run.links) EXPECT_LE(link.at("pending_seconds"), pending) << link;
  EXPECT_NE(run.err.find(kSlow), std::string::npos) << run.err;
}

// A rank that waits yields its core to whoever wants it; that it then has none explains nothing.
TEST_P(SlowLink, IsNamedWhereStrangersUseTheCores) {
  const Measured run = with_slow_link(GetParam(), 36, 4);
  EXPECT_NE(run.err.find(kSlow), std::string::npos) << run.err;
}

// Who is kept from its core by a stranger's process is late, and rightly named: on a busy machine that takes some tries.
TEST_P(SlowLink, IsNoneWhereAllAreAlike) {
  std::string said = "come slowly";
  for (int tries = 0; tries < 10 && said.find("come slowly") != std::string::npos; ++tries)
    said = bench(GetParam(), "6M", 200, {}).err;
  EXPECT_EQ(said.find("come slowly"), std::string::npos) << said;
}

INSTANTIATE_TEST_SUITE_P(Over, SlowLink, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tsprun::detail::test::slow_link_test
