// Forecasts of runs of several steps, on ranks that share memory, that don't, and that sit on several nodes: to the byte. And
// budgets: ranks with a budget as large as the forecast get through, with a byte less they don't.
#include "layers/theory/peaks.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test::budget_test {
namespace {

constexpr std::size_t kSteps = 4;
constexpr TensorExchange kSlices = TensorExchange::sequence;

std::vector<Layout> layouts() {
  return {Layout::parse("tsp=4"),
          Layout::parse("tp=4"),
          Layout::parse("tp=4").with(kSlices),
          Layout::parse("sp=4"),
          Layout::parse("sp=4").with(SequenceExchange::ring),
          Layout::parse("sp=4").with(SequenceExchange::ulysses),
          Layout::parse("zero3=4"),
          Layout::parse("tp=2,sp=2"),
          Layout::parse("tp=2,tsp=2"),
          Layout::parse("dp=2,tsp=2"),
          Layout::parse("pp=2,tsp=2"),
          Layout::parse("dp=2,pp=2")};
}

struct Case {
  ModelConfig config;
  std::size_t sequence = 1;
  DType dtype = DType::f32;
  Recompute recompute = Recompute::none;
  std::size_t micro_batches = 1;
};

std::vector<Case> cases() {
  return {{.config = small_config(64, 2, 8, 4, 8, 176, 256), .sequence = 61},
          {.config = small_config(64, 2, 8, 1, 8, 203, 601, true),
           .sequence = 130,
           .dtype = DType::bf16,
           .recompute = Recompute::selective},
          {.config = small_config(64, 2, 8, 8, 8, 200, 97), .sequence = 33, .dtype = DType::f64, .recompute = Recompute::full},
          {.config = small_config(64, 2, 8, 2, 8, 99, 256), .sequence = 40, .micro_batches = 3}};
}

constexpr std::size_t kBatch = 6;

theory::MeshSetting mesh_setting(const Case& of, const Layout& layout) {
  return {.setting = {.model = of.config,
                      .batch = kBatch,
                      .sequence = of.sequence,
                      .bytes = ElementBytes::of(of.dtype),
                      .recompute = of.recompute,
                      .micro_batches = of.micro_batches},
          .layout = layout};
}

std::string describe(const Case& of, const Layout& layout) { return std::string(name(of.dtype)) + ", " + layout.label(); }

/// Tokens of each step: anything, one id alone, those of a small part of the vocabulary.
class Tokens {
 public:
  explicit Tokens(const Case& of) : sequence_(of.sequence), micro_batches_(of.micro_batches) {
    std::mt19937 random(3);
    const auto vocabulary = static_cast<Token>(of.config.vocabulary);
    for (std::size_t step = 0; step < kSteps; ++step) {
      const Token first = step % 2 == 0 ? 0 : static_cast<Token>(random() % static_cast<unsigned>(vocabulary));
      const Token last = step % 2 == 0 ? vocabulary - 1 : step == 1 ? first : std::min(vocabulary - 1, first + vocabulary / 5);
      std::uniform_int_distribution<Token> id(first, last);
      for (std::size_t i = 0; i < kBatch * sequence_; ++i) ids_.push_back(id(random));
    }
    labels_.assign(kBatch * sequence_, 1);
  }
  TokenBatch of_step(std::size_t step) const {
    const std::size_t count = kBatch * sequence_;
    return {.batch = kBatch,
            .sequence = sequence_,
            .ids = std::span(ids_).subspan(step * count, count),
            .labels = labels_,
            .micro_batches = micro_batches_};
  }

 private:
  std::size_t sequence_;
  std::size_t micro_batches_;
  std::vector<Token> ids_;
  std::vector<std::int64_t> labels_;
};

/// Trains for kSteps; which of them decide this rank's memory.
theory::DecisivePasses train(Rank& rank, const Case& of, const Layout& layout, const Tokens& tokens) {
  Mesh mesh(rank.world(), layout);
  Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .recompute = of.recompute, .training = true});
  model.parameters().fill_fresh(of.config.layers, 1);
  theory::DecisivePasses decisive;
  for (std::size_t step = 0; step < kSteps; ++step) {
    model.forward_backward(tokens.of_step(step));
    UpdateOptions update;
    update.step = step + 1;
    model.update(update, model.gradient_norm());
    decisive.note(step, tokens.of_step(step), model.rows_given(), rank.context().memory_use().total);
  }
  return decisive;
}

