// The class that reads environment variables, and the page that documents them.
#include "transport/environment.h"

#include "tests/support/refusal.h"
#include "transport/factory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace tsprun::detail::test::environment_test {
namespace {

/// An environment of these variables alone.
Environment environment_of(std::map<std::string, std::string> variables) {
  return Environment([variables = std::move(variables)](const char* name) -> const char* {
    const auto place = variables.find(name);
    return place == variables.end() ? nullptr : place->second.c_str();
  });
}

TEST(Environment, HasTheDefaultsOfItsTable) {
  const Environment none = environment_of({});
  EXPECT_EQ(none.timeout_ns(), 30'000'000'000U);
  EXPECT_EQ(none.mem_per_rank(), 0U);
  EXPECT_EQ(none.link_gbps(), 0.0);
  EXPECT_FALSE(none.flag("TSP_VERIFY"));
  EXPECT_EQ(none.algorithms(), "");
  EXPECT_FALSE(none.kernels());
}

TEST(Environment, ReadsWhatIsSet) {
  const Environment some =
      environment_of({{"TSP_TIMEOUT", "0.5"}, {"TSP_MEM_PER_RANK", "4096"}, {"TSP_LINK_GBPS", "2"}, {"TSP_VERIFY", "1"}});
  EXPECT_EQ(some.timeout_ns(), 500'000'000U);
  EXPECT_EQ(some.mem_per_rank(), 4096U);
  EXPECT_EQ(some.link_gbps(), 2.0);
  EXPECT_TRUE(some.flag("TSP_VERIFY"));
}

TEST(Environment, RefusesWhatIsNoValue) {
  for (const char* text : {"", "0", "-1", "5s", "nan", "1000001", " 5"}) {
    EXPECT_NE(refused_text([&] {
                (void)environment_of({{"TSP_TIMEOUT", text}}).timeout_ns();
              }).find("TSP_TIMEOUT="),
              std::string::npos)
        << text;
    EXPECT_NE(refused_text([&] {
                (void)environment_of({{"TSP_LINK_GBPS", text}}).link_gbps();
              }).find("TSP_LINK_GBPS="),
              std::string::npos)
        << text;
  }
  EXPECT_NE(refused_text([] { (void)environment_of({{"TSP_TIMEOUT", "1e-10"}}).timeout_ns(); }), "") << "no nanosecond";
  for (const char* text : {"", "-1", "4K", "1.5"})
    EXPECT_NE(refused_text([&] {
                (void)environment_of({{"TSP_MEM_PER_RANK", text}}).mem_per_rank();
              }).find("bytes"),
              std::string::npos)
        << text;
  EXPECT_EQ(refused_text([&] {
              (void)environment_of({{"TSP_VERIFY", "yes"}}).flag("TSP_VERIFY");
            }),
            "TSP_VERIFY=yes: 0 and 1 work");
}

TEST(Environment, KnowsTheTransportsBetweenNodes) {
  EXPECT_EQ(environment_of({}).inter(), bootstrap::Demand::automatic);
  EXPECT_EQ(environment_of({{"TSP_INTER", "auto"}}).inter(), bootstrap::Demand::automatic);
  EXPECT_EQ(environment_of({{"TSP_INTER", "tcp"}}).inter(), demand_for("tcp"));
  EXPECT_EQ(environment_of({{"TSP_INTER", "verbs"}}).inter(), demand_for("verbs"));
  EXPECT_EQ(refused_text([] { (void)environment_of({{"TSP_INTER", "shm"}}).inter(); }), "TSP_INTER=shm: auto, verbs, tcp work");
  EXPECT_EQ(environment_of({{"TSP_RDMA", "mlx5_0:1"}}).rdma(), "mlx5_0:1");
  EXPECT_NE(refused_text([] { (void)environment_of({{"TSP_RDMA", std::string(192, 'm')}}).rdma(); }), "");
}

TEST(Environment, KnowsTheLevelsOfTheLog) {
  for (const char* level : {"", "trace", "debug", "info", "warn", "error", "critical", "off"})
    EXPECT_EQ(environment_of({{"TSP_LOG_LEVEL", level}}).log_level(), level);
  EXPECT_EQ(refused_text([] {
              (void)environment_of({{"TSP_LOG_LEVEL", "verbose"}}).log_level();
            }),
            "TSP_LOG_LEVEL=verbose: trace, debug, info, warn, error, critical and off work");
}

TEST(Environment, CommandsRefuseWhatTheyWouldIgnore) {
  for (const EnvironmentVariable& each : kEnvironment) {
    const Environment environment = environment_of({{std::string(each.name), "1"}});
    const std::string text = refused_text([&] { refuse_ignored_variables(environment, "train"); });
    EXPECT_EQ(text.empty(), each.by != ObeyedBy::programs) << each.name;
    if (!text.empty()) {
      EXPECT_NE(text.find(std::string(each.name) + "=1: "), std::string::npos) << text;
    }
    if (!text.empty() && !each.option.empty()) {
      EXPECT_NE(text.find(each.option), std::string::npos) << text;
    }
  }
  // A tsprun that runs under another has variables that the other has set.
  EXPECT_EQ(refused_text([] {
              refuse_ignored_variables(environment_of({{"TSP_VERIFY", "1"}, {"TSP_NODE_FD", "7"}}), "train");
            }),
            "");
}

TEST(Environment, ThePageHasTheTable) {
  std::string table =
      "| variable | read by | meaning | values | if it isn't set | tsprun's option |\n|---|---|---|---|---|---|\n";
  for (const EnvironmentVariable& each : kEnvironment) {
    const std::string_view by = each.by == ObeyedBy::programs ? "programs that link the library"
                                : each.by == ObeyedBy::jobs   ? "programs that link the library, tsprun"
                                                              : "tsprun";
    table += "| `" + std::string(each.name) + "` | " + std::string(by) + " | " + std::string(each.meaning) + " | " +
             std::string(each.values) + " | " + std::string(each.absent) + " | " +
             (each.option.empty() ? "" : "`" + std::string(each.option) + "` ") + "|\n";
  }
  std::ifstream file(TSP_TOOLS_DIR "/../docs/reference/environment.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(table), std::string::npos) << "docs/reference/environment.md shall have this table:\n" << table;
}

}  // namespace
}  // namespace tsprun::detail::test::environment_test
