// Tables as text and as CSV, held against lines that were written by hand.
#include "launcher/table.h"

#include <gtest/gtest.h>

namespace tsprun::detail::launcher::table_test {
namespace {

using Lines = std::vector<std::string>;

TEST(Table, AlignsByTheWidestCellAndCountsLettersNotBytes) {
  Table table({{"layout", Align::left}, "ρ", {"why", Align::left}});
  table.row({"tsp=4", "12", "short"});
  table.row({"x", "1234", "a longer one"});
  EXPECT_EQ(table.lines(), (Lines{"layout     ρ  why", "tsp=4     12  short", "x       1234  a longer one"}));
}

TEST(Table, EachFormHasTheColumnsThatBearANameInIt) {
  Table table({{"name", Align::left, "name"}, {"KiB", Align::right, "bytes"}, {"", Align::right, "ranks"}, "of it"});
  table.row({"a, \"b\"", {"1.5", 1536}, nlohmann::ordered_json(4), "all"});
  table.row({"c", nlohmann::ordered_json(), {"", 2.5}, nlohmann::ordered_json(true)});
  EXPECT_EQ(table.lines(), (Lines{"name    KiB  of it", "a, \"b\"  1.5    all", "c         -   true"}));
  EXPECT_EQ(table.csv(), "name,bytes,ranks\n\"a, \"\"b\"\"\",1536,4\nc,,2.5\n");
}

TEST(Table, ColumnsThatDoNotFitStandInFurtherBlocksBesideTheFirst) {
  Table table({{"rank", Align::left}, "aaaa", "bbbb", "cccccccccccccccc"});
  table.row({"0", "1", "2", "3"});
  EXPECT_EQ(table.lines(16), (Lines{"rank  aaaa  bbbb", "0        1     2", "rank  cccccccccccccccc", "0                    3"}));
  EXPECT_EQ(table.lines(15).size(), 6U);
}

}  // namespace
}  // namespace tsprun::detail::launcher::table_test
