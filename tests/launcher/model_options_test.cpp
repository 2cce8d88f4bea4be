// The options of model commands: what they mean by default, and what is refused before a rank starts.
#include "launcher/model/model_options.h"

#include "launcher/model/layouts.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher::model_options_test {
namespace {

using test::TemporaryFolder;

GlobalOptions job(const std::string& layout, const std::string& ranks = "") {
  GlobalOptions global;
  global.layout.text = layout;
  global.ranks.text = ranks;
  validate_global(global, RankUse::on_paper, 1);
  return global;
}

ModelCommandOptions of(const std::string& config) {
  ModelCommandOptions options;
  options.config = config;
  return options;
}

/// The message of the refusal; the test fails if nothing is refused.
template <class Change>
std::string refusal_of(Change change, const GlobalOptions& global = job("")) {
  ModelCommandOptions options = of("nano");
  change(options);
  return test::refusal([&] { validate_model(options, global); });
}

TEST(ModelOptions, DefaultsAreThoseOfTheManual) {
  ModelCommandOptions options = of("small");
  validate_model(options, job(""));
  EXPECT_EQ(options.shape.hidden, 1024U);
  EXPECT_EQ(options.dtype, DType::f32);
  EXPECT_EQ(options.recompute, Recompute::none);
  EXPECT_EQ(options.batch, 1U);
  EXPECT_EQ(options.sequence, 1024U);  // of 2048 positions
  EXPECT_EQ(options.seed, 0U);
  ModelCommandOptions nano = of("nano");
  validate_model(nano, job(""));
  EXPECT_EQ(nano.sequence, 256U);  // all its positions
}

TEST(ModelOptions, HeadsThatDoNotDivideNameDegreesThatWork) {
  ModelCommandOptions options = of("paper-7b");
  EXPECT_EQ(test::refusal([&] { validate_model(options, job("tsp=6")); }),
            "--layout tsp=6: 32 query heads don't divide by 6; try 4 or 8");
  EXPECT_EQ(test::refusal([&] { validate_model(options, job("", "3")); }), "-n 3: 32 query heads don't divide by 3; try 2 or 4");
}

TEST(ModelOptions, EveryLayoutThatHeadsAllowIsAccepted) {
  for (const char* layout : {"tp=4", "sp=4", "zero3=4", "zero3=3", "sp=3", "dp=4", "dp=2,tsp=2", "tp=2,tsp=2", "sp=2,tp=4"}) {
    ModelCommandOptions options = of("nano");
    EXPECT_NO_THROW(validate_model(options, job(layout))) << layout;
  }
  EXPECT_EQ(layout_of(job("dp=1,tsp=4")).ranks(), 4);
  EXPECT_EQ(layout_of(job("", "4")).sequence(), 4);
  EXPECT_EQ(layout_of(job("")).ranks(), 1);
  const Layout layout = layout_of(job("dp=2,sp=2,tp=4"));
  EXPECT_EQ(layout.token_axis(), AxisKind::sp);
  EXPECT_EQ(layout.data(), 2);
  EXPECT_EQ(layout.sequence(), 2);
  EXPECT_EQ(layout.tensor(), 4);
  EXPECT_EQ(layout.place(AxisKind::tp, 5), 1);
  EXPECT_EQ(layout.place(AxisKind::sp, 5), 1);
}

// Every axis of the grammar, and the layout it must give by the architecture's definition.
TEST(ModelOptions, EveryAxisGivesItsOwnLayout) {
  const auto layout = [](const char* axis) {
    GlobalOptions global;
    global.layout = Layout::parse(std::string(axis) + "=4");
    return layout_of(global);
  };
  EXPECT_EQ(layout("dp").data(), 4);
  EXPECT_EQ(layout("tp").tensor(), 4);
  EXPECT_EQ(layout("tp").token_axis(), AxisKind::sp);
  EXPECT_EQ(layout("sp").sequence(), 4);
  EXPECT_EQ(layout("sp").token_axis(), AxisKind::sp);
  EXPECT_EQ(layout("tsp").token_axis(), AxisKind::tsp);
  EXPECT_EQ(layout("zero3").token_axis(), AxisKind::zero3);
  for (const char* axis : {"dp", "tp", "sp", "tsp", "zero3"}) EXPECT_EQ(layout(axis).ranks(), 4) << axis;
}

// A sweep over degrees may begin with 1.
TEST(ModelOptions, AxesOfOneRankTakeEveryVariant) {
  for (const SequenceExchange variant : {SequenceExchange::gather, SequenceExchange::ring, SequenceExchange::ulysses}) {
    GlobalOptions one = job("sp=1");
    one.variant(AxisKind::sp) = static_cast<std::size_t>(variant);
    ModelCommandOptions options = of("nano");
    EXPECT_NO_THROW(validate_model(options, one)) << static_cast<int>(variant);
    EXPECT_EQ(layout_as_typed(one).variant(AxisKind::sp), 0U);
  }
  GlobalOptions megatron = job("tp=1,sp=2");
  megatron.variant(AxisKind::tp) = 1;
  EXPECT_EQ(layout_as_typed(megatron).variant(AxisKind::tp), 0U);
  EXPECT_EQ(layout_of(megatron).ranks(), 2);
}

TEST(ModelOptions, LayoutsThatCantBeAreRefusedByName) {
  ModelCommandOptions options = of("paper-7b");
  const auto refusal_under = [&](const GlobalOptions& global) { return test::refusal([&] { validate_model(options, global); }); };
  EXPECT_EQ(refusal_under(job("tp=6")), "--layout tp=6: 32 query heads don't divide by 6; try 4 or 8");
  EXPECT_EQ(refusal_under(job("tp=2,tsp=3")), "--layout tp=2,tsp=3: 16 query heads don't divide by 3; try 2 or 4");
  GlobalOptions ring = job("tsp=4");
  ring.variant(AxisKind::sp) = 1;
  EXPECT_EQ(refusal_under(ring), "--sp ring: --layout tsp=4 has no sp axis to exchange over; try --layout sp=4");
  GlobalOptions ulysses = job("sp=3");
  EXPECT_NO_THROW(validate_model(options, ulysses));
  ulysses.variant(AxisKind::sp) = 2;
  EXPECT_EQ(refusal_under(ulysses), "--layout sp=3: 32 query heads don't divide by 3; try 2 or 4");
  GlobalOptions megatron = job("sp=4");
  megatron.variant(AxisKind::tp) = 1;
  EXPECT_EQ(refusal_under(megatron), "--tp sequence: --layout sp=4 has no tp axis to exchange over; try --layout tp=4");
  EXPECT_EQ(test::refusal([] { check_batch(job("dp=2,tsp=2"), 3, 1); }),
            "--layout dp=2,tsp=2: --batch 3 doesn't divide by dp=2; try --batch 2 or 4");
}

TEST(ModelOptions, TextsThatAreNoValuesAreRefusedByName) {
  EXPECT_EQ(refusal_of([](auto& options) { options.dtype.text = "f16"; }), "--dtype f16: f32, f64 and bf16 work");
  EXPECT_EQ(refusal_of([](auto& options) { options.recompute.text = "half"; }),
            "--recompute half: none, selective and full work");
  EXPECT_EQ(refusal_of([](auto& options) { options.batch.text = "0"; }), "--batch 0: 1 to 1048576 work; try 1");
  EXPECT_EQ(refusal_of([](auto& options) { options.sequence.text = "0"; }), "--seq 0: 1 to 256 work; try 1");
  EXPECT_EQ(refusal_of([](auto& options) { options.sequence.text = "257"; }), "--seq 257: nano has 256 positions; try --seq 256");
  EXPECT_EQ(refusal_of([](auto& options) { options.sequence.text = "99999999999999999999"; }),
            "--seq 99999999999999999999: nano has 256 positions; try --seq 256");
  EXPECT_NE(refusal_of([](auto& options) { options.sequence.text = "-1"; }).find("--seq -1"), std::string::npos);
  EXPECT_NE(refusal_of([](auto& options) { options.seed.text = "-1"; }).find("--seed -1"), std::string::npos);
  EXPECT_NE(refusal_of([](auto& options) { options.config = "nanno"; }).find("nanno"), std::string::npos);
}

TEST(ModelOptions, OneModelIsNeeded) {
  EXPECT_NE(refusal_of([](auto& options) { options.config.clear(); }).find("--config"), std::string::npos);
  EXPECT_NE(refusal_of([](auto& options) { options.model = "somewhere"; }).find("give one of them"), std::string::npos);
  EXPECT_NE(refusal_of([](auto& options) {
              options.config.clear();
              options.model = "/no/such/folder";
            }).find("--model /no/such/folder"),
            std::string::npos);
}

TEST(ModelOptions, ConfigsThatAskForMoreAreRefused) {
  const TemporaryFolder folder;
  const auto file = folder.write("config.json", R"({"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 32, "vocab_size": 256, "sliding_window": 128})");
  const std::string message = refusal_of([&](auto& options) { options.config = file.string(); });
  EXPECT_NE(message.find("sliding_window"), std::string::npos) << message;
}

