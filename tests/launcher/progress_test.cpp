// What a run says of its progress: lines without a terminal, a bar on one.
#include "launcher/model/progress.h"

#include "tests/support/hand_clock.h"
#include "transport/posix.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::progress_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

/// Returns what went through a sink, frames of lines and of progress, when every step took `step_ns` and 100 tokens.
std::vector<std::pair<char, std::string>> said(ProgressLine::Style style, std::uint64_t first, std::uint64_t total,
                                               std::uint64_t step_ns = 1000, std::uint64_t every = 0) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const posix::UniqueFd read_end(ends[0]);
  {
    ReportSink sink{posix::UniqueFd(ends[1])};
    detail::test::HandClock clock;
    ProgressLine progress(sink, style, "step", total, first, every, clock);
    for (std::uint64_t step = first + 1; step <= total; ++step) {
      clock.ns += step_ns;
      progress.update(step, 100, "loss 1.5  norm 2.5  lr 0.1");
    }
  }
  std::string bytes(65536, '\0');
  const ssize_t count = ::read(read_end.get(), bytes.data(), bytes.size());
  bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  FrameReader reader;
  EXPECT_TRUE(reader.feed(bytes));
  std::vector<std::pair<char, std::string>> frames;
  for (FrameReader::Frame frame; reader.next(frame);) frames.emplace_back(frame.kind, frame.payload);
  return frames;
}

/// Returns the steps that have a line.
std::vector<int> lines_at(ProgressLine::Style style, std::uint64_t total, std::uint64_t step_ns, std::uint64_t first = 0,
                          std::uint64_t every = 0) {
  std::vector<int> steps;
  for (const auto& [kind, text] : said(style, first, total, step_ns, every)) {
    if (kind == 'L') steps.push_back(std::stoi(text.substr(text.find(' '))));
  }
  return steps;
}

TEST(Progress, IsALineForEverySoManyStepsIfAsked) {
  for (const auto style : {ProgressLine::Style::lines, ProgressLine::Style::terminal}) {
    EXPECT_EQ(lines_at(style, 23, 1000, 0, 10), (std::vector<int>{1, 10, 20, 23}));
    EXPECT_EQ(lines_at(style, 23, 9 * kSecond, 8, 7), (std::vector<int>{9, 14, 21, 23})) << "numbers of steps, not of lines";
  }
}

TEST(Progress, WithoutATerminalIsLinesForTheFirstAndTheLast) {
  const auto frames = said(ProgressLine::Style::lines, 40, 100);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].first, 'L');
  EXPECT_EQ(frames[0].second.rfind("step  41/100  loss 1.5  norm 2.5  lr 0.1  ", 0), 0U) << frames[0].second;
  EXPECT_EQ(frames[1].second.rfind("step 100/100  loss 1.5  norm 2.5  lr 0.1  ", 0), 0U) << frames[1].second;
  EXPECT_NE(frames[1].second.find("tokens/s"), std::string::npos);
}

TEST(Progress, OnATerminalIsABarWithTheLossFirstAndALineAtTheEnd) {
  const auto frames = said(ProgressLine::Style::terminal, 0, 10);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].first, 'P');
  EXPECT_EQ(frames[0].second.rfind("loss 1.5\tstep 1/10\t", 0), 0U) << frames[0].second;
  EXPECT_NE(frames[0].second.find(" tokens/s\t[==>                 ]\tETA "), std::string::npos) << frames[0].second;
  EXPECT_TRUE(frames[0].second.ends_with("\tnorm 2.5\tlr 0.1")) << frames[0].second;
  EXPECT_EQ(frames[1].first, 'L');
  EXPECT_EQ(frames[1].second.rfind("step 10/10  loss 1.5  norm 2.5  lr 0.1  ", 0), 0U) << frames[1].second;
}

TEST(Progress, LinesComeOnceASecondWithTheSpeedSinceTheLast) {
  EXPECT_EQ(lines_at(ProgressLine::Style::lines, 8, kSecond * 2 / 5), (std::vector{1, 4, 7, 8}));
  EXPECT_EQ(said(ProgressLine::Style::lines, 0, 3, kSecond / 2).back().second,
            "step 3/3  loss 1.5  norm 2.5  lr 0.1  200 tokens/s");
}

// Of what is drawn anew nothing would be left to see.
TEST(Progress, OnATerminalTheCourseStaysAboveTheBarInEverRarerLines) {
  EXPECT_EQ(lines_at(ProgressLine::Style::terminal, 7, kSecond), (std::vector{2, 4, 6, 7}));
  // From 20 s on the next line waits for a tenth of the time so far.
  EXPECT_EQ(lines_at(ProgressLine::Style::terminal, 32, kSecond),
            (std::vector{2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 23, 26, 29, 32}));
}

TEST(Progress, OnATerminalTheBarIsDrawnTenTimesASecondAndTellsTheTimeLeft) {
  const auto frames = said(ProgressLine::Style::terminal, 0, 10, kSecond / 20);
  std::string kinds;
  for (const auto& frame : frames) kinds += frame.first;
  EXPECT_EQ(kinds, "PPPPPL") << "at the first step, then at every second one";
  const auto slow = said(ProgressLine::Style::terminal, 0, 10, 30 * kSecond);
  EXPECT_NE(slow[1].second.find("3 tokens/s\t[==>                 ]\tETA 4:30"), std::string::npos) << slow[1].second;
}

TEST(Progress, SilentSaysNothing) { EXPECT_TRUE(said(ProgressLine::Style::silent, 0, 10).empty()); }

TEST(Bar, FillsWithTheShare) {
  EXPECT_EQ(bar(0, 4), "[>   ]");
  EXPECT_EQ(bar(0.5, 4), "[==> ]");
  EXPECT_EQ(bar(1, 4), "[====]");
  EXPECT_EQ(bar(7, 4), "[====]");
}

TEST(Durations, AreReadable) {
  EXPECT_EQ(duration_text(7.4), "0:07");
  EXPECT_EQ(duration_text(750), "12:30");
  EXPECT_EQ(duration_text(10800), "3:00:00");
  EXPECT_EQ(duration_text(-1), "--");
}

}  // namespace
}  // namespace tsprun::detail::launcher::progress_test
