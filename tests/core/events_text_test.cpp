// The text of a rank's events: messages with a tag, which overlap, get rows of their own, for the slices of a row must not.
#include "core/trace/events_text.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::events_text_test {
namespace {

class StringText final : public TraceText {
 public:
  std::string text;

 private:
  void take(std::string_view piece) override { text += piece; }
};

TEST(EventsText, PutsMessagesThatOverlapIntoRowsOfTheirOwn) {
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> spans = {{0, 100}, {10, 50}, {20, 30}, {50, 60}, {100, 120}};
  std::vector<TraceEvent> events;
  for (const auto& [begin, end] : spans) {
    events.push_back({.begin_ns = begin * 1000,
                      .end_ns = end * 1000,
                      .name = "send",
                      .peer = 1,
                      .row = static_cast<std::uint8_t>(1 + static_cast<int>(kTagged)),
                      .op = Op::send});
  }
  StringText file;
  print_head(file, 0, true);
  const std::vector<int> members = {0, 1};
  const std::uint64_t end_ns = print_events(
      file, events, 0, 0, TraceFlows::all, [&](std::uint64_t) { return TracedGroup{.members = members}; }, [] {});
  file.print("]}}");
  file.flush();
  EXPECT_EQ(end_ns, 120'000U);

  std::map<int, double> over;  // by row: when its last slice ended
  std::map<int, std::string> names;
  std::vector<std::pair<double, int>> arrows;
  std::vector<std::pair<double, int>> slices;
  const nlohmann::json trace = nlohmann::json::parse(file.text);
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "s") arrows.emplace_back(event.at("ts"), event.at("tid"));
    if (event.at("ph") != "X") continue;
    const int row = event.at("tid");
    slices.emplace_back(event.at("ts"), row);
    EXPECT_GE(event.at("ts").get<double>(), over[row]) << "row " << row;
    over[row] = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  ASSERT_EQ(slices.size(), spans.size());
  EXPECT_EQ(arrows, slices);
  EXPECT_EQ(over.size(), 3U);
  for (const auto& [row, end] : over) EXPECT_TRUE(names[row].starts_with("tagged")) << row << " is " << names[row];
}

/// Returns the arguments of a single slice on rank 1 of a group.
nlohmann::json arguments_of(const TraceEvent& event) {
  StringText file;
  print_head(file, 1, true);
  const std::vector<int> members = {7, 0, 1, 2, 3, 9};
  print_events(
      file, std::vector{event}, 1, 0, TraceFlows::none,
      [&](std::uint64_t) { return TracedGroup{.members = members, .name = "tp"}; }, [] {});
  file.print("]}}");
  file.flush();
  const nlohmann::json trace = nlohmann::json::parse(file.text);
  for (const nlohmann::json& each : trace.at("traceEvents"))
    if (each.at("ph") == "X") return each.at("args");
  return nullptr;
}

TEST(EventsText, SaysBytesAndPeersOfEveryOperationAndWhatAKernelDoes) {
  const nlohmann::json sum = arguments_of({.name = "all_reduce", .bytes = 40, .sequence = 3, .op = Op::all_reduce});
  EXPECT_EQ(sum.at("bytes"), 40);
  EXPECT_EQ(sum.at("peers"), "0,2-3,7,9");
  EXPECT_EQ(sum.at("group"), "tp");
  EXPECT_FALSE(sum.contains("peer"));
  const nlohmann::json root = arguments_of({.name = "broadcast", .bytes = 40, .peer = 7, .op = Op::broadcast});
  EXPECT_EQ(root.at("peer"), 7);
  EXPECT_EQ(root.at("peers"), "0,2-3,7,9");
  const nlohmann::json both = arguments_of({.name = "send_recv", .bytes = 8, .peer = 2, .source = 0, .op = Op::send_recv});
  EXPECT_EQ(both.at("peer"), 2);
  EXPECT_EQ(both.at("from"), 0);
  EXPECT_FALSE(both.contains("peers"));
  const nlohmann::json product = arguments_of({.name = "gemm", .flops = 512, .bytes = 96, .matrix = "W_Q", .sizes = {8, 16, 2}});
  EXPECT_EQ(product.dump(), R"({"bytes":96,"flops":512,"k":2,"m":8,"n":16})");
  const nlohmann::json norm = arguments_of({.name = "norm", .bytes = 96});
  EXPECT_EQ(norm.dump(), R"({"bytes":96,"flops":0})");
}

}  // namespace
}  // namespace tsprun::detail::test::events_text_test
