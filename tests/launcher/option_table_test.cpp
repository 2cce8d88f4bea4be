// Rows of options: what follows from them for help, values, nodes and checkpoints.
#include "launcher/option_table.h"

#include "launcher/agreement.h"
#include "launcher/commands/train.h"
#include "tests/support/refusal.h"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::launcher::option_table_test {
namespace {

struct Options {
  Given<double> rate{0.5};
  Given<Recompute> mode{Recompute::selective};
  std::string place = "here";
  bool loud = false;

  void declare(OptionTable& table) {
    table.add("--rate R", rate, "how fast", Number{{.lowest = 0, .highest = 1, .below = true}});
    table.add("--mode MODE", mode, "one of {}", recompute_modes());
    table.add("--place WHERE", place, "where", Trait::all_or_none);
    table.add("--loud", loud, "say more", Trait::per_node);
  }
};

/// Sets options from words.
void type(OptionTable& table, std::vector<std::string> words) {
  CLI::App app;
  table.bind(app);
  app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the last word first, as CLI11 wants them
  table.parse();
}

TEST(OptionTable, HelpHasChoicesAndDefaults) {
  Options options;
  OptionTable table(options);
  EXPECT_EQ(table["--rate"].usual, "0.5");
  EXPECT_EQ(table["--rate"].metavar, "R");
  EXPECT_EQ(table["--mode"].usual, "selective");
  EXPECT_EQ(table["--mode"].help, "one of none, selective, full");
  EXPECT_EQ(table["--place"].usual, "here");
}

TEST(OptionTable, TextsBecomeValuesAndDefaultsStay) {
  Options options;
  OptionTable table(options);
  type(table, {"--mode", "full", "--loud"});
  EXPECT_EQ(options.mode, Recompute::full);
  EXPECT_TRUE(options.mode.given());
  EXPECT_TRUE(options.loud);
  EXPECT_EQ(options.rate, 0.5);
  EXPECT_FALSE(options.rate.given());
}

TEST(OptionTable, RefusalsNameTheOptionAndProposeTheDefault) {
  Options options;
  OptionTable table(options);
  EXPECT_EQ(test::refused_text([&] { type(table, {"--rate", "1"}); }), "--rate 1: numbers from 0 to below 1 work; try 0.5");
  Options other;
  OptionTable of_other(other);
  EXPECT_EQ(test::refused_text([&] { type(of_other, {"--mode", "half"}); }), "--mode half: none, selective and full work");
}

TEST(OptionTable, NodesAgreeOnValuesAsTheirRowsSay) {
  const auto agreement = [](const std::vector<std::string>& words) {
    Options options;
    OptionTable table(options);
    CLI::App app;
    table.bind(app);
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    return typed_options(table, {});
  };
  EXPECT_EQ(agreement({"--loud"}), (Agreement{{"--rate", "0.5"}, {"--mode", "selective"}, {"--place", "here"}}));
  EXPECT_EQ(agreement({"--place", "a"}), agreement({"--place", "b"}));
  EXPECT_NE(agreement({"--rate", "0.1"}), agreement({"--rate", "0.2"}));
}

TEST(OptionTable, ACheckpointGivesWhatIsNotTyped) {
  TrainOptions train;
  OptionTable table(train);
  type(table, {"--lr", "0.25"});
  CheckpointState saved;
  saved.learning_rate = 0.125;
  saved.warmup = 7;
  for (const OptionRow& row : table.rows())
    if (row.restore) row.restore(saved);
  EXPECT_EQ(train.learning_rate, 0.25);
  EXPECT_EQ(train.warmup, 7U);
  CheckpointState next;
  for (const OptionRow& row : table.rows())
    if (row.record) row.record(next);
  EXPECT_EQ(next.learning_rate, 0.25);
  EXPECT_EQ(next.warmup, 7U);
}

TEST(OptionTable, ACheckpointGivesTheStepsOnWhichItsRatesDepend) {
  for (const RateSchedule schedule : {RateSchedule::constant, RateSchedule::cosine}) {
    TrainOptions train;
    OptionTable table(train);
    CheckpointState saved;
    saved.schedule = schedule;
    saved.steps = schedule == RateSchedule::constant ? 0 : 700;
    for (const OptionRow& row : table.rows())
      if (row.restore) row.restore(saved);
    EXPECT_EQ(train.steps, schedule == RateSchedule::constant ? 100U : 700U);
    EXPECT_EQ(train.schedule, schedule);
    CheckpointState next;
    for (const OptionRow& row : table.rows())
      if (row.record) row.record(next);
    EXPECT_EQ(next.schedule, saved.schedule);
    EXPECT_EQ(next.steps, saved.steps);
    next.steps = 1400;
    const std::vector<std::string> lines = differences(saved, next);
    EXPECT_EQ(lines.size(), schedule == RateSchedule::constant ? 0U : 1U);
    if (!lines.empty()) {
      EXPECT_EQ(lines[0], "--steps: 1400 now, 700 in the checkpoint");
    }
  }
}

TEST(OptionTable, ACheckpointGivesNothingThatTypedOptionsMakeUseless) {
  CheckpointState saved;
  saved.schedule = RateSchedule::cosine;
  saved.least_rate = 1e-5;
  saved.decay_steps = 4;
  saved.steps = 300;
  const auto resumed = [&](const std::vector<std::string>& words) {
    TrainOptions train;
    OptionTable table(train);
    type(table, words);
    for (const OptionRow& row : table.rows()) {
      if (!row.restore) continue;
      row.restore(saved);
      row.parse();
    }
    return train;
  };
  EXPECT_EQ(resumed({}).steps, 300U);
  EXPECT_EQ(resumed({"--epochs", "0"}).steps, 300U);
  EXPECT_FALSE(resumed({"--epochs", "3"}).steps.given());
  EXPECT_EQ(resumed({"--lr-schedule", "linear"}).least_rate, 1e-5);
  EXPECT_EQ(resumed({"--lr-schedule", "constant"}).least_rate, 0);
  EXPECT_EQ(resumed({"--lr-schedule", "constant"}).decay_steps, 0U);
}

TEST(Differences, SayThatEpochsGoOnWithOtherWindows) {
  CheckpointState state;
  state.epochs = 2;
  CheckpointState other = state;
  other.epochs = 3;
  EXPECT_EQ(differences(state, other).size(), 1U);
  other.batch = 4;
  const std::vector<std::string> lines = differences(state, other);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(
      std::ranges::any_of(lines, [](const std::string& line) { return line.starts_with("--epochs: windows are numbered"); }));
}

TEST(Differences, NameTheFactsThatARunChanges) {
  CheckpointState state;
  state.learning_rate = 0.1 + 0.2;
  state.layout = Layout::parse("tp=2,sp=2").with(TensorExchange::sequence).with(SequenceExchange::ring);
  EXPECT_TRUE(differences(state, state).empty());
  CheckpointState other = state;
  other.step += 1;
  other.learning_rate = 0.5;
  other.layout = Layout::tsp(2);
  EXPECT_EQ(
      differences(state, other),
      (std::vector<std::string>{"--lr: 0.5 now, 0.30000000000000004 in the checkpoint", "ranks: 2 now, 4 in the checkpoint",
                                "--layout: tsp=2 now, tp=2,sp=2 in the checkpoint", "--tp: plain now, sequence in the checkpoint",
                                "--sp: gather now, ring in the checkpoint"}));
}

}  // namespace
}  // namespace tsprun::detail::launcher::option_table_test
