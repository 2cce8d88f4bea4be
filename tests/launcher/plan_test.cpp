// `plan` from its command line to its report: every number that must be reproduced, and what is refused.
#include "launcher/plan/amounts.h"
#include "launcher/plan/paper_tables.h"
#include "tests/launcher/answer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::plan_test {
namespace {

using nlohmann::json;

using test::Answer;
using test::row;

Answer plan(const std::vector<std::string>& words) { return test::answer_of("plan", words); }

TEST(Plan, PrintsTheTasksOfAStep) {
  const Answer answer =
      plan({"--config", "nano", "--tasks", "--batch", "4", "--seq", "16", "--layout", "tsp=2", "--micro-batches", "2"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const std::string of_both =
      "forward   micro-batch {0}   embedding\n"
      "forward   micro-batch {0}   layers 0 to 1\n"
      "forward   micro-batch {0}   head\n"
      "backward  micro-batch {0}   head\n"
      "backward  micro-batch {0}   layers 1 to 0\n"
      "backward  micro-batch {0}   embedding\n";
  const std::string all = fmt::format(fmt::runtime(of_both), 0) + fmt::format(fmt::runtime(of_both), 1) + "reduce\nupdate\n";
  EXPECT_EQ(answer.out, all);
  std::string reported;
  for (const json& line : answer.report.at("tasks")) reported += line.get<std::string>() + "\n";
  EXPECT_EQ(reported, all);
  EXPECT_FALSE(answer.report.contains("plan"));
}

TEST(Plan, PrintsTheTasksOfAPipeline) {
  const auto lines = [](const std::string& order) {
    const Answer answer = plan({"--config", "nano", "--tasks", "--batch", "4", "--seq", "16", "--layout", "pp=2,tsp=2",
                                "--micro-batches", "2", "--pipeline", order});
    EXPECT_EQ(answer.code, 0) << answer.err;
    return answer.out;
  };
  const std::string first =
      "stage 0\n"
      "forward   micro-batch 0   embedding\n"
      "forward   micro-batch 0   layers 0 to 0\n"
      "send      micro-batch 0   residual over boundary 0\n"
      "forward   micro-batch 1   embedding\n";
  const std::string one_after_the_other =
      "stage 1\n"
      "receive   micro-batch 0   residual over boundary 0\n"
      "forward   micro-batch 0   layers 1 to 1\n"
      "forward   micro-batch 0   head\n"
      "backward  micro-batch 0   head\n";
  EXPECT_TRUE(lines("1f1b").starts_with(first)) << lines("1f1b");
  EXPECT_NE(lines("1f1b").find(one_after_the_other), std::string::npos) << lines("1f1b");
  EXPECT_TRUE(lines("gpipe").starts_with(first)) << lines("gpipe");
  EXPECT_EQ(lines("gpipe").find(one_after_the_other), std::string::npos) << lines("gpipe");
}

TEST(Plan, SaysThatItForecastsNoPipelines) {
  const std::string why =
      "pp=2: pipelines train, and plan --tasks lists what their stages do; nothing else knows them yet; try --layout tsp=2";
  const Answer answer = plan({"--config", "nano", "--batch", "4", "--seq", "16", "--layout", "pp=2,tsp=2"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.report.at("plan").at(0).at("why"), why);
}

TEST(Plan, GivesTheLayoutAndItsPeersWithTheKeysOfTheReport) {
  const Answer answer = plan({"--config", "small", "--batch", "8", "--seq", "512", "--layout", "tsp=4"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const json& rows = answer.report.at("plan");
  std::vector<std::string> labels;
  for (const json& each : rows) {
    labels.push_back(each.at("label"));
    for (const char* key : {"layout", "seq", "batch", "memory_peak_bytes", "traffic_bytes", "tokens_per_s", "fits", "why"})
      EXPECT_TRUE(each.contains(key)) << key;
    EXPECT_EQ(each.at("seq"), 512);
    EXPECT_EQ(each.at("batch"), 8);
    EXPECT_TRUE(each.at("fits").is_null());  // no budget is known
    EXPECT_TRUE(each.at("tokens_per_s").is_null());
    std::uint64_t purposes = 0;
    for (const char* purpose : {"weights", "kv", "activations", "gradients", "embedding", "head", "other"})
      purposes += each.at("traffic_bytes").at("backward").at(purpose).at("received").get<std::uint64_t>();
    EXPECT_GT(purposes, 0U);
  }
  EXPECT_EQ(labels.front(), "tsp=4");
  for (const char* label :
       {"dp=4", "tp=4", "tp=4 (sequence)", "sp=4", "sp=4 (ring)", "sp=4 (ulysses)", "zero3=4", "tp=2,sp=2", "tp=2,tsp=2"}) {
    EXPECT_EQ(std::count(labels.begin(), labels.end(), label), 1) << label;
    EXPECT_NE(answer.out.find(label), std::string::npos) << label;
  }
  EXPECT_EQ(rows[0].at("layout"), json({{"tsp", 4}}));
  EXPECT_NE(answer.out.find("Table II."), std::string::npos);
  EXPECT_NE(answer.out.find("Table III."), std::string::npos);
  EXPECT_NE(answer.out.find("Table IV."), std::string::npos);
}

TEST(Plan, NamesWhyALayoutCannotBe) {
  const Answer answer = plan({"--config", "small", "--layout", "dp=3,tsp=2"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const json& first = answer.report.at("plan")[0];
  EXPECT_EQ(first.at("fits"), false);
  EXPECT_EQ(first.at("why"), "dp=3 doesn't divide --batch 1; try --batch 3");
  EXPECT_TRUE(first.at("memory_peak_bytes").is_null());
}

TEST(Plan, JudgesABudget) {
  const Answer tight = plan({"--config", "small", "-n", "4", "--mem", "512M"});
  const Answer ample = plan({"--config", "small", "-n", "4", "--mem", "64G"});
  EXPECT_EQ(tight.report.at("plan")[0].at("fits"), false);
  EXPECT_NE(tight.report.at("plan")[0].at("why").get<std::string>().find("MiB too much"), std::string::npos);
  EXPECT_EQ(ample.report.at("plan")[0].at("fits"), true);
}

// Whether a time can be told, too, has nothing to do with what fits, as long as a GPU's larger pieces don't matter.
TEST(Plan, AMachineChangesNoVerdictOnMemory) {
  const std::vector<std::string> words = {"--config", "nano", "-n", "4", "--batch", "2"};
  const auto rows = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return plan(more).report.at("plan");
  };
  const auto memory = rows({}).at(0).at("memory_peak_bytes").at("total").get<std::uint64_t>();
  for (const std::uint64_t budget : {memory - memory / 20, memory, memory + memory / 20, memory + memory / 5}) {
    const json without = rows({"--mem", std::to_string(budget)});
    const json with = rows({"--mem", std::to_string(budget), "--machine", "h100"});
    ASSERT_EQ(without.size(), with.size());
    for (std::size_t i = 0; i < with.size(); ++i) {
      EXPECT_EQ(with[i].at("fits"), without[i].at("fits")) << with[i].at("label") << " in " << budget;
      EXPECT_EQ(with[i].at("memory_peak_bytes"), without[i].at("memory_peak_bytes")) << with[i].at("label");
    }
  }
}

TEST(Plan, ABudgetPerRankCountsMoreThanTheMachines) {
  const Answer answer = plan({"--config", "nano", "--layout", "tsp=2", "--machine", "h100", "--mem-per-rank", "1M"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.report.at("plan").at(0).at("fits"), false);
}

TEST(Plan, CountsMoreRanksThanANodeHolds) {
  const Answer answer = plan({"--config", "nano", "--layout", "dp=512,tsp=4", "--batch", "512", "--seq", "8"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.report.at("plan").at(0).at("ranks"), 2048);
  EXPECT_EQ(answer.report.at("plan").at(0).at("why"), "");
}

TEST(Plan, SearchPrintsWhatFitsAndWhatDoesNot) {
  const Answer answer = plan({"--search", "--gpus", "8", "--machine", "mi300x", "--mem", "96G", "--config", "paper-7b", "--dtype",
                              "bf16", "--batch", "2", "--seq", "65536", "--top", "0"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const json& rows = answer.report.at("plan");
  std::size_t layouts = 0;
  for (const json& each : rows) layouts += 1 + each.value("alike", json::array()).size();
  const std::vector<Layout> all = theory::all_layouts(8);
  EXPECT_LE(layouts, all.size());
  EXPECT_GE(layouts,
            static_cast<std::size_t>(std::ranges::count_if(all, [](const Layout& each) { return !each.shares_states(); })));
  EXPECT_EQ(answer.report.at("recompute"), "auto");
  EXPECT_NE(answer.out.find("MFU"), std::string::npos);
  EXPECT_GT(rows[0].at("mfu").get<double>(), 0.05);
  EXPECT_LT(rows[0].at("mfu").get<double>(), 0.5);  // the machine's matrix products reach half of the peak
  EXPECT_EQ(rows[0].at("fits"), true);
  EXPECT_GT(rows[0].at("tokens_per_s").get<double>(), rows[1].at("tokens_per_s").get<double>() * 0.999);
  EXPECT_TRUE(rows[0].contains("bound_by"));
  EXPECT_NE(answer.out.find("bound by"), std::string::npos);
  EXPECT_NE(answer.out.find("doesn't divide --batch 2"), std::string::npos);
  EXPECT_NE(answer.out.find("too much"), std::string::npos);
}

TEST(Plan, SearchSaysWhyNothingFitsAndWhatWould) {
  const Answer answer =
      plan({"--search", "--gpus", "2", "--machine", "mi300x", "--mem", "3M", "--config", "nano", "--batch", "8"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  for (const char* words : {"no layout fits", "why nothing fits: ", "3.00 MiB it has", "what would fit: --mem ", "; --gpus ",
                            "; --batch ", "; --seq "}) {
    EXPECT_NE(answer.out.find(words), std::string::npos) << words << "\n" << answer.out;
  }
  // What is proposed works.
  const json& help = answer.report.at("would_fit");
  for (const auto& [option, key] : {std::pair("--gpus", "gpus"), std::pair("--batch", "batch"), std::pair("--seq", "seq")}) {
    std::vector<std::string> words = {"--search", "--machine", "mi300x", "--mem", "3M", "--config", "nano"};
    if (std::string(option) != "--gpus") words.insert(words.end(), {"--gpus", "2"});
    if (std::string(option) != "--batch") words.insert(words.end(), {"--batch", "8"});
    words.insert(words.end(), {option, help.at(key).dump()});
    const Answer helped = plan(words);
    ASSERT_EQ(helped.code, 0) << helped.err;
    EXPECT_EQ(helped.report.at("plan")[0].at("fits"), true) << option;
  }
}

TEST(Plan, SearchPlaysTheFastestInVirtualTime) {
  const Answer answer = plan({"--search", "--gpus", "4", "--machine", "mi300x", "--config", "micro", "--dtype", "bf16", "--batch",
                              "4", "--seq", "256", "--simulate", "3"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_NE(answer.out.find("played in virtual time"), std::string::npos);
  const json& rows = answer.report.at("plan");
  ASSERT_GT(rows.size(), 3U);
  EXPECT_EQ(plan({"--search", "--gpus", "2", "--machine", "mi300x", "--config", "nano", "--simulate", "1", "--reassociate"}).code,
            0);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].contains("simulated_seconds"), i < 3) << i;
  EXPECT_GT(rows[0].at("simulated_seconds"), 0);
  EXPECT_FALSE(rows[0].at("simulated_binds").get<std::string>().empty());
}

TEST(Plan, SaysHowSumsCrossNodesAndWhereARingUsesOneLink) {
  const auto said = [](const std::string& machine, const std::string& gpus) {
    return plan({"--search", "--gpus", gpus, "--machine", machine, "--config", "nano", "--batch", "16", "--seq", "64"}).out;
  };
  EXPECT_NE(said("mi300x", "4").find("uses one of the 7 links"), std::string::npos);
  EXPECT_EQ(said("h100", "4").find("uses one of"), std::string::npos);
  EXPECT_EQ(said("h100", "4").find("rails"), std::string::npos);
  EXPECT_NE(plan({"--layout", "dp=16", "--machine", "h100", "--config", "nano", "--batch", "16"}).out.find("by rails"),
            std::string::npos);
}

TEST(Plan, SearchKeepsTheRecomputationThatIsAskedFor) {
  const Answer answer = plan({"--search", "--gpus", "2", "--machine", "mi300x", "--config", "nano", "--recompute", "full"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.report.at("recompute"), "full");
  for (const json& each : answer.report.at("plan")) EXPECT_EQ(each.at("recompute"), "full");
}

// The report has both what all ranks receive and what one does in the mean, and says which is which; the table has the mean.
TEST(Plan, SaysWhetherTrafficIsASumOrAMean) {
  const Answer answer = plan({"--config", "nano", "-n", "4", "--batch", "4"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  for (const json& each : answer.report.at("plan")) {
    ASSERT_TRUE(each.contains("means")) << each;
    EXPECT_EQ(each.at("means").at("traffic_bytes"), "sum over ranks");
    EXPECT_EQ(each.at("means").at("traffic_bytes_per_rank"), "mean over ranks");
    for (const char* pass : {"forward", "backward"}) {
      double mean = 0;
      for (const auto& [purpose, bytes] : each.at("traffic_bytes").at(pass).items()) {
        const double of_a_rank = each.at("traffic_bytes_per_rank").at(pass).at(purpose).at("received");
        EXPECT_DOUBLE_EQ(of_a_rank * 4, bytes.at("received").get<double>());
        mean += of_a_rank;
      }
      EXPECT_NE(answer.out.find(readable_bytes(mean)), std::string::npos) << each.at("label") << " " << pass;
    }
  }
}

TEST(Amounts, AreReadable) {
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(1023), "1023 B");
  EXPECT_EQ(readable_bytes(1024), "1.00 KiB");
  EXPECT_EQ(readable_bytes(1536.0 * 1024), "1.50 MiB");
  EXPECT_EQ(readable_bytes(206158430208.0), "192.0 GiB");
  EXPECT_EQ(readable_bytes(1024.0 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(readable_bytes(5e13), "45.47 TiB");
}

TEST(Plan, RefusesWhatItCannotMean) {
  const auto refused = [](const std::vector<std::string>& words, const std::string& part) {
    const Answer answer = plan(words);
    EXPECT_EQ(answer.code, 2);
    EXPECT_NE(answer.err.find(part), std::string::npos) << answer.err;
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
    EXPECT_EQ(answer.out, "");
  };
  refused({}, "no model: give --config");
  refused({"--config", "nano", "--search"}, "--search: among how many GPUs? try --gpus 8");
  refused({"--config", "nano", "--search", "--gpus", "8"},
          "--search: on what machine? --machine a100-80, b200, h100, h100-500w, h200, h200-4, mi300x, mi325x or a file work");
  refused({"--config", "nano", "--gpus", "8"}, "--gpus 8: it goes with --search");
  refused({"--config", "nano", "--simulate", "2"}, "--simulate 2: it goes with --search");
  refused({"--config", "nano", "--search", "--gpus", "0", "--machine", "h100"}, "--gpus 0");
  refused({"--config", "nano", "--search", "--gpus", "8", "--machine", "h1000"}, "--machine h1000");
  refused({"--config", "nano", "--search", "--paper", "--gpus", "8", "--machine", "h100"}, "--search --paper");
  refused({"--config", "nano", "--tp", "wide"}, "--tp wide: plain and sequence work");
  refused({"--config", "nano", "--sp", "star"}, "--sp star: gather, ring and ulysses work");
  refused({"--config", "nano", "--mem", "much"}, "--mem much");
  refused({"--config", "nano", "--mem", "0"}, "--mem 0: nothing fits into that; try --mem 80G");
  refused({"--config", "nano", "--mem", "1G", "--mem-per-rank", "2G"}, "they say the same; give one of them");
  const auto search = [&](const std::string& option, const std::string& value) {
    refused({"--config", "nano", "--search", "--gpus", "8", "--machine", "h100", option, value},
            option + " " + value + ": --search goes over every layout of --gpus with all variants; leave it out");
  };
  search("-n", "4");
  search("--layout", "tp=2");
  search("--tp", "sequence");
  search("--sp", "ring");
  const auto reassociate = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--config", "nano", "--reassociate"});
    refused(words, "--reassociate: it orders the sums of steps that are played; leave it out, or give --search --simulate 3\n");
  };
  reassociate({});
  reassociate({"-n", "4"});
  reassociate({"--paper"});
  reassociate({"--search", "--gpus", "8", "--machine", "h100"});
  reassociate({"--search", "--gpus", "8", "--machine", "h100", "--simulate", "0"});
  using Option = std::pair<std::string, std::string>;
  for (const auto& [option, value] : {Option("--nodes", "1"), {"--threads", "3"}, {"--intra", "tcp"}}) {
    refused({"--config", "nano", "--search", "--gpus", "8", "--machine", "h100", option, value},
            option + " " + value + ": a search is among the GPUs of --machine; leave it out");
    refused({"--paper", option, value}, option + " " + value + ": the paper's equations have no place for it");
  }
  for (const auto& [option, value] : {Option("--machine", "h100"),
                                      {"--mem", "80G"},
                                      {"--mem-per-rank", "1G"},
                                      {"--recompute", "full"},
                                      {"--tp", "sequence"},
                                      {"--sp", "ring"}})
    refused({"--paper", "--layout", "tp=2,sp=4", option, value},
            option + " " + value + ": the paper's equations have no place for it");
  for (const auto& [option, value] : {Option("--machine", "h100"), {"--mem", "80G"}, {"--recompute", "full"}, {"--threads", "3"}})
    refused({"--config", "nano", "--tasks", option, value},
            option + " " + value + ": the list of tasks doesn't depend on it; leave out either it or --tasks");
  refused({"--config", "nano", "--tasks", "--layout", "pp=3"}, "3 stages of 2 layers: each must have one; at most 2 work");
  refused({"--config", "nano", "--tasks", "--layout", "tsp=2", "--pipeline", "gpipe"},
          "--pipeline gpipe: --layout tsp=2 has no pipeline; try --layout pp=2");
  refused({"--config", "nano", "--layout", "pp=2", "--pipeline", "gpipe"}, "--pipeline gpipe: it goes with --tasks");
  refused({"--tasks", "--paper"}, "--tasks --paper: they are two answers; give one of them");
  refused({"--config", "nano", "--tasks", "--batch", "4", "--micro-batches", "3"}, "--micro-batches 3 doesn't divide --batch 4");
  refused({"--config", "nano", "--tasks", "--layout", "tsp=3"}, "8 query heads don't divide by 3; try 2 or 4");
  refused({"--config", "nano", "--nodes", "2"}, "--nodes 2: it spreads the ranks of -n or --layout, and neither is given");
  // What is proposed works.
  refused({"--config", "nano", "--tp", "sequence"}, "try --layout tp=2\n");
  refused({"--config", "nano", "--sp", "ring"}, "try --layout sp=2\n");
  refused({"--config", "nano", "--layout", "zero3=2,tp=2"}, "zero3 can't be mixed");
}

TEST(PlanCommand, CountsWhatSavingACheckpointTakes) {
  const auto nano = [](std::uint64_t budget) {
    const Answer answer = plan({"--config", "nano", "--seq", "2", "--mem-per-rank", std::to_string(budget / 1024) + "K"});
    EXPECT_EQ(answer.code, 0) << answer.err;
    return answer.report.at("plan").at(0);
  };
  constexpr std::uint64_t kMuch = 64 << 20;
  const json whole = nano(kMuch);
  EXPECT_EQ(whole.at("fits"), true);
  // With 2 tokens a step takes less than what the largest transposed weight takes on its way into a file.
  const auto steps = whole.at("memory_peak_bytes").at("total").get<std::uint64_t>();
  const json tight = nano(steps + (4 << 10));
  EXPECT_EQ(tight.at("fits"), false);
  EXPECT_NE(tight.at("why").get<std::string>().find("too much where a checkpoint is saved"), std::string::npos) << tight;
  EXPECT_EQ(nano(steps + (64 << 10)).at("fits"), true);
}

TEST(PlanCommand, CountsRotaryModelsBeyondTheirPositionsWithAWarning) {
  const Answer beyond = plan({"--config", "nano", "--seq", "300"});
  EXPECT_EQ(beyond.code, 0) << beyond.err;
  EXPECT_NE(beyond.err.find("--seq 300: nano has 256 positions"), std::string::npos) << beyond.err;
  EXPECT_EQ(beyond.report.at("seq"), 300);
  EXPECT_EQ(plan({"--config", "nano", "--seq", "256"}).err, "");
  const Answer learned = plan({"--config", "nano-gpt2", "--seq", "300"});
  EXPECT_EQ(learned.code, 2);
  EXPECT_NE(learned.err.find("try --seq 256"), std::string::npos) << learned.err;
}

TEST(PlanCommand, CountsWithTheAlgorithmsThatRanksWouldUse) {
  const std::vector<std::string> nano = {"-n", "4", "--config", "nano", "--seq", "64", "--batch", "4"};
  const auto memory = [&](const char* algorithms) {
    ::setenv("TSP_ALGORITHMS", algorithms, 1);
    const Answer answer = plan(nano);
    ::unsetenv("TSP_ALGORITHMS");
    EXPECT_EQ(answer.code, 0) << answer.err;
    return row(answer.report.at("plan"), {{"label", "tsp=4"}}).at("memory_peak_bytes").at("total").get<double>();
  };
  EXPECT_LT(memory("all_gather=ring"), memory("all_gather=direct"));
  ::setenv("TSP_ALGORITHMS", "all_gather=ring", 1);
  const Answer paper = plan({"--paper"});
  ::unsetenv("TSP_ALGORITHMS");
  EXPECT_EQ(paper.code, 2);
  EXPECT_NE(paper.err.find("TSP_ALGORITHMS all_gather=ring: the paper's equations have no place for it"), std::string::npos)
      << paper.err;
}

}  // namespace
}  // namespace tsprun::detail::launcher::plan_test
