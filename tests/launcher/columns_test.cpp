// Tables and prose on a terminal of 80 columns.
#include "launcher/columns.h"
#include "launcher/help.h"
#include "launcher/table.h"
#include "tests/launcher/answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::columns_test {
namespace {

/// A terminal's width, as a shell exports it.
class Columns : public testing::Test {
 protected:
  ~Columns() override { ::unsetenv("COLUMNS"); }
  static void are(const char* text) { ::setenv("COLUMNS", text, 1); }
};

TEST_F(Columns, AreThoseOfTheVariableIfItIsANumber) {
  are("132");
  EXPECT_EQ(table_columns(), 132U);
  EXPECT_EQ(prose_columns(), 132U);
  are("7");
  EXPECT_EQ(prose_columns(), kFewestColumns);
  for (const char* text : {"", "0", "-80", "wide", "80 ", "99999999999999999999"}) {
    are(text);
    testing::internal::CaptureStdout();  // into a file, which is no terminal
    const std::size_t prose = prose_columns();
    const std::size_t table = table_columns();
    testing::internal::GetCapturedStdout();
    EXPECT_EQ(prose, 80U) << text;
    EXPECT_EQ(table, static_cast<std::size_t>(-1)) << text;
  }
}

TEST_F(Columns, FitTheTablesOfPlanAndSimulate) {
  using Words = std::vector<std::string>;
  for (const auto& [command, words] : {
           std::pair{"plan", Words{"--config", "nano", "-n", "4"}},
           {"plan", Words{"--config", "nano", "-n", "4", "--machine", "h100", "--dtype", "bf16", "--mem", "1M", "--batch", "3"}},
           {"plan", Words{"--paper"}},
           {"plan", Words{"--search", "--gpus", "4", "--machine", "h100", "--config", "nano", "--dtype", "bf16", "--batch", "4"}},
           {"plan", Words{"--search", "--gpus", "2", "--machine", "h100", "--config", "nano", "--dtype", "bf16", "--mem", "1M"}},
           {"simulate", Words{"--machine", "h100", "--layouts", "tsp=2;tp=2;dp=2,tp=2", "--config", "nano", "--dtype", "bf16",
                              "--seqs", "64,128"}},
       }) {
    are("80");
    const test::Answer answer = test::answer_of(command, words);
    EXPECT_EQ(answer.code, 0) << answer.err;
    std::istringstream lines(answer.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(text_columns(line), 80U) << command << " " << words[0] << ": " << line;
    // Nothing is left out of what a pipe gets, whole rows.
    ::unsetenv("COLUMNS");
    const std::string whole = test::answer_of(command, words).out;
    EXPECT_LT(std::ranges::count(whole, '\n'), std::ranges::count(answer.out, '\n')) << command << " " << words[0];
  }
}

TEST_F(Columns, FitWhatDoctorSays) {
  const auto said = [] { return test::answer_of("doctor", {}).out; };
  const std::string whole = said();
  for (const std::size_t columns : {std::size_t{80}, std::size_t{40}}) {
    are(std::to_string(columns).c_str());
    std::istringstream lines(said());
    std::string joined;
    for (std::string line; std::getline(lines, line); joined += line + ' ')
      EXPECT_TRUE(text_columns(line) <= columns || line.find(' ', line.find_first_not_of(' ')) == std::string::npos) << line;
    for (const char* part : {"address space", "why this transport", "libpmix", "algorithms that there are"})
      EXPECT_NE(joined.find(part), std::string::npos) << part;
    ::unsetenv("COLUMNS");
  }
  EXPECT_NE(whole.find(" MiB of address space a rank; only what is touched costs memory\n"), std::string::npos) << whole;
}

TEST(ShellLines, AreBrokenBetweenWordsAndNotWithinQuotes) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(shell_lines("  tsprun a b", 12), Lines{"  tsprun a b"});
  EXPECT_EQ(shell_lines("  tsprun a --prompt 'The end' b", 24), (Lines{"  tsprun a --prompt \\", "      'The end' b"}));
  EXPECT_EQ(shell_lines("  tsprun 'one two three four five'", 16), (Lines{"  tsprun \\", "      'one two three four five'"}));
}

TEST(Filled, JoinsTheLinesOfAParagraphAndLeavesHeadingsAndEmptyLines) {
  EXPECT_EQ(filled("one\ntwo\n\nNotes:\n  three four five\n", 12), "one two\n\nNotes:\n  three four\n  five\n");
}

}  // namespace
}  // namespace tsprun::detail::launcher::columns_test
