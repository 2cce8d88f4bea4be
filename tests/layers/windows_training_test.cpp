// A window that hides nothing changes nothing, under every way of cutting sequences.
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace tsprun::detail::test::windows_training_test {
namespace {

TEST(Windows, AsLongAsTheSequenceHaveTheBitsOfNone) {
  ModelCase of{.config = small_config(24, 3, 8, 2, 4, 21, 41), .batch = 2, .sequence = 13};
  for (const Layout& layout : {Layout::tsp(4), Layout::parse("sp=4"), Layout::parse("sp=4").with(SequenceExchange::ring),
                               Layout::parse("sp=2").with(SequenceExchange::ulysses), Layout::parse("zero3=4")}) {
    SCOPED_TRACE(layout.label());
    of.config.specs = LayerSpec{};
    const ModelRun without = run_model(of, layout);
    for (const std::size_t window : {13U, 40U}) {
      of.config.specs = LayerSpec{.window = window};
      const ModelRun with = run_model(of, layout);
      EXPECT_EQ(with.loss, without.loss);
      EXPECT_EQ(with.gradients, without.gradients);
      EXPECT_EQ(with.peaks, without.peaks);
    }
    of.config.specs = LayerSpec{.window = 12};
    EXPECT_NE(run_model(of, layout).loss, without.loss);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::windows_training_test
