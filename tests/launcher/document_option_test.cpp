// `--documents` of plan and simulate: what lengths mean, what is refused and what would work instead, and what the answers say.
#include "launcher/model/document_option.h"

#include "tests/launcher/answer.h"
#include "tests/layers/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::document_option_test {
namespace {

using nlohmann::json;
using test::Answer;
using test::answer_of;
using testing::HasSubstr;

using Lengths = std::vector<std::uint32_t>;

std::string refused(const std::string& text, std::size_t sequence = 16384) {
  return test::refusal([&] { parse_documents(text, sequence); });
}

TEST(DocumentOption, ReadsLengthsAndCounts) {
  EXPECT_EQ(parse_documents("", 16384), Lengths());
  EXPECT_EQ(parse_documents("16384", 16384), Lengths{16384});
  EXPECT_EQ(parse_documents("8192,4096,4096", 16384), (Lengths{8192, 4096, 4096}));
  EXPECT_EQ(parse_documents("8192,2x4096", 16384), (Lengths{8192, 4096, 4096}));
  EXPECT_EQ(parse_documents("2x3,1,2x2", 11), (Lengths{3, 3, 1, 2, 2}));
  EXPECT_EQ(parse_documents("3x", 11), (Lengths{4, 4, 3}));
  EXPECT_EQ(parse_documents("1x", 11), Lengths{11});
  EXPECT_EQ(parse_documents("11x", 11), Lengths(11, 1));
}

TEST(DocumentOption, RefusesWhatDoesNotFillASequence) {
  EXPECT_EQ(
      refused("8192,4096"),
      "--documents 8192,4096: 12288 tokens together, and a sequence (--seq) has 16384; --seq 12288 fits them, as does one more "
      "of 4096");
  EXPECT_EQ(refused("8192,4096,4097"),
            "--documents 8192,4096,4097: 16385 tokens together, and a sequence (--seq) has 16384; --seq 16385 fits them");
  EXPECT_EQ(
      refused("4096"),
      "--documents 4096: 4096 tokens together, and a sequence (--seq) has 16384; 4x4096 are 4 documents of 4096 tokens, 4096x "
      "are 4096 equal documents");
  EXPECT_EQ(refused("5"), "--documents 5: 5 tokens together, and a sequence (--seq) has 16384; 5x are 5 equal documents");
  EXPECT_EQ(refused("16385x"),
            "--documents 16385x: a sequence (--seq) has 16384 tokens, and each document at least one; try --documents 16384x");
  EXPECT_THAT(refused("2000000000x2000000000,2000000000x2000000000"), HasSubstr("give fewer or shorter ones"));
}

TEST(DocumentOption, RefusesWhatIsNoLength) {
  for (const char* text :
       {"0", "-1", "8192,", ",8192", "8192,,8192", "x", "x4", "2xx4", "0x", "0x4", "4x0", "2x3x4", "8k", " 8192", "many"})
    EXPECT_THAT(refused(text), HasSubstr("lengths in tokens work, such as 8192,4096,2x2048")) << text;
}

Answer plan(std::vector<std::string> words) {
  words.insert(words.begin(), {"--config", "nano", "--batch", "2", "--seq", "64"});
  return answer_of("plan", words);
}

double attention_of(const json& row) { return row.at("flops").at("forward").at("attention").get<double>(); }

/// Pairs of documents of 40 and 24 tokens, where one rank has all.
TEST(DocumentOption, PlansCountTheirPairs) {
  const Answer whole = plan({"-n", "1"});
  const Answer packed = plan({"-n", "1", "--documents", "40,24"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(packed.code, 0) << packed.err;
  const json& row = packed.report.at("plan").at(0);
  EXPECT_EQ(row.at("documents"), json({40, 24}));
  EXPECT_FALSE(whole.report.at("plan").at(0).contains("documents"));
  EXPECT_DOUBLE_EQ(attention_of(row) / attention_of(whole.report.at("plan").at(0)), (40 * 41 + 24 * 25) / (64.0 * 65));
  EXPECT_THAT(packed.out, HasSubstr("S 64 in documents of 40,24"));
  const json& memory = row.at("memory_peak_bytes");
  EXPECT_GT(memory.at("total"), whole.report.at("plan").at(0).at("memory_peak_bytes").at("total"));
}

TEST(DocumentOption, PlansShowHowUnlikeSharesAre) {
  const auto imbalance = [](const std::string& documents) {
    const Answer answer = plan({"-n", "2", "--layout", "sp=2", "--documents", documents});
    EXPECT_EQ(answer.code, 0) << answer.err;
    EXPECT_THAT(answer.out, HasSubstr("imbalance"));
    return answer.report.at("plan").at(0).at("attention_imbalance").get<double>();
  };
  const auto sum = [](int from, int to) { return (from + to) * (to - from + 1) / 2.0; };
  // The shorter document is the first rank's, and the longer one is laid over what is left of four chunks of 16 tokens. Of 48
  // tokens the first rank gets the first and the last 8.
  const double of_48 = sum(1, 16) + sum(1, 8) + sum(41, 48);
  EXPECT_DOUBLE_EQ(imbalance("16,48"), 2 * sum(9, 40) / (of_48 + sum(9, 40)));
  // Of 61 it gets the first 15 and the last 14.
  const double of_61 = sum(1, 3) + sum(1, 15) + sum(48, 61);
  EXPECT_DOUBLE_EQ(imbalance("61,3"), 2 * sum(16, 47) / (of_61 + sum(16, 47)));
}

TEST(DocumentOption, SearchesAndSimulationsTakeThem) {
  const std::vector<std::string> words = {"--search", "--gpus", "4", "--machine", "h100"};
  const auto search = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return plan(all);
  };
  const Answer found = search({"--documents", "40,24"});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("busiest rank's program"));
  EXPECT_EQ(found.report.at("plan").at(0).at("documents"), json({40, 24}));
  const Answer played = answer_of("simulate", {"--config", "nano", "--batch", "2", "--seqs", "64,33", "--gpus", "2", "--machine",
                                               "h100", "--documents", "2x"});
  ASSERT_EQ(played.code, 0) << played.err;
  EXPECT_EQ(played.report.at("simulate").at(0).at("documents"), json({32, 32}));
  EXPECT_EQ(played.report.at("simulate").at(1).at("documents"), json({17, 16}));
}

TEST(DocumentOption, IsRefusedWhereNothingDependsOnIt) {
  for (const char* what : {"--paper", "--tasks"}) {
    const Answer answer = plan({what, "--documents", "2x"});
    EXPECT_EQ(answer.code, 2);
    EXPECT_THAT(answer.err, HasSubstr("--documents 2x: ")) << what;
  }
  const Answer sum = plan({"--documents", "40,23"});
  EXPECT_EQ(sum.code, 2);
  EXPECT_THAT(sum.err, HasSubstr("--documents 40,23: 63 tokens together, and a sequence (--seq) has 64"));
}

}  // namespace
}  // namespace tsprun::detail::launcher::document_option_test