TEST(ModelData, MustBeThereFitAndBeOfTheVocabulary) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& data, bool training) {
    ModelCommandOptions options = of("nano");
    options.data = data;
    validate_model(options, job(""));
    return test::refusal([&] { validate_data(options, training); });
  };
  EXPECT_NE(refused({}, true).find("--data"), std::string::npos);
  EXPECT_NE(refused({"/no/such/file"}, true).find("/no/such/file"), std::string::npos);
  EXPECT_NE(refused({folder.write("empty.txt", "").string()}, false).find("two tokens"), std::string::npos);
  EXPECT_NE(refused({folder.write("one.txt", "a").string()}, false).find("at least two"), std::string::npos);
  const std::string short_text = folder.write("short.txt", std::string(200, 'a')).string();
  EXPECT_NE(refused({short_text}, true).find("try --seq 199"), std::string::npos);
  EXPECT_NE(refused({folder.write("odd.bin", "abc").string()}, false).find("odd.bin"), std::string::npos);
  const std::string ids = folder.write("ids.bin", std::string("\x01\x00\x00\x01", 4)).string();
  EXPECT_NE(refused({ids}, false).find("256"), std::string::npos);

  ModelCommandOptions options = of("nano");
  options.data = {short_text};
  validate_model(options, job(""));
  validate_data(options, false);
  EXPECT_EQ(options.tokens, 200U);
}

