// Several passes under way at once, beside passes one after another: the same bits and bytes, whatever the list of tasks.
#include "tests/layers/model_run.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::passes_test {
namespace {

std::vector<Layout> layouts() {
  return each_axis(2, {Layout::tsp(1), Layout::tsp(4), Layout::parse("zero3=3"), Layout::parse("tp=4"),
                       Layout::parse("sp=3").with(SequenceExchange::ring), Layout::parse("sp=2").with(SequenceExchange::ulysses),
                       Layout::parse("tp=2,sp=2"), Layout::parse("tp=2,sp=2").with(TensorExchange::sequence),
                       Layout::parse("tp=2,tsp=2"), Layout::parse("dp=2,tsp=2"), Layout::parse("dp=2,zero3=2"),
                       Layout::parse("dp=2,tp=2,sp=2").with(SequenceExchange::ulysses)});
}

/// K/V heads that tp copies, an uneven vocabulary; dropout, biases, learned positions; tied embeddings and gathered activations.
std::vector<ModelCase> cases() {
  return {
      {.config = small_config(24, 2, 8, 2, 4, 21, 41), .batch = 6, .sequence = 13, .dtype = DType::f32, .micro_batches = 3},
      {.config = small_gpt2_config(2, 8, 3, 21, 40, false), .batch = 6, .sequence = 11, .dtype = DType::bf16, .micro_batches = 3},
      {.config = small_config(16, 2, 8, 1, 4, 13, 600, true), .batch = 6, .sequence = 5, .micro_batches = 3}};
}

/// The tasks of a step whose micro-batches go through the model in this order: a digit means the next task of that micro-batch.
TaskList in_order(const std::string& order, std::size_t layers) {
  const TaskList of_one = training_tasks(layers, 1);
  std::vector<std::size_t> done(3);
  TaskList tasks;
  for (const char digit : order) {
    const auto m = static_cast<std::size_t>(digit - '0');
    tasks.push_back(of_one[done[m]++]);
    tasks.back().micro_batch = m;
  }
  tasks.insert(tasks.end(), of_one.end() - 2, of_one.end());
  return tasks;
}

constexpr const char* kOneAfterTheOther = "000000111111222222";
/// Forward passes, then backward passes; as a pipeline's stage does them, two under way; tasks of two directions by turns.
constexpr std::array kTogether = {"000111222000111222", "000111000222111222", "010101020202111222"};

/// Each layout meets each model and each order, and each recomputation mode: another one with each model.
TEST(Passes, SeveralUnderWayGiveTheBitsOfOneAfterTheOther) {
  constexpr std::array modes = {Recompute::none, Recompute::selective, Recompute::full};
  std::size_t turn = 0;
  for (ModelCase of : cases()) {
    std::size_t mode = turn++;
    for (const Layout& layout : layouts()) {
      of.recompute = modes[mode++ % modes.size()];
      of.tasks = {};
      const ModelRun once = run_model(of, layout);
      // On one rank the head adds to the gradient of a tied embedding in the forward pass.
      const bool other_order = of.config.tied_embeddings && layout.ranks() == layout.data();
      for (const char* const order : kTogether) {
        of.tasks = in_order(order, of.config.layers);
        const ModelRun together = run_model(of, layout);
        const std::string where = layout.label() + ", " + of.describe() + ", " + order;
        EXPECT_EQ(together.loss, once.loss) << where;
        if (other_order) expect_close(together.gradients, once.gradients, 1e-12, where);
        else EXPECT_EQ(together.gradients, once.gradients) << where;
        for (std::size_t rank = 0; rank < once.forward.size(); ++rank) {
          for (int i = 0; i < kPurposes; ++i) {
            // What one pass receives counts for the direction of another if that is computed meanwhile.
            EXPECT_EQ(together.forward[rank].received[i] + together.backward[rank].received[i],
                      once.forward[rank].received[i] + once.backward[rank].received[i])
                << where;
          }
        }
      }
    }
  }
}

/// Each pass holds its own activations while it is under way, and nothing afterwards.
TEST(Passes, HoldTheirOwnActivations) {
  ModelCase of = cases().front();
  for (const Layout& layout : layouts()) {
    const auto peak_of = [&](const char* order) {
      of.tasks = in_order(order, of.config.layers);
      return run_model(of, layout).peaks[0];
    };
    const CategoryBytes one = peak_of(kOneAfterTheOther);
    EXPECT_EQ(peak_of("000111222000111222")[Category::activations], 3 * one[Category::activations]) << layout.label();
    EXPECT_EQ(peak_of("000111000222111222")[Category::activations], 2 * one[Category::activations]) << layout.label();
    of.tasks = {};
    EXPECT_EQ(run_model(of, layout).peaks[0], one) << layout.label();
  }
}

TEST(Passes, OfAListThatIsNoStepAreRefused) {
  const auto check = [](const TaskList& tasks) { check_training_tasks(tasks, PipelineStage::whole(2), 3); };
  EXPECT_NO_THROW(check(training_tasks(2, 3)));
  for (const char* const order : kTogether) EXPECT_NO_THROW(check(in_order(order, 2))) << order;
  EXPECT_THROW(check(in_order("000111111000222222", 2)), std::logic_error);  // backward passes in another order
  EXPECT_THROW(check(in_order("222000111000111222", 2)), std::logic_error);  // forward passes in another order
  EXPECT_THROW(check(in_order("00000011111122222", 2)), std::logic_error);   // one isn't ended
  EXPECT_THROW(check(in_order("000000111111", 2)), std::logic_error);        // one is missing
  EXPECT_THROW(check(training_tasks(1, 3)), std::logic_error);               // other layers
  EXPECT_THROW(check(training_tasks(2, 4)), std::logic_error);
  TaskList tasks = training_tasks(2, 3);
  std::swap(tasks[0], tasks[1]);
  EXPECT_THROW(check(tasks), std::logic_error);
  tasks = training_tasks(2, 3);
  tasks.pop_back();
  EXPECT_THROW(check(tasks), std::logic_error);
  tasks = training_tasks(2, 3);
  tasks.push_back(tasks.back());
  EXPECT_THROW(check(tasks), std::logic_error);
}

}  // namespace
}  // namespace tsprun::detail::test::passes_test
