// tsprun on a terminal: what its bar shows at 40, 80 and 120 columns, and what a terminal gets that can't redraw lines; and where
// results go that were asked for on stdout.
#include "tests/support/terminal.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::terminal_test {
namespace {

std::string text_file(const TemporaryDirectory& folder) {
  std::string path = folder.path("book.txt");
  std::ofstream file(path);
  for (int i = 0; i < 500; ++i) file << "line " << i << " of a book\n";
  return path;
}

std::vector<std::string> training(const std::string& data) {
  return {"-n", "2", "train", "--config", "nano", "--data", data, "--seq", "32", "--steps", "30"};
}

/// The states that the bottom line went through: what stood there when it was erased.
std::vector<std::string> bars(const std::string& text) {
  std::vector<std::string> found;
  const std::string erase = "\r\033[K";
  for (std::size_t end = 0; (end = text.find(erase, end)) != std::string::npos; end += erase.size()) {
    const std::size_t line = text.rfind('\n', end);
    const std::size_t before = end == 0 ? std::string::npos : text.rfind(erase, end - 1);
    std::size_t begin = line == std::string::npos ? 0 : line + 1;
    if (before != std::string::npos) begin = std::max(begin, before + erase.size());
    found.push_back(text.substr(begin, end - begin));
  }
  return found;
}

TEST(Terminal, TheBarShowsTheLossAndWholeFieldsAtEveryWidth) {
  const TemporaryDirectory folder;
  const std::string data = text_file(folder);
  for (const int columns : {40, 80, 120}) {
    const Shown shown = on_terminal(columns, "xterm", training(data));
    EXPECT_EQ(shown.code, 0) << shown.text;
    const std::vector<std::string> states = bars(shown.text);
    ASSERT_FALSE(states.empty()) << shown.text;
    for (const std::string& state : states) {
      if (state.empty()) continue;
      EXPECT_LT(state.size(), static_cast<std::size_t>(columns)) << state;
      EXPECT_TRUE(state.starts_with("loss ")) << state;
      EXPECT_NE(state.find("  step "), std::string::npos) << state;
      // A number that was cut would stand at the end without its unit.
      EXPECT_TRUE(columns < 80 || state.find(" tokens/s  [") != std::string::npos) << state;
      const std::string last = state.substr(state.rfind("  ") + 2);
      EXPECT_TRUE(last.ends_with(" tokens/s") || last.ends_with("]") || last.starts_with("ETA ") || last.starts_with("step ") ||
                  last.starts_with("grad_norm "))
          << state;
    }
    EXPECT_NE(shown.text.find("step 30/30  loss "), std::string::npos) << "the last line stays: " << shown.text;
    EXPECT_NE(shown.text.find("audit: memory and traffic equal the"), std::string::npos) << "filled: " << shown.text;
  }
}

TEST(Terminal, OneThatCantRedrawGetsLinesAndNoEscapeCodes) {
  const TemporaryDirectory folder;
  const Shown shown = on_terminal(80, "dumb", training(text_file(folder)));
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_EQ(shown.text.find('\033'), std::string::npos) << shown.text;
  EXPECT_NE(shown.text.find("step  1/30  loss "), std::string::npos) << shown.text;
}

// With "-" stdout is the file's alone; what would stand there otherwise goes to stderr.
TEST(StandardOutput, HoldsTheReportAloneThatWasAskedForThere) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = training(text_file(folder));
  arguments.insert(arguments.end(), {"--json", "-"});
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const nlohmann::json report = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << run.describe();
  EXPECT_EQ(report.at("steps").size(), 30U);
  EXPECT_NE(run.err.find("audit: "), std::string::npos) << run.describe();
}

TEST(StandardOutput, HoldsTheTraceAloneThatWasAskedForThere) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = training(text_file(folder));
  arguments.insert(arguments.end(), {"--trace", "-"});
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const nlohmann::json trace = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_TRUE(trace.is_object()) << run.err;
  EXPECT_GT(trace.at("traceEvents").size(), 100U);
}

// The job is done: what the file system won't take spoils the exit code, and nothing else.
TEST(StandardOutput, AFileThatCantBeWrittenLosesNothingElse) {
  const TemporaryDirectory folder;
  const std::string data = text_file(folder);
  std::vector<std::string> traced = training(data);
  traced.insert(traced.end(), {"--trace", "/dev/full", "--json", folder.path("report")});
  const Finished trace = run_tsprun(traced);
  EXPECT_EQ(trace.end.code, 1) << trace.describe();
  EXPECT_NE(
      trace.err.find("tsprun: the job is done, but its trace isn't: --trace /dev/full: writing it: No space left on device"),
      std::string::npos)
      << trace.describe();
  EXPECT_EQ(trace.err.find("rank 0"), std::string::npos) << "no rank failed: " << trace.describe();
  EXPECT_NE(trace.out.find("audit: "), std::string::npos) << trace.describe();
  const nlohmann::json report = read_json(folder.path("report"));
  EXPECT_EQ(report.at("steps").size(), 30U);
  EXPECT_EQ(report.at("per_rank").size(), 2U);
  EXPECT_EQ(report.at("failure").at("kind"), "refused");
  EXPECT_TRUE(report.at("failure").at("rank").is_null());

  std::vector<std::string> reported = training(data);
  reported.insert(reported.end(), {"--json", "/dev/full"});
  const Finished json = run_tsprun(reported);
  EXPECT_EQ(json.end.code, 1) << json.describe();
  EXPECT_NE(json.err.find("--json /dev/full: writing the report: No space left on device"), std::string::npos) << json.describe();
  EXPECT_NE(json.out.find("audit: "), std::string::npos) << json.describe();

  const Finished table = run_tsprun({"compare", "--layouts", "tsp=1", "--config", "nano", "--data", data, "--seq", "32",
                                     "--steps", "1", "--csv", "/dev/full", "--json", folder.path("compared")});
  EXPECT_EQ(table.end.code, 1) << table.describe();
  EXPECT_NE(table.err.find("--csv /dev/full"), std::string::npos) << table.describe();
  EXPECT_NE(table.out.find("tsp=1"), std::string::npos) << table.describe();
  EXPECT_EQ(read_json(folder.path("compared")).at("compare").size(), 1U);
}

}  // namespace
}  // namespace tsprun::detail::test::terminal_test