CategoryBytes forecast(const Case& of, const Layout& layout, int rank, const Tokens& tokens, const PhantomOptions& like,
                       const std::vector<std::uint64_t>& steps) {
  theory::RunPeaks run(mesh_setting(of, layout), rank, {.like = like});
  for (const std::uint64_t step : steps) run.pass(tokens.of_step(step));
  return run.peaks();
}

/// Each layout with every other case, from the `first` or the one after it on: each way of linking ranks tries all cases.
void expect_forecasts(std::size_t first, const RankOptions& ranks) {
  std::size_t number = first;
  for (const Case& of : cases()) {
    const Tokens tokens(of);
    std::size_t turn = number++;
    for (const Layout& layout : layouts()) {
      if (turn++ % 2 != 0) continue;
      run_ranks(
          layout.ranks(),
          [&](Context& context) {
            Rank rank(context);
            const theory::DecisivePasses decisive = train(rank, of, layout, tokens);
            const CategoryBytes measured = rank.memory_peaks();
            for (const bool all : {false, true}) {
              std::vector<std::uint64_t> steps = decisive.numbers();
              if (all) {
                steps.clear();
                for (std::size_t step = 0; step < kSteps; ++step) steps.push_back(step);
              }
              const CategoryBytes expected = forecast(of, layout, rank.rank(), tokens, likeness(context), steps);
              for (std::size_t i = 0; i < kCategories; ++i) {
                EXPECT_EQ(measured.of[i], expected.of[i])
                    << name(static_cast<Category>(i)) << ", " << describe(of, layout) << ", rank " << rank.rank();
              }
              EXPECT_EQ(measured.total, expected.total) << describe(of, layout) << ", rank " << rank.rank();
            }
          },
          ranks);
    }
  }
}

TEST(PeaksOfRuns, AreThoseOfAllStepsWhereRanksShareMemory) { expect_forecasts(0, {}); }
TEST(PeaksOfRuns, AreThoseOfAllStepsOverSockets) { expect_forecasts(1, {.share = false}); }
TEST(PeaksOfRuns, AreThoseOfAllStepsOnTwoNodes) { expect_forecasts(0, {.nodes = 2}); }
TEST(PeaksOfRuns, AreThoseOfAllStepsOnTwoNodesWhoseSumsAreReordered) { expect_forecasts(1, {.nodes = 2, .reassociate = true}); }

TEST(Budgets, AreEnoughFromTheForecastOnToTheByte) {
  std::mt19937 random(17);
  std::uniform_real_distribution<double> around(0.9, 1.1);
  for (const Case& of : cases()) {
    const Tokens tokens(of);
    for (const Layout& layout : layouts()) {
      std::uint64_t most = 0;
      for (int rank = 0; rank < layout.ranks(); ++rank)
        most = std::max(most, forecast(of, layout, rank, tokens, {}, {0, 1, 2, 3}).total);
      const theory::Need need = theory::need(mesh_setting(of, layout));
      EXPECT_LE(need.evenly.total, need.any_ids);
      EXPECT_LE(most, need.any_ids) << describe(of, layout);
      const auto some = static_cast<std::uint64_t>(static_cast<double>(most) * around(random));
      for (const std::uint64_t budget : {most - 1, most, some}) {
        const auto body = [&](Context& context) {
          try {
            Rank rank(context);
            train(rank, of, layout, tokens);
          } catch (const Error& error) {
            board_of(context).abort(failure_of(error));  // as a launcher tells the others
            throw;
          }
        };
        const std::vector<RankOutcome> outcomes = try_ranks(layout.ranks(), body, {.heap_budget = budget});
        const bool failed = std::ranges::any_of(outcomes, [](const RankOutcome& each) { return each.failed; });
        ASSERT_EQ(failed, budget < most) << describe(of, layout) << ": budget " << budget << ", forecast " << most << "\n"
                                         << test::describe(outcomes);
        for (const RankOutcome& each : outcomes) EXPECT_TRUE(!each.failed || each.cause == Cause::out_of_memory) << each.message;
      }
      // Whatever the ids are: what is said to fit does.
      EXPECT_TRUE(theory::fits(mesh_setting(of, layout), need.any_ids));
      EXPECT_FALSE(theory::fits(mesh_setting(of, layout), need.any_ids - 1));
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::budget_test
