// Fractions of a peak in machine files: tables and grids, what lies between their entries, and what is refused.
#include "layers/theory/efficiency.h"

#include "layers/theory/machine.h"
#include "tests/layers/machine_text.h"
#include "tests/layers/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::theory::efficiency_test {
namespace {

using test::refusal;
using test_machine::with;

TEST(Machines, HaveTablesOfEfficiency) {
  std::string text = with("\"gemm_efficiency\": 0.5", "\"gemm_efficiency\": [[1e6, 0.1], [1e8, 0.3], [1e12, 0.8]]");
  text.insert(1, "\"version\": 2, ");
  const Efficiency read = parse_machine(text, "m.json").gemm_efficiency;
  EXPECT_EQ(read.at(1), 0.1);
  EXPECT_EQ(read.at(1e6), 0.1);
  EXPECT_NEAR(read.at(1e7), std::sqrt(0.1 * 0.3), 1e-12);
  EXPECT_NEAR(read.at(1e8), 0.3, 1e-12);
  EXPECT_NEAR(read.at(1e11), 0.3 * std::pow(0.8 / 0.3, 0.75), 1e-12);
  EXPECT_EQ(read.at(1e12), 0.8);
  EXPECT_EQ(read.at(1e20), 0.8);
  EXPECT_EQ(read.of_largest(), 0.8);
}

TEST(Machines, OfVersion6HaveGridsOfEfficiency) {
  std::string text = with("\"gemm_efficiency\": 0.5",
                          "\"gemm_efficiency\": {\"depth\": [10, 1000], \"results\": [1e2, 1e4, 1e8], "
                          "\"fraction\": [[0.1, 0.2, 0.4], [0.3, 0.5, 0.9]]}");
  text.insert(1, "\"version\": 6, ");
  const Efficiency read = parse_machine(text, "m.json").gemm_efficiency;
  const auto at = [&](double depth, double results) { return read.at({.flops = 7, .row = depth, .column = results}); };
  EXPECT_EQ(at(10, 1e2), 0.1);
  EXPECT_EQ(at(1000, 1e4), 0.5);
  EXPECT_NEAR(at(10, 1e3), std::sqrt(0.1 * 0.2), 1e-12);
  EXPECT_NEAR(at(1000, 1e6), std::sqrt(0.5 * 0.9), 1e-12);
  EXPECT_NEAR(at(100, 1e4), std::sqrt(0.2 * 0.5), 1e-12);
  EXPECT_NEAR(at(100, 1e6), std::pow(0.2 * 0.4 * 0.5 * 0.9, 0.25), 1e-12);
  EXPECT_EQ(at(1, 1), 0.1);
  EXPECT_EQ(at(1e9, 1e9), 0.9);
  EXPECT_EQ(at(1e9, 1), 0.3);
  EXPECT_EQ(read.of_largest(), 0.9);
}

TEST(Machines, OfVersion6PriceAttentionByDirectionAndName) {
  std::string text = with("\"attention_efficiency\": 0.25",
                          "\"attention_efficiency\": {\"forward\": 0.5, \"backward\": [[1e3, 0.1], [1e5, 0.25]]}, "
                          "\"attention_kernels\": {\"flash2\": 0.2, \"new\": {\"forward\": {\"head\": [64], \"seen\": [9], "
                          "\"fraction\": [[0.6]]}, \"backward\": 0.4}}");
  text.insert(1, "\"version\": 6, ");
  Machine read = parse_machine(text, "m.json");
  EXPECT_EQ(read.attention_efficiency.forward.at(1e4), 0.5);
  EXPECT_NEAR(read.attention_efficiency.backward.at(1e4), std::sqrt(0.1 * 0.25), 1e-12);
  // 1 FLOP forward and 2.5 backward take 2 and 10 times as long as at the peak.
  EXPECT_NEAR(read.attention_efficiency.of_largest(), 3.5 / (1 / 0.5 + 2.5 / 0.25), 1e-12);
  EXPECT_FALSE(read.choose_attention("flash3"));
  EXPECT_TRUE(read.choose_attention("flash2"));
  EXPECT_EQ(read.attention_efficiency.of_largest(), 0.2);
  EXPECT_TRUE(read.choose_attention("new"));
  EXPECT_EQ(read.attention_efficiency.forward.at(1), 0.6);
  EXPECT_EQ(read.attention, AttentionKind::fused);
  EXPECT_TRUE(read.choose_attention("unfused"));
  EXPECT_EQ(read.attention, AttentionKind::unfused);
}

TEST(Machines, OfVersion6AreRefusedByField) {
  const auto refused = [](const std::string& grid, const std::string& version = "6") {
    std::string text = with("\"gemm_efficiency\": 0.5", "\"gemm_efficiency\": " + grid);
    text.insert(1, "\"version\": " + version + ", ");
    return refusal([&] { parse_machine(text, "m.json"); });
  };
  const std::string sizes = "{\"depth\": [1, 2], \"results\": [1, 2], \"fraction\": ";
  const std::string needs = ": expected a number from 0.001 to 1 (an object needs \"version\": 6), found an object";
  EXPECT_EQ(refused(sizes + "[[0.1, 0.1], [0.1, 0.1]]}", "5"), "m.json: field \"gemm_efficiency\"" + needs);
  EXPECT_EQ(refused("0.5, \"attention_kernels\": {\"flash2\": 0.2}", "5"),
            "m.json: field \"attention_kernels\": expected none (it needs \"version\": 6), found an object");
  EXPECT_EQ(refusal([] {
              parse_machine(with("\"attention_efficiency\": 0.25", "\"attention_efficiency\": {\"forward\": 1, \"backward\": 1}"),
                            "m.json");
            }),
            "m.json: field \"attention_efficiency\"" + needs);
  EXPECT_EQ(
      refused(sizes + "[[0.1, 0.1]]}"),
      "m.json: field \"gemm_efficiency.fraction\": expected 2 lists of fractions, one for each of \"depth\", found an array");
  const std::string list = ": expected 2 numbers from 0.001 to 1, one for each of \"results\", found ";
  EXPECT_EQ(refused(sizes + "[[0.1, 0.1], [0.1]]}"), "m.json: field \"gemm_efficiency.fraction[1]\"" + list + "[0.1]");
  EXPECT_EQ(refused(sizes + "[[0.1, 1.1], [0.1, 0.1]]}"), "m.json: field \"gemm_efficiency.fraction[0]\"" + list + "[0.1,1.1]");
  EXPECT_EQ(refused(sizes + "[[0.1, 0.1], [0.1, 0.1, 0.1]]}"),
            "m.json: field \"gemm_efficiency.fraction[1]\"" + list + "[0.1,0.1,0.1]");
  EXPECT_EQ(refused(sizes + "[[0.1, 0.1], 7]}"), "m.json: field \"gemm_efficiency.fraction[1]\"" + list + "7");
  EXPECT_EQ(refused("{\"depth\": [2, 2], \"results\": [1], \"fraction\": [[1], [1]]}"),
            "m.json: field \"gemm_efficiency.depth[1]\": expected a number from 1, larger than the entry before, found 2");
  EXPECT_EQ(refused("{\"depth\": [], \"results\": [1], \"fraction\": []}"),
            "m.json: field \"gemm_efficiency.depth\": expected 1 to 1000 increasing numbers from 1, found an array");
  EXPECT_NE(refused("{\"depth\": [1], \"seen\": [1], \"fraction\": [[1]]}").find("\"gemm_efficiency.results\" is missing"),
            std::string::npos);
  EXPECT_NE(refused(sizes + "[[0.1, 0.1], [0.1, 0.1]], \"head\": 1}").find("\"gemm_efficiency.head\" is not known"),
            std::string::npos);
}

/// Sizes from 32 to 2^31, 16 to the octave.
std::vector<double> fine_sizes() {
  std::vector<double> sizes;
  for (int i = 0; i <= 26 * 16; ++i) sizes.push_back(32 * std::exp2(i / 16.0));
  return sizes;
}

/// Expects that more work takes no less time, whichever of two sizes grows.
void expect_more_takes_longer(const Efficiency& efficiency, const std::string& what) {
  const std::vector<double> sizes = fine_sizes();
  const auto seconds = [&](double row, double column) {
    return row * column / efficiency.at({.flops = row * column, .row = row, .column = column});
  };
  constexpr double kRounding = 1e-9;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t j = 0; j < sizes.size(); ++j) {
      const double here = seconds(sizes[i], sizes[j]) * (1 + kRounding);
      const bool grows =
          (i == 0 || seconds(sizes[i - 1], sizes[j]) <= here) && (j == 0 || seconds(sizes[i], sizes[j - 1]) <= here);
      ASSERT_TRUE(grows) << what << " at " << sizes[i] << ", " << sizes[j];
    }
  }
}

