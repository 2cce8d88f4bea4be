// JSON from files that mean harm: it takes time in proportion to its length, and its texts can't command a terminal.
#include "layers/io/json_text.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/model_folder.h"
#include "tests/layers/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>

namespace tsprun::detail::json_text_test {
namespace {

/// Returns this process' processor time in seconds, which other processes' load doesn't change.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Returns a text that repeats a piece, with commas between.
std::string repeated(std::size_t times, const std::string& piece) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += (i == 0 ? "" : ",") + piece;
  return text;
}

TEST(JsonText, TakesTimeInProportionToItsLength) {
  // Looking through all siblings at the end of each object would take some 10¹⁰ steps.
  constexpr std::size_t kMany = 200'000;
  const double before = processor_seconds();
  const nlohmann::json list = parse_json("[" + repeated(kMany, "{}") + "]", "list");
  std::string fields;
  for (std::size_t i = 0; i < kMany / 4; ++i) fields += fmt::format("{}\"t{}\":{{\"a\":[{{}},{{}}]}}", i == 0 ? "" : ",", i);
  const nlohmann::json object = parse_json("{" + fields + "}", "object");
  EXPECT_LT(processor_seconds() - before, 4);
  EXPECT_EQ(list.size(), kMany);
  EXPECT_EQ(object.size(), kMany / 4);
  EXPECT_EQ(object["t77"]["a"].size(), 2U);
}

TEST(JsonText, GivesTheValuesThatTheLibraryGives) {
  const std::string text =
      R"( {"a":[1,-2,3.5e2,true,false,null,"x\u00e9\n",[],{}],"b":{"c":{"d":[[1],[{"e":18446744073709551615}]]},"":0},"f":[]} )";
  EXPECT_EQ(parse_json(text, "text"), nlohmann::json::parse(text));
  for (const char* scalar : {"1", "-0.5", "\"x\"", "null", "true", "[]", "{}"})
    EXPECT_EQ(parse_json(scalar, "scalar"), nlohmann::json::parse(scalar)) << scalar;
}

TEST(JsonText, RefusesManyTensorsWithoutASearchThroughAllForEach) {
  constexpr std::size_t kMany = 50'000;
  std::string header;
  for (std::size_t i = 0; i < kMany; ++i)
    header += fmt::format("{}\"t{}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", i == 0 ? "{" : ",", i);
  header += "}";
  const double before = processor_seconds();
  EXPECT_EQ(safetensors::parse_header(header, header.size() + 8, "header").tensors.size(), kMany);
  EXPECT_LT(processor_seconds() - before, 4);
}

TEST(PrintableText, LosesWhatATerminalCouldObey) {
  EXPECT_EQ(printable("layers.0 é 文 𝄞"), "layers.0 é 文 𝄞");
  EXPECT_EQ(printable("a\x1b[2Jb\x7f\n"), "a?[2Jb??");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a?b");
  EXPECT_EQ(printable("\u009b2J \u0080 \u00a0"), "??2J ?? \u00a0");           // control characters of two bytes; a space of two
  EXPECT_EQ(printable("\u202efdp\u2066x"), "???fdp???x");                     // would reverse what follows
  EXPECT_EQ(printable("\x9b\x31m \xc3 \xe6\x96"), "?1m ? ??");                // no UTF-8: on other terminals a command
  EXPECT_EQ(printable("\xc0\x9b\xed\xa0\x80\xf4\x90\x80\x80"), "?????????");  // overlong, surrogate, above U+10FFFF
  EXPECT_EQ(shown(std::string(119, 'a') + "é"), std::string(119, 'a') + "…");
}

/// Returns the refusal of a folder whose index names this shard, as JSON has it.
std::string refusal_of_shard(const std::string& name) {
  const test::TemporaryFolder folder;
  folder.write("one.safetensors", "x");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"lm_head.weight":")" + name + "\"}}");
  try {
    const ModelFolder opened(folder.path());
    ADD_FAILURE() << "accepted " << name;
    return "";
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

TEST(ModelFolder, RefuseShardsWhoseNamesCouldCommandATerminalOrAreCutByNul) {
  for (const char* name : {"one.safetensors\\u0000", "\\u001b]0;title\\u0007.safetensors", "\\u009b2J.safetensors", "a\\nb"}) {
    const std::string refusal = refusal_of_shard(name);
    EXPECT_NE(refusal.find("without control characters"), std::string::npos) << refusal;
    EXPECT_EQ(printable(refusal), refusal);
  }
}

}  // namespace
}  // namespace tsprun::detail::json_text_test
