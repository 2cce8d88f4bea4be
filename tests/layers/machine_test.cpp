// Machine files: what they say, what of them is refused and how, and that the documentation agrees.
#include "layers/theory/machine.h"
#include "tests/layers/machine_text.h"
#include "tests/layers/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

namespace tsprun::detail::theory::machine_test {
namespace {

using test::refusal;
using test_machine::with;

TEST(Machines, AreReadFieldByField) {
  const Machine machine = parse_machine(test_machine::kText, "m.json");
  EXPECT_EQ(machine.name, "two fast cards");
  EXPECT_EQ(machine.memory_bytes, 1e9);
  EXPECT_EQ(machine.flops(DType::f32), 1e12);
  EXPECT_EQ(machine.flops(DType::bf16), 2e12);
  EXPECT_FALSE(machine.flops(DType::f64).has_value());
  EXPECT_EQ(machine.fabric, Fabric::links);
  EXPECT_EQ(machine.rail_crossing, 2);
  EXPECT_EQ(machine.across_bytes_per_s(), 2.5e8);  // two NICs for four GPUs
}

TEST(Machines, ThatComeWithTheProgramAreFoundByName) {
  EXPECT_EQ(machine_names(),
            (std::vector<std::string>{"a100-80", "b200", "h100", "h100-500w", "h200", "h200-4", "mi300x", "mi325x"}));
  for (const std::string& name : machine_names()) EXPECT_EQ(find_machine(name).gpus_per_node, name == "h200-4" ? 4 : 8) << name;
  EXPECT_EQ(find_machine("mi300x").memory_bytes, 192.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(find_machine("mi300x").fabric, Fabric::links);
  EXPECT_EQ(find_machine("h100").fabric, Fabric::on_switch);
  EXPECT_EQ(refusal([] { find_machine("h1000"); }),
            "--machine h1000: neither a machine that comes with tsprun (a100-80, b200, h100, h100-500w, h200, h200-4, mi300x, "
            "mi325x) nor a file");
}

/// Returns the document of a machine that comes with the program.
nlohmann::json document_of(const std::string& name) {
  std::ifstream file(std::filesystem::path(TSP_TOOLS_DIR) / "../layers/theory/machines" / (name + ".json"));
  return nlohmann::json::parse(file);
}

TEST(Machines, ThatComeWithTheProgramSayWhereEachNumberIsFrom) {
  for (const std::string& name : machine_names()) {
    const nlohmann::json document = document_of(name);
    const auto has_source = [&](const std::string& field) {
      EXPECT_TRUE(document["sources"].contains(field)) << name << ": " << field;
    };
    for (const auto& [key, value] : document.items()) {
      if (key == "version" || key == "name" || key == "sources") continue;
      if (key != "within_node" && key != "across_nodes") {
        has_source(key);
        continue;
      }
      for (const auto& [inner, number] : value.items()) {
        if (number.is_number()) has_source(fmt::format("{}.{}", key, inner));
      }
    }
  }
}

/// Limits of hardware, from how much of everything it has.
struct Hardware {
  std::string name;
  double units;            ///< multiprocessors or compute units
  double flops_per_clock;  ///< of a unit's matrix cores: dense bf16 products
  double clock;            ///< Hz, at which the data sheet's peak is reached
  double memory_pins;
  double pin_bits_per_s;
  double within_bytes_per_s;  ///< raw, of a port or link in one direction
  double nic_bytes_per_s;     ///< raw
};

TEST(Machines, ThatComeWithTheProgramAreWithinWhatTheHardwareCanDo) {
  const std::vector<Hardware> all = {{"a100-80", 108, 2048, 1.41e9, 5120, 3.186e9, 12 * 25e9, 25e9},
                                     {"b200", 148, 8192, 1.8353e9, 8192, 7.5e9, 18 * 50e9, 50e9},
                                     {"h100", 132, 4096, 1.83e9, 5120, 5.24e9, 18 * 25e9, 50e9},
                                     {"h100-500w", 132, 4096, 1.83e9, 6144, 3.125e9, 18 * 25e9, 50e9},
                                     {"h200", 132, 4096, 1.83e9, 6144, 6.25e9, 18 * 25e9, 50e9},
                                     {"h200-4", 132, 4096, 1.83e9, 6144, 6.25e9, 6 * 25e9, 50e9},
                                     {"mi300x", 304, 2048, 2.1e9, 8192, 5.2e9, 64e9, 50e9},
                                     {"mi325x", 304, 2048, 2.1e9, 8192, 6e9, 64e9, 50e9}};
  ASSERT_EQ(all.size(), machine_names().size());
  for (const Hardware& hardware : all) {
    const Machine machine = find_machine(hardware.name);
    const double flops = hardware.units * hardware.flops_per_clock * hardware.clock;
    EXPECT_NEAR(machine.flops(DType::bf16).value_or(0), flops, 0.015 * flops) << hardware.name;
    const double memory = hardware.memory_pins * hardware.pin_bits_per_s / 8;
    EXPECT_NEAR(machine.memory_bytes_per_s, memory, 0.025 * memory) << hardware.name;
    EXPECT_LE(machine.within_bytes_per_s, hardware.within_bytes_per_s) << hardware.name;
    EXPECT_LE(machine.nic_bytes_per_s, hardware.nic_bytes_per_s) << hardware.name;
    EXPECT_LT(machine.memory_efficiency, 1) << hardware.name;
    std::vector<AttentionEfficiency> kernels{machine.attention_efficiency};
    for (const auto& [name, kernel] : machine.attention_kernels) kernels.push_back(kernel);
    for (const double size : {1e2, 1e3, 1e4, 1e5, 1e7, 1e9, 1e11, 1e13}) {
      for (const double row : {64.0, 128.0, 300.0, 1000.0, 1e5}) {
        EXPECT_LT(machine.gemm_efficiency.at({.flops = size, .row = row, .column = size}), 0.9) << hardware.name;
        for (const AttentionEfficiency& kernel : kernels) {
          EXPECT_LT(kernel.forward.at({.flops = size, .row = row, .column = size}), 0.75) << hardware.name;
          // More is computed backward, and less of it products.
          EXPECT_LT(kernel.backward.at({.flops = size, .row = row, .column = size}), 0.65) << hardware.name;
        }
      }
    }
  }
}

TEST(Machines, OfFilesAreRefusedByFileAndField) {
  const test::TemporaryFolder folder;
  const std::string file = folder.path() / "m.json";
  std::ofstream(file) << with("1e11", "-3");
  EXPECT_EQ(refusal([&] { find_machine(file); }),
            file + ": field \"memory_bytes_per_s\": expected a number from 1 to 1e+30, found -3");
}

TEST(Machines, AreRefusedByField) {
  const auto refused = [](const std::string& text) { return refusal([&] { parse_machine(text, "m.json"); }); };
  EXPECT_EQ(refused(with("\"gpus_per_node\": 4", "\"gpus_per_node\": 0")),
            "m.json: field \"gpus_per_node\": expected an integer from 1 to 1024, found 0");
  EXPECT_EQ(refused(with("\"gpus_per_node\": 4,", "")),
            "m.json: field \"gpus_per_node\" is missing; expected an integer from 1 to 1024");
  EXPECT_EQ(refused(with("\"links\"", "\"torus\"")),
            "m.json: field \"within_node.fabric\": expected \"links\" or \"switch\", found \"torus\"");
  EXPECT_EQ(refused(with("\"rail_crossing\": 2", "\"rail_crossing\": 0.5")),
            "m.json: field \"across_nodes.rail_crossing\": expected a number from 1 to 1000, found 0.5");
  EXPECT_EQ(refused(with("\"gemm_efficiency\": 0.5", "\"gemm_efficiency\": 1.5")),
            "m.json: field \"gemm_efficiency\": expected a number from 0.001 to 1, found 1.5");
  EXPECT_EQ(refused(with("\"f32\"", "\"fp32\"")),
            "m.json: field \"flops_per_s.fp32\" is not known; expected bf16, f32, f64 (did you mean f32?)");
  EXPECT_NE(refused(with("\"name\"", "\"color\"")).find("field \"name\" is missing"), std::string::npos);
  EXPECT_NE(refused(with("{\"f32\": 1e12, \"bf16\": 2e12}", "7")).find("field \"flops_per_s\": expected an object, found 7"),
            std::string::npos);
  EXPECT_NE(refused(with("1e11", "1e999")).find("memory_bytes_per_s"), std::string::npos);
  // More bytes than can be counted.
  EXPECT_EQ(refused(with("\"memory_bytes\": 1e9", "\"memory_bytes\": 1e20")),
            "m.json: field \"memory_bytes\": expected a number from 1 to 1e+18, found 1e+20");
  EXPECT_NE(refused("[]").find("expected a JSON object"), std::string::npos);
  EXPECT_NE(refused("{").find("m.json"), std::string::npos);
}

const std::string kVersion2 =
    "\"version\": 2, \"launch_s\": 4e-6, \"memory_efficiency\": 0.5, \"copies_slow_kernels\": 1.25, "
    "\"sources\": {\"launch_s\": \"measured\", \"within_node.latency_s\": \"assumption\"}, ";

TEST(Machines, OfVersion2SayMore) {
  const Machine machine = parse_machine(with("\"name\"", kVersion2 + "\"name\""), "m.json");
  EXPECT_EQ(machine.launch_seconds, 4e-6);
  EXPECT_EQ(machine.memory_rate(), 5e10);
  EXPECT_EQ(machine.copies_slow_kernels, 1.25);
  const Machine usual = parse_machine(with("\"name\"", "\"version\": 2, \"name\""), "m.json");
  EXPECT_EQ(usual.launch_seconds, 0);
  EXPECT_EQ(usual.memory_rate(), 1e11);
  EXPECT_EQ(usual.copies_slow_kernels, 1);
}

TEST(Machines, OfVersion5MaySayInWhatPiecesRanksWork) {
  const auto pieces = [](const std::string& fields) {
    return parse_machine(with("\"name\"", fields + "\"name\""), "m.json").pieces;
  };
  EXPECT_EQ(pieces("\"version\": 5, \"logit_tile_bytes\": 3e6, \"kv_bucket_bytes\": 5, "),
            (PieceSizes{.logits = 3000000, .kv_bucket = 5}));
  // Of 1e9 bytes a 64th is a tile, and a 256th would be less than a bucket of real ranks.
  EXPECT_EQ(pieces(""), (PieceSizes{.logits = 15625000, .kv_bucket = PieceSizes{}.kv_bucket}));
  EXPECT_EQ(find_machine("h100").pieces, (PieceSizes{.logits = std::size_t{1} << 30, .kv_bucket = std::size_t{1} << 28}));
  EXPECT_NE(refusal([&] { pieces("\"version\": 4, \"kv_bucket_bytes\": 5, "); }).find("kv_bucket_bytes\" is not known"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { pieces("\"version\": 5, \"logit_tile_bytes\": 0, "); }),
            "m.json: field \"logit_tile_bytes\": expected a number from 1 to 1e+18, found 0");
}

const std::string kSpine =
    R"("spine": {"nodes_per_leaf": 32, "leaf_per_rail": true, "leaf_bytes_per_s": 1e12, "bytes_per_s": 3e13, "latency_s": 1e-6})";

/// Returns a machine of version 4 with leaf and spine switches, of which a text was replaced.
std::string with_spine(const std::string& what = "", const std::string& instead = "") {
  std::string text = with("\"rail_crossing\": 2", "\"rail_crossing\": 2, " + kSpine);
  text.insert(1, "\"version\": 4, ");
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), instead);
}

TEST(Machines, OfVersion4MayHaveLeafAndSpineSwitches) {
  const Machine machine = parse_machine(with_spine(), "m.json");
  ASSERT_TRUE(machine.spine);
  EXPECT_EQ(machine.spine->nodes_per_leaf, 32);
  EXPECT_TRUE(machine.spine->leaf_per_rail);
  EXPECT_EQ(machine.spine->leaf_bytes_per_s, 1e12);
  EXPECT_EQ(machine.spine->bytes_per_s, 3e13);
  EXPECT_EQ(machine.spine->latency, 1e-6);
  EXPECT_EQ(parse_machine(with_spine("\"bytes_per_s\": 3e13, ", ""), "m.json").spine->bytes_per_s,
            std::numeric_limits<double>::infinity());
  EXPECT_FALSE(parse_machine(with_spine(", " + kSpine, ""), "m.json").spine);
  const auto refused = [](const std::string& what, const std::string& instead) {
    return refusal([&] { parse_machine(with_spine(what, instead), "m.json"); });
  };
  EXPECT_EQ(refused("\"nodes_per_leaf\": 32", "\"nodes_per_leaf\": 0"),
            "m.json: field \"across_nodes.spine.nodes_per_leaf\": expected an integer from 1 to 65536, found 0");
  EXPECT_EQ(refused("true", "1"), "m.json: field \"across_nodes.spine.leaf_per_rail\": expected true or false, found 1");
  EXPECT_EQ(refused("\"leaf_bytes_per_s\": 1e12", "\"leaf_bytes_per_s\": -1e12"),
            "m.json: field \"across_nodes.spine.leaf_bytes_per_s\": expected a number from 1 to 1e+30, found -1000000000000.0");
  EXPECT_EQ(refused("3e13", "0"), "m.json: field \"across_nodes.spine.bytes_per_s\": expected a number from 1 to 1e+30, found 0");
  EXPECT_EQ(refused("\"latency_s\": 1e-6}", "\"latency_s\": 2}"),
            "m.json: field \"across_nodes.spine.latency_s\": expected a number from 0 to 1, found 2");
  EXPECT_NE(refused("\"leaf_per_rail\": true, ", "").find("spine.leaf_per_rail\""), std::string::npos);
  EXPECT_NE(refused("\"version\": 4", "\"version\": 3").find("spine\" is not known"), std::string::npos);
}

TEST(Machines, OfVersion2AreRefusedByField) {
  const auto refused = [](const std::string& what, const std::string& instead) {
    std::string text = with("\"name\"", kVersion2 + "\"name\"");
    const std::size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    text.replace(at, what.size(), instead);
    return refusal([&] { parse_machine(text, "m.json"); });
  };
  EXPECT_EQ(refused("\"version\": 2", "\"version\": 7"), "m.json: field \"version\": expected an integer from 1 to 6, found 7");
  EXPECT_NE(refused("\"version\": 2, ", "").find("field \"copies_slow_kernels\" is not known"), std::string::npos);
  EXPECT_EQ(refused("1.25", "0.5"), "m.json: field \"copies_slow_kernels\": expected a number from 1 to 100, found 0.5");
  EXPECT_EQ(refused("4e-6", "-1"), "m.json: field \"launch_s\": expected a number from 0 to 1, found -1");
  EXPECT_NE(refused("{\"launch_s\"", "{\"lunch_s\"").find("\"lunch_s\" isn't one"), std::string::npos);
  for (const char* none : {"launch_s.0", "gemm_efficiency.0", "gemm_efficiency.99999999999999999999", "within_node.", ".", ""}) {
    EXPECT_NE(refused("{\"launch_s\"", "{\"" + std::string(none) + "\"").find("\"" + std::string(none) + "\" isn't one"),
              std::string::npos)
        << none;
  }
  EXPECT_NE(refused("\"measured\"", "7").find("\"launch_s\" isn't one"), std::string::npos);
}

TEST(Machines, OfVersion2AreRefusedByTheEntryOfATable) {
  for (const char* name : {"gemm_efficiency", "attention_efficiency"}) {
    const std::string field(name);
    const auto refused = [&](const std::string& table) {
      std::string text = with("\"name\"", kVersion2 + "\"name\"");
      const std::size_t at = text.find("\"" + field + "\": ") + field.size() + 4;
      text.replace(at, text.find(',', at) - at, table);
      return refusal([&] { parse_machine(text, "m.json"); });
    };
    const std::string table =
        "expected a number from 0.001 to 1, or 1 to 1000 pairs [FLOPs, number from 0.001 to 1] of increasing FLOPs from 1, "
        "found ";
    EXPECT_EQ(refused("[]"), "m.json: field \"" + field + "\": " + table + "an array");
    EXPECT_NE(refused("\"fast\"").find("field \"" + field + "\": expected a number from 0.001 to 1"), std::string::npos);
    std::string long_table = "[[1, 0.5]";
    for (int flops = 2; flops <= 1001; ++flops) long_table += fmt::format(", [{}, 0.5]", flops);
    EXPECT_NE(refused(long_table + "]").find("field \"" + field + "\": " + table), std::string::npos);
    struct Case {
      std::string text;
      std::string entry;
      std::string expected;
    };
    const std::string pair = "a pair [FLOPs from 1 to 1e+30, number from 0.001 to 1], found ";
    const Case cases[] = {
        {"[[1e6]]", "[0]", pair + "[1000000.0]"},
        {"[[1e6, 0.1], 3]", "[1]", pair + "3"},
        {"[[1, 0.1], [2, 0.2], [1e9, 2]]", "[2]", pair + "[1000000000.0,2]"},
        {"[[0, 0.5]]", "[0]", pair + "[0,0.5]"},
        {"[[1, 0.1], [\"2\", 0.2]]", "[1]", pair + "[\"2\",0.2]"},
        {"[[1, 0.1, 0.2]]", "[0]", pair + "[1,0.1,0.2]"},
        {"[[1e6, 0.1], [2e6, 0.2], [2e6, 0.3]]", "[2]", "more FLOPs than in the entry before, 2000000, found [2000000.0,0.3]"}};
    for (const Case& each : cases)
      EXPECT_EQ(refused(each.text), "m.json: field \"" + field + each.entry + "\": expected " + each.expected);
  }
}

/// The page of the documentation, from the repository's root.
std::string machine_page() {
  std::ifstream file(std::filesystem::path(TSP_TOOLS_DIR) / "../docs/reference/machine-file.md");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Machines, AreAsTheDocumentationSays) {
  const std::string page = machine_page();
  const std::string opening = "```json\n";
  const std::size_t begin = page.find(opening);
  ASSERT_NE(begin, std::string::npos);
  const std::string example = page.substr(begin + opening.size(), page.find("```", begin + 1) - begin - opening.size());
  EXPECT_EQ(parse_machine(example, "machine-file.md").name, find_machine("h100").name);
  // Each field has a row, with the bounds that are refused beyond.
  const nlohmann::json fields = nlohmann::json::parse(example);
  const auto has_row = [&](const std::string& start) { return page.find("\n| " + start + " |") != std::string::npos; };
  for (const auto& [key, value] : fields.items()) {
    if (key != "within_node" && key != "across_nodes") {
      EXPECT_TRUE(has_row("`" + key + "`")) << key;
      continue;
    }
    for (const auto& [inner, unused] : value.items()) EXPECT_TRUE(has_row(fmt::format("`{}` `{}`", key, inner))) << inner;
  }
}

}  // namespace
}  // namespace tsprun::detail::theory::machine_test
