// Modelled step times and the search for layouts.
#include "layers/theory/search.h"
#include "layers/theory/flops.h"
#include "layers/theory/machine.h"
#include "layers/theory/peaks.h"
#include "tests/layers/machine_text.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace tsprun::detail::theory::search_test {
namespace {

using test::refusal;

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
  Machine machine = parse_machine(test_machine::kText, "m.json");
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
  // Eight ranks of equal work take an eighth, and compute their logits once more.
  const double logits = forward_flops(s, {}, {}).head;
  const StepTime eighth = step_time(s, one_axis(AxisKind::tsp, 8), machine, DType::f32);
  EXPECT_NEAR(eighth.seconds * 8, time.seconds + logits / 0.5e9, 1e-9 * time.seconds);
}

TEST(StepTime, ReadsAllWeightsOfAReplicaHoweverManyRanksShareThem) {
  Machine machine = ideal();
  machine.memory_bytes_per_s = 1e6;
  const Setting s = nano(16, 64);
  const double plain = step_time(s, Layout::parse("dp=8"), machine, DType::f32).seconds;
  const auto shared = [&](const char* layout) {
    return step_time(s, Layout::parse(layout).with(DataSharing::zero3), machine, DType::f32).seconds;
  };
  // Optimizer states are cut; weights and gradients are read and written whole in each pass.
  const double states = (plain - shared("dp=8")) * 8 / 7;
  EXPECT_NEAR(shared("dp=4,shard=2"), plain - states / 2, 0.01 * plain);
  EXPECT_NEAR(shared("dp=2,shard=4"), plain - states * 3 / 4, 0.01 * plain);
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

/// Of S·(D − 1) keys and values that ranks take from each other, 2·(D − 1)·(W − 1) are left.
TEST(StepTime, LacksTheKeysThatAWindowHides) {
  Machine machine = ideal();
  machine.within_bytes_per_s = 1e6;
  machine.fabric = Fabric::on_switch;
  const Setting whole = nano(2, 4096);
  Setting windowed = whole;
  windowed.model.specs = LayerSpec{.window = 128};
  const auto seconds = [&](const Setting& setting, const char* layout, SequenceExchange exchange) {
    return step_time(setting, Layout::parse(layout).with(exchange), machine, DType::f32).seconds;
  };
  const auto layers = static_cast<double>(whole.model.layers);
  const auto key =
      static_cast<double>(2 * 2 * whole.model.kv_width({})) * 3 * 4;  // of two sequences; moves twice, its gradient once
  const double hidden = layers * key * (4096.0 - 2 * 127) * 3 / 4;
  for (const auto& [layout, exchange] : {std::pair("sp=4", SequenceExchange::gather),
                                         {"sp=4", SequenceExchange::ring},
                                         {"tsp=4", SequenceExchange::gather},
                                         {"zero3=4", SequenceExchange::gather}}) {
    const double saved = seconds(whole, layout, exchange) - seconds(windowed, layout, exchange);
    EXPECT_NEAR(saved, hidden / 1e6, 1e-6 * saved) << layout;
  }
  EXPECT_EQ(seconds(whole, "sp=4", SequenceExchange::ulysses), seconds(windowed, "sp=4", SequenceExchange::ulysses));
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
  EXPECT_EQ(refusal([] { step_time(nano(1, 64), {}, parse_machine(test_machine::kText, "m.json"), DType::f64); }),
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
  // Replicas needn't share where all fit.
  const std::multiset<std::string> listed = labels_of(found);
  for (const Layout& layout : all_layouts(4)) {
    EXPECT_GE(listed.count(layout.label()), layout.shares_states() ? 0U : 1U) << layout.label();
    EXPECT_LE(listed.count(layout.label()), 1U) << layout.label();
  }
  const auto twins = [&](const std::string& label) {
    const auto at = std::find_if(found.begin(), found.end(), [&](const Candidate& each) { return each.layout.label() == label; });
    return at == found.end() ? std::multiset<std::string>{} : labels_of(at->alike);
  };
  EXPECT_EQ(twins("tp=2,sp=2"), (std::multiset<std::string>{"sp=2,tp=2"}));
  EXPECT_EQ(twins("tsp=4"), std::multiset<std::string>{});
}

// With a budget in which replicas fit only if they save all activations anew, those that share optimizer states save none.
TEST(Search, ListsReplicasThatShareWhereAFasterModeFitsSo) {
  const Setting setting = nano(4, 64);
  const Layout shared = one_axis(AxisKind::dp, 4).with(DataSharing::zero1);
  const auto saving = [&](const Layout& layout, Recompute mode) {
    Setting so = setting;
    so.recompute = mode;
    return judge(so, layout, ideal(), {.memory_bytes = 1ULL << 40, .dtype = DType::f32}).saving;
  };
  const std::uint64_t budget = std::max(saving(shared, Recompute::none), saving(one_axis(AxisKind::dp, 4), Recompute::full));
  ASSERT_LT(budget, saving(one_axis(AxisKind::dp, 4), Recompute::none));
  const std::vector<Candidate> found =
      search(setting, 4, ideal(), {.memory_bytes = budget, .dtype = DType::f32, .modes = kAllModes});
  const auto at = std::ranges::find(found, shared, &Candidate::layout);
  ASSERT_NE(at, found.end());
  EXPECT_TRUE(at->fits);
  EXPECT_EQ(at->recompute, Recompute::none);
}

TEST(Search, HoldsTheMemoryOfTheAlgorithmsThatRanksWouldUse) {
  const Machine machine = parse_machine(test_machine::kText, "m.json");
  const auto memory = [&](const char* algorithms) {
    return judge(nano(4, 64), one_axis(AxisKind::tsp, 4), machine,
                 {.memory_bytes = 1ULL << 40, .dtype = DType::f32, .algorithms = algorithms})
        .memory.total;
  };
  EXPECT_LT(memory("all_gather=ring"), memory("all_gather=direct"));
}

// Against single modes, each judged alone.
TEST(Search, ChoosesTheFastestRecomputationThatFits) {
  Machine machine = parse_machine(test_machine::kText, "m.json");
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
  machine.gemm_efficiency = 0.5;
  machine.attention_efficiency = 0.5;
  const auto used = [&](Recompute mode) {
    return judge(nano(2, 64), {}, machine, {.memory_bytes = 1ULL << 40, .dtype = DType::f32, .modes = {mode}}).utilization;
  };
  EXPECT_NEAR(used(Recompute::none), 0.5, 1e-6);
  EXPECT_LT(used(Recompute::full), 0.45);
  EXPECT_GT(used(Recompute::full), 0.3);
}

// Every remedy is a search that finds something; a little less of it finds nothing for that layout.
TEST(Search, RemediesHelp) {
  const Machine machine = parse_machine(test_machine::kText, "m.json");
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
  std::size_t told = 0;
  const auto tell = [&](std::size_t done, std::size_t total) {
    EXPECT_EQ(done, ++told);
    EXPECT_EQ(total, all_layouts(16).size());
  };
  const std::vector<Candidate> found =
      search(s, 16, find_machine("mi300x"), {.memory_bytes = budget, .dtype = DType::bf16, .progress = tell});
  EXPECT_EQ(told, all_layouts(16).size());
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
  // Replicas share optimizer states where they don't fit otherwise, or are faster so.
  const std::multiset<std::string> listed = labels_of(found);
  std::size_t only_shared = 0;
  for (const Layout& layout : all_layouts(16)) {
    if (!layout.shares_states()) EXPECT_EQ(listed.count(layout.label()), 1U) << layout.label();
    else if (fit.contains(layout.label()) && !fit.contains(layout.with(DataSharing::plain).label())) ++only_shared;
  }
  EXPECT_GT(only_shared, 0U);
  EXPECT_TRUE(fit.contains("tsp=16"));
  EXPECT_FALSE(fit.contains("sp=16"));  // 155 GB of model state a rank beside everything else
  EXPECT_FALSE(fit.contains("dp=16"));  // doesn't divide the batch
  const auto sixteen =
      std::find_if(found.begin(), found.end(), [](const Candidate& each) { return each.layout.label() == "dp=16"; });
  EXPECT_EQ(sixteen->why, "dp=16 doesn't divide --batch 2; try --batch 16");
}

}  // namespace
}  // namespace tsprun::detail::theory::search_test