TEST(ModelMemory, ABudgetBelowWhatIsCertainIsRefusedWithTheParts) {
  ModelCommandOptions options = of("micro");
  GlobalOptions global = job("tsp=2");
  validate_model(options, global);
  validate_memory(options, global, ModelUse::training);
  global.mem_per_rank.text = "4M";
  global.mem_per_rank = 4 << 20;
  const std::string message = test::refusal([&] { validate_memory(options, global, ModelUse::training); });
  for (const char* part : {"--mem-per-rank 4M", "too small by", "parameters", "gradients", "optimizer", "saved activations"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  // What can't be given to eval or generate isn't proposed there.
  global.mem_per_rank.text = "1M";
  global.mem_per_rank = 1 << 20;
  const std::string inference = test::refusal([&] { validate_memory(options, global, ModelUse::inference); });
  EXPECT_NE(inference.find("more ranks or --dtype bf16 need less"), std::string::npos) << inference;
}

TEST(Numbers, EndsThatDoNotWorkAreNotProposed) {
  const auto refused = [](const char* text, const NumberRange& range) {
    return test::refusal([&] { parse_number("--x", text, range); });
  };
  EXPECT_EQ(refused("2", {.lowest = 0, .highest = 1, .usual = 0.5}), "--x 2: numbers from 0 to 1 work; try 1");
  EXPECT_EQ(refused("1", {.lowest = 0, .highest = 1, .usual = 0.5, .below = true}),
            "--x 1: numbers from 0 to below 1 work; try 0.5");
  EXPECT_EQ(refused("0", {.lowest = 0, .highest = 1, .usual = 0.5, .open = true}), "--x 0: numbers above 0 to 1 work; try 0.5");
  for (const char* text : {"nan", "", "1x", "inf", "-inf", "1e999"}) {
    EXPECT_NE(refused(text, {.lowest = 0, .highest = 1, .usual = 0.5}).find("--x"), std::string::npos) << text;
  }
  EXPECT_EQ(parse_number("--x", "3e-4", {.lowest = 0, .highest = 1, .usual = 0.5}), 3e-4);
}

}  // namespace
}  // namespace tsprun::detail::launcher::model_options_test
