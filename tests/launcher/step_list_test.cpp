// The steps of a report: the same rows however many they are, and no memory for them.
#include "launcher/step_list.h"

#include "launcher/report.h"
#include "tests/layers/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <malloc.h>
#include <string>

namespace tsprun::detail::launcher::step_list_test {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t kMany = 20'000;  // more than fit the buffer, some 1.2 MB

std::string row(std::uint64_t step) { return fmt::format(R"({{"step":{},"loss":{}.25,"grad_norm":1.5}})", step, step); }

ordered_json rows(const StepList& list) {
  std::string text;
  list.print([&](std::string_view piece) { text += piece; });
  return ordered_json::parse(text);
}

void fill(StepList& list, std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t step = first; step <= last; ++step) list.append(row(step));
}

void expect_steps(const StepList& list, std::uint64_t last) {
  const ordered_json all = rows(list);
  ASSERT_EQ(all.size(), last);
  for (std::uint64_t i = 0; i < last; ++i) ASSERT_EQ(all[i].dump(), row(i + 1));
}

TEST(StepList, HasEveryRowWhetherFewOrMany) {
  const detail::test::TemporaryFolder folder;
  StepList list(folder / "report.json");
  EXPECT_EQ(rows(list), ordered_json::array());
  fill(list, 1, 3);
  expect_steps(list, 3);
  fill(list, 4, kMany);
  expect_steps(list, kMany);
  EXPECT_TRUE(list.trouble().empty()) << list.trouble();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the file has a name";
}

TEST(StepList, TakesNoMemoryForRows) {
  const detail::test::TemporaryFolder folder;
  StepList list(folder / "report.json");
  fill(list, 1, 2000);
  const std::size_t before = ::mallinfo2().uordblks;
  fill(list, 2001, kMany);
  EXPECT_LT(::mallinfo2().uordblks, before + (std::size_t{100} << 10));
}

TEST(StepList, ForgetsWhatAnAttemptDidBehindTheCheckpointFromWhichTheNextGoesOn) {
  const detail::test::TemporaryFolder folder;
  for (const std::uint64_t kept : {std::uint64_t{0}, std::uint64_t{1}, kMany / 2, kMany - 1, kMany, kMany + 7}) {
    StepList list(folder / "report.json");
    fill(list, 1, kMany);
    list.keep_up_to(kept);
    expect_steps(list, std::min(kept, kMany));
    fill(list, std::min(kept, kMany) + 1, kMany + 5);
    expect_steps(list, kMany + 5);
  }
}

TEST(StepList, LiesElsewhereWhereTheReportsFolderTakesNoFile) {
  StepList list("/proc/report.json");
  fill(list, 1, kMany);
  EXPECT_TRUE(list.trouble().empty()) << list.trouble();
  expect_steps(list, kMany);
}

TEST(StepList, LeavesOutWhatIsNoObject) {
  StepList list("report.json");
  for (const char* text : {"", "[1]", "{", "7", "{\"a\":1}\n{\"b\":2}"}) list.append(text);
  list.append("{\"step\":\n1}");
  EXPECT_EQ(rows(list).dump(), R"([{"step":1}])");
}

TEST(Report, HasItsStepsAmongTheOtherKeys) {
  const detail::test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "report.json";
  Report report(path.string());
  report.root()["command"] = "train";
  report.begin_steps();
  report.root()["loss"] = 1.5;
  report.root()["failure"] = nullptr;
  ASSERT_NE(report.steps(), nullptr);
  fill(*report.steps(), 1, 2);
  EXPECT_EQ(report.write(), "");
  EXPECT_EQ(ordered_json::parse(detail::test::read_all(path)).dump(),
            fmt::format(R"({{"command":"train","steps":[{},{}],"loss":1.5,"failure":null}})", row(1), row(2)));
  Report unwanted("");
  unwanted.begin_steps();
  EXPECT_EQ(unwanted.steps(), nullptr);
}

}  // namespace
}  // namespace tsprun::detail::launcher::step_list_test