TEST(Machines, ThatComeWithTheProgramTakeLongerForMore) {
  for (const std::string& name : machine_names()) {
    const Machine machine = find_machine(name);
    expect_more_takes_longer(machine.gemm_efficiency, name + ", products");
    std::map<std::string, AttentionEfficiency> kernels = machine.attention_kernels;
    kernels["its own"] = machine.attention_efficiency;
    for (const auto& [kernel, efficiency] : kernels) {
      expect_more_takes_longer(efficiency.forward, fmt::format("{}, attention forward, {}", name, kernel));
      expect_more_takes_longer(efficiency.backward, fmt::format("{}, attention backward, {}", name, kernel));
    }
  }
}

TEST(Machines, OfVersion6InWhichMoreTakesLessTimeAreRefused) {
  const auto refused = [](const std::string& table, const std::string& version = "6") {
    std::string text = with("\"gemm_efficiency\": 0.5", "\"gemm_efficiency\": " + table);
    text.insert(1, "\"version\": " + version + ", ");
    return refusal([&] { parse_machine(text, "m.json"); });
  };
  const auto grid = [](const std::string& fractions) {
    return "{\"depth\": [256, 512], \"results\": [100, 400], \"fraction\": " + fractions + "}";
  };
  const std::string less = " (else more work would take less time), found ";
  EXPECT_EQ(
      refused(grid("[[0.02, 0.08], [0.02, 0.09]]")),
      "m.json: field \"gemm_efficiency.fraction[1]\": expected at most 0.08 at \"results\" of 400, since 0.02 is reached at "
      "100" +
          less + "[0.02,0.09]");
  EXPECT_EQ(refused(grid("[[0.02, 0.04], [0.05, 0.06]]")),
            "m.json: field \"gemm_efficiency.fraction[1]\": expected at most 0.04 at \"depth\" of 512, since 0.02 is reached at "
            "256" +
                less + "[0.05,0.06]");
  EXPECT_EQ(refused("[[100, 0.1], [200, 0.2], [400, 0.5]]"),
            "m.json: field \"gemm_efficiency[2]\": expected at most 0.4 at FLOPs of 400, since 0.2 is reached at 200" + less +
                "[400,0.5]");
  // As much time is no less, and earlier versions may say what they could.
  const auto read = [](const std::string& table, const std::string& version) {
    std::string text = with("\"gemm_efficiency\": 0.5", "\"gemm_efficiency\": " + table);
    text.insert(1, "\"version\": " + version + ", ");
    return parse_machine(text, "m.json").gemm_efficiency.of_largest();
  };
  EXPECT_EQ(read(grid("[[0.02, 0.08], [0.04, 0.16]]"), "6"), 0.16);
  EXPECT_EQ(read("[[100, 0.1], [200, 0.5]]", "5"), 0.5);
}

TEST(Machines, OfVersion6KeepTheNamesOfAttentionThatIsNotFused) {
  for (const std::string name : {"unfused", "unfused-again"}) {
    std::string text = with("\"gpus_per_node\"", "\"attention_kernels\": {\"" + name + "\": 0.3}, \"gpus_per_node\"");
    text.insert(1, "\"version\": 6, ");
    EXPECT_EQ(refusal([&] { parse_machine(text, "m.json"); }),
              fmt::format("m.json: field \"attention_kernels.{0}\": expected another name (--attention {0} prices kernels of its "
                          "own), found 0.3",
                          name));
  }
}

}  // namespace
}  // namespace tsprun::detail::theory::efficiency_test
