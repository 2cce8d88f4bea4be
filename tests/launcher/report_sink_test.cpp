// Frames between rank 0 and tsprun, in whatever pieces they arrive.
#include "launcher/report_sink.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ctime>
#include <string>
#include <unistd.h>

namespace tsprun::detail::launcher::report_sink_test {
namespace {

/// Returns what a sink writes for one line and one value.
std::string written_bytes() {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const posix::UniqueFd read_end(ends[0]);
  {
    ReportSink sink{posix::UniqueFd(ends[1])};
    sink.line("a line");
    sink.set("bench", nlohmann::ordered_json::array({1, 2}));
  }
  std::string bytes(4096, '\0');
  const ssize_t count = ::read(read_end.get(), bytes.data(), bytes.size());
  EXPECT_GT(count, 0);
  bytes.resize(static_cast<std::size_t>(count));
  return bytes;
}

TEST(ReportSink, FramesSurviveArrivalByteByByte) {
  FrameReader reader;
  std::vector<FrameReader::Frame> frames;
  for (const char byte : written_bytes()) {
    ASSERT_TRUE(reader.feed({&byte, 1}));
    for (FrameReader::Frame frame; reader.next(frame);) frames.push_back(frame);
  }
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].kind, 'L');
  EXPECT_EQ(frames[0].payload, "a line");
  EXPECT_EQ(frames[1].kind, 'J');
  EXPECT_EQ(frames[1].payload, R"({"bench":[1,2]})");
}

TEST(ReportSink, AnUnknownKindEndsTheChannel) {
  FrameReader reader;
  FrameReader::Frame frame;
  reader.feed(std::string("X\0\0\0\0", 5));
  EXPECT_FALSE(reader.next(frame));
  EXPECT_FALSE(reader.feed("more"));
}

TEST(ReportSink, ALengthOverTheLimitEndsTheChannel) {
  FrameReader reader;
  FrameReader::Frame frame;
  reader.feed("J\xff\xff\xff\xff");
  EXPECT_FALSE(reader.next(frame));
  EXPECT_FALSE(reader.feed("more"));
}

TEST(ReportSink, WithoutAPipeEverythingIsSwallowed) {
  ReportSink sink;
  EXPECT_NO_THROW(sink.line("nobody reads this"));
  EXPECT_NO_THROW(sink.set("key", 1));
}

TEST(MergeResults, LeavesOutWhatIsNestedTooDeeplyAndIsQuickWithManySiblings) {
  nlohmann::ordered_json report;
  const auto nested = [](std::size_t levels) {
    return "{\"x\":" + std::string(levels - 1, '[') + "\"[[\\\"[[\"" + std::string(levels - 1, ']') + "}";
  };
  merge_results(report, {'J', nested(65)});
  EXPECT_FALSE(report.contains("x"));
  merge_results(report, {'J', nested(64)});
  EXPECT_TRUE(report.contains("x"));
  // A search through all siblings at the end of each would take some 10¹⁰ steps.
  std::string many = "{\"many\":[{}";
  for (int i = 1; i < 200'000; ++i) many += ",{}";
  const std::clock_t before = std::clock();
  merge_results(report, {'J', many + "]}"});
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 4);
  EXPECT_EQ(report["many"].size(), 200'000U);
}

}  // namespace
}  // namespace tsprun::detail::launcher::report_sink_test
