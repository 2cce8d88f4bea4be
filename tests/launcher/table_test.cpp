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

TEST(Table, BlocksRepeatTheColumnsThatTellRowsApart) {
  Table table({{"layout", Align::left}, {"S", Align::right, "seq", true}, "aaaa", "bbbbbbbb"});
  table.row({"tp=2", "8", "1", "2"});
  EXPECT_EQ(table.lines(18), (Lines{"layout  S  aaaa", "tp=2    8     1", "layout  S  bbbbbbbb", "tp=2    8         2"}));
}

TEST(Table, ProseThatIsWiderThanALineGoesOnBelowItself) {
  Table table({{"layout", Align::left}, "ms", {"why", Align::left}});
  table.row({"tp=2", "12", "there is room for no more than that"});
  table.row({"tp=4", "3", "fits"});
  EXPECT_EQ(table.lines(40),
            (Lines{"layout  ms  why", "tp=2    12  there is room for no more", "            than that", "tp=4     3  fits"}));
  // With little room beside the figures it gets a block of its own.
  EXPECT_EQ(table.lines(24), (Lines{"layout  ms", "tp=2    12", "tp=4     3", "layout  why", "tp=2    there is room",
                                    "        for no more than", "        that", "tp=4    fits"}));
}

TEST(Wrapped, BreaksAtBlanksAndLeavesLongWordsWhole) {
  EXPECT_EQ(wrapped("one two three", 7, "  "), (Lines{"one two", "  three"}));
  EXPECT_EQ(wrapped("  one two", 5, ""), (Lines{"  one", "two"}));
  EXPECT_EQ(wrapped("ééé éé", 6, ""), (Lines{"ééé éé"})) << "letters count, not bytes";
  EXPECT_EQ(wrapped("a incomprehensible b c", 5, ""), (Lines{"a", "incomprehensible", "b c"}));
  EXPECT_EQ(wrapped("", 5, "  "), Lines{""});
}

}  // namespace
}  // namespace tsprun::detail::launcher::table_test
