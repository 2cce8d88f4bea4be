// What a run says of its progress: lines without a terminal, a bar on one.
#include "launcher/model/progress.h"

#include "transport/posix.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::progress_test {
namespace {

/// Returns what went through a sink: frames of lines and of progress.
std::vector<std::pair<char, std::string>> said(Progress::Style style, std::uint64_t first, std::uint64_t total) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const posix::UniqueFd read_end(ends[0]);
  {
    ReportSink sink{posix::UniqueFd(ends[1])};
    Progress progress(sink, style, "step", total, first);
    for (std::uint64_t step = first + 1; step <= total; ++step) progress.update(step, 100, "loss 1.5  norm 2.5  lr 0.1");
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

TEST(Progress, WithoutATerminalIsLinesForTheFirstAndTheLast) {
  const auto frames = said(Progress::Style::lines, 40, 100);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].first, 'L');
  EXPECT_EQ(frames[0].second.rfind("step  41/100  loss 1.5  norm 2.5  lr 0.1  ", 0), 0U) << frames[0].second;
  EXPECT_EQ(frames[1].second.rfind("step 100/100  loss 1.5  norm 2.5  lr 0.1  ", 0), 0U) << frames[1].second;
  EXPECT_NE(frames[1].second.find("tokens/s"), std::string::npos);
}

TEST(Progress, OnATerminalIsABarWithTheLossFirstAndALineAtTheEnd) {
  const auto frames = said(Progress::Style::terminal, 0, 10);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].first, 'P');
  EXPECT_EQ(frames[0].second.rfind("loss 1.5\tstep 1/10\t", 0), 0U) << frames[0].second;
  EXPECT_NE(frames[0].second.find(" tokens/s\t[==>                 ]\tETA "), std::string::npos) << frames[0].second;
  EXPECT_TRUE(frames[0].second.ends_with("\tnorm 2.5\tlr 0.1")) << frames[0].second;
  EXPECT_EQ(frames[1].first, 'L');
  EXPECT_EQ(frames[1].second.rfind("step 10/10  loss 1.5  norm 2.5  lr 0.1  ", 0), 0U) << frames[1].second;
}

// Of what is drawn anew nothing would be left to see.
TEST(Progress, OnATerminalTheCourseStaysAboveTheBar) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const posix::UniqueFd read_end(ends[0]);
  ReportSink sink{posix::UniqueFd(ends[1])};
  Progress progress(sink, Progress::Style::terminal, "step", 1000);
  progress.update(1, 100, "loss 5.5");
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  progress.update(2, 100, "loss 5.4");
  progress.update(3, 100, "loss 5.3");
  std::string bytes(65536, '\0');
  const ssize_t count = ::read(read_end.get(), bytes.data(), bytes.size());
  bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  FrameReader reader;
  EXPECT_TRUE(reader.feed(bytes));
  std::string kinds;
  for (FrameReader::Frame frame; reader.next(frame);) {
    kinds += frame.kind;
    if (frame.kind != 'L') continue;
    EXPECT_EQ(frame.payload.rfind("step    2/1000  loss 5.4  ", 0), 0U) << frame.payload;
  }
  EXPECT_EQ(kinds, "PLP") << "a line at most every two seconds";
}

TEST(Progress, SilentSaysNothing) { EXPECT_TRUE(said(Progress::Style::silent, 0, 10).empty()); }

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
