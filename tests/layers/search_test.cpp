// Machines, modelled step times and the search for layouts.
#include "layers/theory/search.h"
#include "layers/theory/flops.h"
#include "layers/theory/machine.h"
#include "layers/theory/peaks.h"
#include "tests/layers/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string>

namespace tsprun::detail::theory::search_test {
namespace {

using test::refusal;

const std::string kGood = R"({"name": "two fast cards", "memory_bytes": 1e9, "memory_bytes_per_s": 1e11,
  "flops_per_s": {"f32": 1e12, "bf16": 2e12}, "gemm_efficiency": 0.5, "attention_efficiency": 0.25, "gpus_per_node": 4,
  "within_node": {"fabric": "links", "bytes_per_s": 1e9, "latency_s": 0},
  "across_nodes": {"nics_per_node": 2, "bytes_per_s": 5e8, "latency_s": 0, "rail_crossing": 2}})";

std::string with(const std::string& what, const std::string& instead) {
  std::string text = kGood;
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), instead);
}

TEST(Machines, AreReadFieldByField) {
  const Machine machine = parse_machine(kGood, "m.json");
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
  EXPECT_EQ(machine_names(), (std::vector<std::string>{"h100", "mi300x"}));
  for (const std::string& name : machine_names()) EXPECT_EQ(find_machine(name).gpus_per_node, 8) << name;
  EXPECT_EQ(find_machine("mi300x").memory_bytes, 192.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(find_machine("mi300x").fabric, Fabric::links);
  EXPECT_EQ(find_machine("h100").fabric, Fabric::on_switch);
  EXPECT_EQ(refusal([] { find_machine("b200"); }),
            "--machine b200: neither a machine that comes with tsprun (h100, mi300x) nor a file");
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
            "m.json: field \"flops_per_s.fp32\" is not known; expected bf16, f32, f64; did you mean f32?");
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

TEST(Machines, HaveTablesOfEfficiency) {
  std::string text = with("\"gemm_efficiency\": 0.5", "\"gemm_efficiency\": [[1e6, 0.1], [1e8, 0.3], [1e12, 0.8]]");
  text.insert(1, "\"version\": 2, ");
  const Efficiency read = parse_machine(text, "m.json").gemm_efficiency;
  EXPECT_EQ(read.at(1), 0.1);
  EXPECT_EQ(read.at(1e6), 0.1);
  EXPECT_NEAR(read.at(1e7), 0.2, 1e-12);
  EXPECT_NEAR(read.at(1e8), 0.3, 1e-12);
  EXPECT_NEAR(read.at(1e11), 0.3 + 0.5 * 3 / 4, 1e-12);
  EXPECT_EQ(read.at(1e12), 0.8);
  EXPECT_EQ(read.at(1e20), 0.8);
  EXPECT_EQ(read.of_largest(), 0.8);
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
  EXPECT_EQ(refused("\"version\": 2", "\"version\": 5"), "m.json: field \"version\": expected an integer from 1 to 4, found 5");
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

Setting nano(std::size_t batch, std::size_t sequence) {
  Setting s;
  s.model = find_config("nano").config;
  s.batch = batch;
  s.sequence = sequence;
  return s;
}

Setting paper_7b(std::size_t batch, std::size_t sequence) {
  Setting s = nano(batch, sequence);
  s.model = find_config("paper-7b").config;
  s.bytes = ElementBytes::of(DType::bf16);
  return s;
}

Layout one_axis(AxisKind kind, int degree) { return {.axes = {{kind, degree}}}; }

/// A machine on which nothing takes time but what is asked for.
Machine ideal() {
  Machine machine = parse_machine(kGood, "m.json");
  machine.flops_f32 = 1e30;
  machine.memory_bytes_per_s = 1e30;
  machine.within_bytes_per_s = 1e30;
  machine.nic_bytes_per_s = 1e30;
  machine.gpus_per_node = machine.nics_per_node = 8;
  return machine;
}

TEST(StepTime, IsFlopsOverSpeedWhereOnlyComputeTakesTime) {
  Machine machine = ideal();
  machine.flops_f32 = 1e9;
  const Setting s = nano(2, 64);
  const StepFlops flops = step_flops(s, {}, {});
  const double core = flops.forward.attention_core + flops.backward.attention_core;
  const StepTime time = step_time(s, {}, machine, DType::f32);
  EXPECT_NEAR(time.seconds, (flops.total() - core) / 0.5e9 + core / 0.25e9, 1e-9 * time.seconds);
  EXPECT_EQ(time.binds, Resource::compute);
  EXPECT_NEAR(time.exposed, 0, 1e-12);
  // Eight ranks of equal work take an eighth.
  const StepTime eighth = step_time(s, one_axis(AxisKind::tsp, 8), machine, DType::f32);
  EXPECT_NEAR(eighth.seconds * 8, time.seconds, 1e-9 * time.seconds);
}

TEST(StepTime, UnderTpIsItsActivationsOverTheLinks) {
  Machine machine = ideal();
  machine.within_bytes_per_s = 1e6;
  const Setting s = nano(1, 64);
  const int T = 4;
  // Four all-reduces of [S, h] a layer and pass, each twice three quarters; embedding and head's log-sum-exps and dX; norm gains
  // aren't summed. Three links each.
  const double x = 64.0 * 64 * 4;
  const double bytes = 2 * 2 * 4 * x * 0.75 + 2 * x * 0.75 + 2 * x * 0.75 + 2 * 64.0 * 4 * 0.75;
  const StepTime time = step_time(s, one_axis(AxisKind::tp, T), machine, DType::f32);
  EXPECT_NEAR(time.seconds, bytes / 3e6, 1e-9);
  EXPECT_EQ(time.binds, Resource::within_node);
  EXPECT_NEAR(time.exposed, time.seconds, 1e-9);
  // A switch gives a port's speed however many take part.
  machine.fabric = Fabric::on_switch;
  EXPECT_NEAR(step_time(s, one_axis(AxisKind::tp, T), machine, DType::f32).seconds, bytes / 1e6, 1e-9);
}

TEST(StepTime, AcrossNodesIsBoundByNicsAndRailsCost) {
  Machine machine = ideal();
  machine.gpus_per_node = machine.nics_per_node = 2;
  machine.nic_bytes_per_s = 1e6;
  machine.rail_crossing = 1;
  const Setting s = nano(1, 64);
  const StepTime one_rail = step_time(s, one_axis(AxisKind::tsp, 8), machine, DType::f32);
  EXPECT_EQ(one_rail.binds, Resource::across_nodes);
  // The ring of the MLP changes rails at a node's end; collectives stay on theirs.
  machine.rail_crossing = 3;
  const StepTime crossing = step_time(s, one_axis(AxisKind::tsp, 8), machine, DType::f32);
  EXPECT_GT(crossing.seconds, 1.3 * one_rail.seconds);
  EXPECT_LT(crossing.seconds, 3 * one_rail.seconds);
  // With one GPU a node there is one rail.
  machine.gpus_per_node = machine.nics_per_node = 1;
  EXPECT_EQ(step_time(s, one_axis(AxisKind::tsp, 8), machine, DType::f32).seconds, [&] {
    machine.rail_crossing = 1;
    return step_time(s, one_axis(AxisKind::tsp, 8), machine, DType::f32).seconds;
  }());
}

TEST(StepTime, OfAVocabularyThatIsCutOverBothAxesGoesOverTheLinksOfBoth) {
  Machine machine = ideal();
  machine.gpus_per_node = machine.nics_per_node = 2;
  machine.nic_bytes_per_s = 1e6;
  // The ranks of tsp share a node, those of tp don't; all four hold rows of the vocabulary.
  Layout layout{.axes = {{AxisKind::tp, 2}, {AxisKind::tsp, 2}}};
  const auto nics = [&](std::size_t vocabulary) {
    Setting s = nano(1, 64);
    s.model.vocabulary = vocabulary;
    return step_time(s, layout, machine, DType::f32).busy[static_cast<std::size_t>(Resource::across_nodes)];
  };
  const double plain = nics(256);
  EXPECT_EQ(nics(128), plain);  // tp's activations alone: B·S·h bytes, and log-sum-exps
  layout = layout.with(TensorExchange::sequence);
  EXPECT_GT(nics(32), nics(16));  // fewer rows than tokens: the head's shards go round all four
}

TEST(StepTime, HidesWeightsBehindComputeAndExposesActivations) {
  Machine machine = ideal();
  machine.flops_f32 = 1e6;
  machine.within_bytes_per_s = 1e9;
  const Setting s = nano(1, 256);
  EXPECT_LT(step_time(s, one_axis(AxisKind::tsp, 8), machine, DType::f32).exposed,
            step_time(s, one_axis(AxisKind::tp, 8), machine, DType::f32).exposed);
}

TEST(StepTime, OfATypeWithoutFlopsIsRefused) {
  EXPECT_EQ(refusal([] { step_time(nano(1, 64), {}, parse_machine(kGood, "m.json"), DType::f64); }),
            "--dtype f64: two fast cards doesn't state flops_per_s for it");
}

TEST(Search, GoesOverEveryLayoutOfTheGrammarOnce) {
  for (const int ranks : {1, 2, 8, 12}) {
    std::set<std::string> labels;
    for (const Layout& each : all_layouts(ranks)) {
      EXPECT_EQ(each.ranks(), ranks) << each.label();
      EXPECT_TRUE(labels.insert(each.label()).second) << each.label();
    }
    if (ranks != 8) continue;
    for (const char* label :
         {"dp=8", "tp=8", "tp=8 (sequence)", "sp=8", "sp=8 (ring)", "sp=8 (ulysses)", "tsp=8", "zero3=8", "tp=2,sp=4",
          "sp=4,tp=2", "tp=4,tsp=2", "tsp=2,tp=4", "dp=2,tp=2,sp=2 (sequence, ring)", "dp=4,zero3=2"}) {
      EXPECT_TRUE(labels.contains(label)) << label;
    }
  }
}

std::multiset<std::string> labels_of(const std::vector<Layout>& layouts) {
  std::multiset<std::string> labels;
  for (const Layout& layout : layouts) labels.insert(layout.label());
  return labels;
}

/// Returns the labels of all candidates, and of those that differ from them in nothing but the order of axes.
std::multiset<std::string> labels_of(const std::vector<Candidate>& candidates) {
  std::multiset<std::string> labels;
  for (const Candidate& each : candidates) {
    labels.insert(each.layout.label());
    for (const Layout& layout : each.alike) labels.insert(layout.label());
  }
  return labels;
}

const std::vector<Recompute> kAllModes = {Recompute::none, Recompute::selective, Recompute::full};

// Where all links are equally fast the order of axes makes no difference in any figure: such layouts are one.
TEST(Search, EveryLayoutStandsThereOnce) {
  const std::vector<Candidate> found =
      search(nano(4, 64), 4, ideal(), {.memory_bytes = 1ULL << 30, .dtype = DType::f32, .modes = kAllModes});
  EXPECT_EQ(labels_of(found), labels_of(all_layouts(4)));
  const auto twins = [&](const std::string& label) {
    const auto at = std::find_if(found.begin(), found.end(), [&](const Candidate& each) { return each.layout.label() == label; });
    return at == found.end() ? std::multiset<std::string>{} : labels_of(at->alike);
  };
  EXPECT_EQ(twins("tp=2,sp=2"), (std::multiset<std::string>{"sp=2,tp=2"}));
  EXPECT_EQ(twins("tsp=4"), std::multiset<std::string>{});
}

// Against single modes, each judged alone.
TEST(Search, ChoosesTheFastestRecomputationThatFits) {
  Machine machine = parse_machine(kGood, "m.json");
  machine.flops_f32 = 1e9;  // computing takes longer than anything else
  const Setting setting = nano(4, 256);
  const Layout layout = one_axis(AxisKind::tsp, 4);
  std::vector<Candidate> alone;
  for (const Recompute mode : kAllModes) {
    alone.push_back(judge(setting, layout, machine, {.memory_bytes = 1ULL << 40, .dtype = DType::f32, .modes = {mode}}));
    EXPECT_EQ(alone.back().recompute, mode);
  }
  ASSERT_GT(alone[0].memory.total, alone[1].memory.total);
  ASSERT_GT(alone[1].memory.total, alone[2].memory.total);
  ASSERT_LT(alone[0].time.seconds, alone[2].time.seconds);
  for (const Candidate& limit : alone) {
    const auto judged =
        judge(setting, layout, machine, {.memory_bytes = limit.memory.total, .dtype = DType::f32, .modes = kAllModes});
    ASSERT_TRUE(judged.fits);
    double fastest = 1e300;
    for (const Candidate& each : alone) {
      if (each.memory.total <= limit.memory.total) fastest = std::min(fastest, each.time.seconds);
    }
    EXPECT_EQ(judged.time.seconds, fastest);
  }
  // Where none fits, that which lacks least.
  const auto judged =
      judge(setting, layout, machine, {.memory_bytes = alone[2].memory.total - 1, .dtype = DType::f32, .modes = kAllModes});
  EXPECT_FALSE(judged.fits);
  EXPECT_EQ(judged.recompute, Recompute::full);
  // One that is asked for is kept.
  Setting full = setting;
  full.recompute = Recompute::full;
  EXPECT_EQ(judge(full, layout, machine, {.memory_bytes = 1ULL << 40, .dtype = DType::f32}).recompute, Recompute::full);
}

// On one GPU that does nothing but compute, at half its peak, half of the peak is used; what is computed again is no use.
TEST(Search, UtilizationCountsWhatTheModelNeeds) {
  Machine machine = ideal();
  machine.flops_f32 = 1e9;
  machine.gemm_efficiency = machine.attention_efficiency = 0.5;
  const auto used = [&](Recompute mode) {
    return judge(nano(2, 64), {}, machine, {.memory_bytes = 1ULL << 40, .dtype = DType::f32, .modes = {mode}}).utilization;
  };
  EXPECT_NEAR(used(Recompute::none), 0.5, 1e-6);
  EXPECT_LT(used(Recompute::full), 0.45);
  EXPECT_GT(used(Recompute::full), 0.3);
}

// Every remedy is a search that finds something; a little less of it finds nothing for that layout.
TEST(Search, RemediesHelp) {
  const Machine machine = parse_machine(kGood, "m.json");
  const Setting setting = nano(8, 256);
  SearchOptions options{.memory_bytes = 3 << 20, .dtype = DType::f32, .modes = kAllModes};
  const std::vector<Candidate> found = search(setting, 2, machine, options);
  ASSERT_FALSE(found.front().fits);
  const std::optional<Remedies> help = remedies(setting, found, machine, options);
  ASSERT_TRUE(help);
  for (const Candidate& each : found)
    EXPECT_TRUE(!each.possible || each.memory.total >= help->memory_bytes) << each.layout.label();
  const auto any_fits = [&](const Setting& of, int gpus, std::uint64_t memory) {
    SearchOptions with = options;
    with.memory_bytes = memory;
    return search(of, gpus, machine, with).front().fits;
  };
  EXPECT_TRUE(any_fits(setting, 2, help->memory_bytes));
  EXPECT_FALSE(any_fits(setting, 2, help->memory_bytes - 1));
  ASSERT_TRUE(help->more_gpus);
  EXPECT_TRUE(any_fits(setting, help->more_gpus->layout.ranks(), options.memory_bytes));
  ASSERT_NE(help->batch, 0U);
  Setting smaller = setting;
  smaller.batch = help->batch;
  EXPECT_TRUE(any_fits(smaller, 2, options.memory_bytes));
  ASSERT_NE(help->sequence, 0U);
  Setting shorter = setting;
  shorter.sequence = help->sequence;
  EXPECT_TRUE(any_fits(shorter, 2, options.memory_bytes));
  // Where something fits, nothing must help.
  options.memory_bytes = 1ULL << 40;
  EXPECT_FALSE(remedies(setting, search(setting, 2, machine, options), machine, options));
}

// More than a phantom's address space.
TEST(Search, ALayoutThatNeedsTerabytesIsLeftOutAndSaysSo) {
  const Setting s = paper_7b(64, 131072);
  SearchOptions options{.memory_bytes = 192ULL << 30, .dtype = DType::bf16, .modes = {Recompute::none}};
  const Candidate all = judge(s, {}, find_machine("mi300x"), options);
  EXPECT_FALSE(all.possible || all.fits);
  EXPECT_NE(all.why.find("more memory than can be counted"), std::string::npos) << all.why;
  EXPECT_FALSE(fits({s, {}}, options.memory_bytes));
#ifndef TSP_SANITIZE_THREAD  // where a phantom has too little space for this, too
  options.modes = kAllModes;
  const Candidate least = judge(s, {}, find_machine("mi300x"), options);
  EXPECT_TRUE(least.possible);
  EXPECT_EQ(least.recompute, Recompute::full);
#endif
}

TEST(Search, RanksWhatFitsAndSaysWhyTheRestDoesNot) {
  const Setting s = paper_7b(2, 65536);
  const std::uint64_t budget = 128ULL << 30;
  const std::vector<Candidate> found = search(s, 16, find_machine("mi300x"), {.memory_bytes = budget, .dtype = DType::bf16});
  EXPECT_EQ(labels_of(found), labels_of(all_layouts(16)));
  double last = 0;
  bool fitting = true;
  std::set<std::string> fit;
  for (const Candidate& each : found) {
    EXPECT_FALSE(each.why.empty());
    EXPECT_TRUE(fitting || !each.fits) << "those that fit stand first";
    fitting = each.fits;
    if (!each.fits) {
      EXPECT_TRUE(each.memory.total > budget || !each.possible) << each.layout.label();
      continue;
    }
    EXPECT_GE(each.time.seconds, last);
    last = each.time.seconds;
    EXPECT_LE(each.memory.total, budget);
    fit.insert(each.layout.label());
  }
  EXPECT_TRUE(fit.contains("tsp=16"));
  EXPECT_FALSE(fit.contains("sp=16"));  // 155 GB of model state a rank beside everything else
  EXPECT_FALSE(fit.contains("dp=16"));  // doesn't divide the batch
  const auto sixteen =
      std::find_if(found.begin(), found.end(), [](const Candidate& each) { return each.layout.label() == "dp=16"; });
  EXPECT_EQ(sixteen->why, "dp=16 doesn't divide --batch 2; try --batch 16");
}

}  // namespace
}  // namespace tsprun::detail::theory::search_test
