// Replicas that share optimizer states (--dp zero1) beside replicas that don't: the same bits of losses, norms, weights and
// moments, under every layout within; checkpoints that go on in either way.
#include "tests/layers/replicas_training.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tsprun::detail::test::zero1_test {
namespace {

using namespace replicas;

TEST(Zero1, HasTheBitsOfPlainReplicas) {
  for (const ModelCase& of : cases()) {
    for (const char* text : {"dp=2", "dp=3", "dp=6", "dp=2,tsp=2", "dp=3,tp=2", "dp=2,sp=2", "dp=2,zero3=2"}) {
      const Layout plain = Layout::parse(text);
      const TemporaryFolder folder;
      const Training expected = train(of, plain, 2, folder.path() / "plain");
      const Training actual = train(of, plain.with(DataSharing::zero1), 2, folder.path() / "zero1");
      const std::string where = plain.print() + ", " + of.describe();
      EXPECT_EQ(actual.losses, expected.losses) << where;
      EXPECT_EQ(actual.norms, expected.norms) << where;
      EXPECT_EQ(actual.files.size(), of.dtype == DType::bf16 ? 5U : 4U) << where;
      EXPECT_TRUE(actual.files == expected.files) << "another checkpoint, " << where;
    }
  }
}

/// N(β_a + β)(D − 1) where plain replicas receive 2Nβ_a(D − 1), all ranks together.
TEST(Zero1, ReceivesGradientsAndWeightsOfItsPartOnce) {
  for (const ModelCase& of : cases()) {
    std::uint64_t N = 0;
    for (const Parameter& parameter : model_parameters(of.config)) N += parameter.elements();
    const std::uint64_t beta = of.dtype == DType::bf16 ? 2 : of.dtype == DType::f32 ? 4 : 8;
    const std::uint64_t beta_a = std::max<std::uint64_t>(beta, 4);
    for (const int D : {2, 3, 6}) {
      const Layout plain{{{AxisKind::dp, D}}};
      const auto received = [&](const Layout& layout) {
        const ModelRun run = run_model(of, layout);
        expect_counted(run, layout.label());
        std::uint64_t sum = 0;
        for (const TrafficCounters& rank : run.backward) sum += theory::PurposeBytes::received(rank).total();
        return sum;
      };
      EXPECT_EQ(received(plain), 2 * N * beta_a * static_cast<std::uint64_t>(D - 1)) << D << ", " << of.describe();
      EXPECT_EQ(received(plain.with(DataSharing::zero1)), N * (beta_a + beta) * static_cast<std::uint64_t>(D - 1))
          << D << ", " << of.describe();
    }
  }
}

TEST(Zero1, CheckpointsGoOnUnderOtherLayoutsAndBack) {
  ModelCase of = cases()[1];
  const Layout shared = Layout::parse("dp=4").with(DataSharing::zero1);
  const TemporaryFolder folder;
  const Training whole = train(of, shared, 4, folder.path() / "whole");
  train(of, shared, 2, folder.path() / "first");
  const FoundCheckpoint saved = found_in(folder.path() / "first");
  const Training again = train(of, shared, 4, folder.path() / "again", saved);
  EXPECT_EQ(again.losses, (std::vector<double>{whole.losses.begin() + 2, whole.losses.end()}));
  EXPECT_TRUE(again.files == whole.files);
  for (const Layout& other : {Layout::parse("dp=2"), Layout::tsp(4), Layout::parse("dp=2,tp=2").with(DataSharing::zero1)}) {
    const std::filesystem::path there = folder.path() / other.print();
    // Loaded and saved without a step, files are the same.
    EXPECT_TRUE(train(of, other, 2, there, saved).files == files_in(saved.folder)) << other.label();
    const FoundCheckpoint back = found_in(there);
    EXPECT_TRUE(train(of, shared, 4, folder.path() / ("back" + other.print()), back).files == whole.files) << other.label();
    const Training on = train(of, other, 4, folder.path() / ("on" + other.print()), saved);
    ASSERT_EQ(on.losses.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(on.losses[i], again.losses[i], 2e-2 * again.losses[i]) << other.label();
  }
}

}  // namespace
}  // namespace tsprun::detail::test::zero1_test
