// Replicas that share weights (--dp zero3): bits and values beside plain replicas, what moves and what is held beside closed
// formulas, checkpoints that go on under other layouts.
#include "core/collectives/choice.h"
#include "layers/layout/check_layout.h"
#include "layers/parameters/place.h"
#include "tests/layers/replicas_training.h"
#include "tests/layers/step_formulas.h"
#include "tests/layers/temporary_folder.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::data_zero3_test {
namespace {

using namespace replicas;

Layout shared(const char* layout) { return Layout::parse(layout).with(DataSharing::zero3); }

/// One of each way of computing blocks beside dp, some with copies of K/V heads, of the vocabulary's rows, or of all weights.
std::vector<Layout> layouts() {
  return {shared("dp=2"),
          shared("dp=3"),
          shared("dp=2,tsp=2"),
          shared("dp=3,tp=2"),
          shared("dp=2,tp=4").with(TensorExchange::sequence),
          shared("dp=2,sp=2"),
          shared("dp=2,sp=3").with(SequenceExchange::ring),
          shared("dp=2,tp=2,sp=2"),
          shared("dp=2,tp=2,sp=2").with(TensorExchange::sequence).with(SequenceExchange::ulysses),
          shared("dp=2,tp=2,tsp=2"),
          shared("dp=2,shard=2"),
          shared("dp=2,shard=3,tsp=2"),
          shared("dp=3,shard=2,sp=2"),
          shared("dp=2,shard=2,tp=2,sp=2"),
          shared("dp=2,shard=2,tp=2").with(TensorExchange::sequence)};
}

/// An uneven vocabulary, with K/V heads that tp copies; dropout, biases, learned positions and a tied embedding; norms of heads,
/// and a head that gathers activations; layers that are all unlike.
std::vector<ModelCase> models() {
  const auto norms = [](Norm norm) {  // of whole rows of q and k, too; with LayerNorms the head has a bias
    ModelConfig config = small_norms_config(2, norm);
    config.query_heads = 12;
    return config;
  };
  return {{.config = small_config(24, 2, 12, 2, 4, 21, 41), .batch = 12, .sequence = 13},
          {.config = small_gpt2_config(2, 12, 3, 21, 40), .batch = 12, .sequence = 11},
          {.config = as_family("qwen3", small_config(16, 2, 12, 1, 4, 13, 600, true)), .batch = 12, .sequence = 5},
          {.config = as_family("llama", small_config(16, 3, 12, 4, 4, 13, 600)), .batch = 12, .sequence = 7},
          {.config = norms(Norm::rms), .batch = 12, .sequence = 6},
          {.config = norms(Norm::layer), .batch = 12, .sequence = 6}};
}

/// Chunks are those of plain dp's all_reduce, so sums over replicas have its bits. Where a replica's ranks have copies, which sum
/// after that, they don't.
TEST(DataZero3, HasTheBitsOfPlainReplicas) {
  constexpr std::array modes = {Recompute::none, Recompute::selective, Recompute::full};
  std::size_t mode = 0;
  for (ModelCase of : cases()) {
    of.micro_batches = 1;
    of.recompute = modes[mode++];
    for (const char* text : {"dp=2", "dp=3", "dp=6", "dp=2,tsp=2", "dp=3,tp=2"}) {
      const Layout plain = Layout::parse(text);
      const TemporaryFolder folder;
      const Training expected = train(of, plain, 2, folder.path() / "plain");
      const Training actual = train(of, shared(text), 2, folder.path() / "zero3");
      const std::string where = plain.print() + ", " + of.describe();
      EXPECT_EQ(actual.losses, expected.losses) << where;
      EXPECT_EQ(actual.norms, expected.norms) << where;
      EXPECT_TRUE(actual.files == expected.files) << "another checkpoint, " << where;
    }
  }
}

/// Micro-batches are summed over replicas one by one.
TEST(DataZero3, StepsAreThoseOfPlainReplicas) {
  ModelCase of = cases()[2];
  of.micro_batches = 3;
  for (const char* text : {"dp=4", "dp=2,sp=2", "dp=2,tp=2"}) {
    const TemporaryFolder folder;
    const Training expected = train(of, Layout::parse(text), 3, folder.path() / "plain");
    const Training actual = train(of, shared(text), 3, folder.path() / "zero3");
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(actual.losses[step], expected.losses[step], 1e-12 * expected.losses[step]) << text;
      EXPECT_NEAR(actual.norms[step], expected.norms[step], 1e-11 * expected.norms[step]) << text;
    }
  }
}

/// Each layout meets each model and number of micro-batches, in turns of the recomputation modes.
TEST(DataZero3, GivesTheGradientsOfOneRank) {
  constexpr std::array modes = {Recompute::none, Recompute::selective, Recompute::full};
  std::size_t turn = 0;
  for (ModelCase of : models()) {
    const ModelRun whole = run_model(of, Layout::tsp(1));
    for (const Layout& layout : layouts()) {
      of.recompute = modes[turn++ % modes.size()];
      of.micro_batches = layout.data() % 3 == 0 ? turn % 2 + 1 : turn % 3 + 1;
      if (!why_uncut(of.setting(), layout).empty()) continue;
      const std::string where = layout.label() + ", " + of.describe();
      const ModelRun run = run_model(of, layout);
      EXPECT_NEAR(run.loss, whole.loss, 1e-12 * whole.loss) << where;
      EXPECT_NEAR(run.gradient_norm, whole.gradient_norm, 1e-12 * whole.gradient_norm) << where;
      expect_close(run.gradients, whole.gradients, 1e-12, where);
      expect_counted(run, where);
      for (std::size_t rank = 0; rank < run.peaks.size(); ++rank)
        EXPECT_EQ(run.peaks[rank], run.forecast[rank]) << where << ", rank " << rank;
    }
  }
}

TEST(DataZero3, GivesTheGradientsOfOneRankInSmallerTypes) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 2e-5}, {DType::bf16, 2e-2}}) {
    ModelCase of = models().front();
    of.config.hidden = 64;
    of.batch = 24;
    of.dtype = dtype;
    const ModelRun whole = run_model(of, Layout::tsp(1));
    of.micro_batches = 2;
    for (const Layout& layout : layouts()) {
      const ModelRun run = run_model(of, layout);
      expect_close(run.gradients, whole.gradients, tolerance, layout.label());
      expect_counted(run, layout.label());
    }
  }
}

/// Elements of a model's blocks, of its tables and of what every rank has: norms, biases, learned positions.
struct Elements {
  std::uint64_t blocks = 0, tables = 0, vectors = 0;

  explicit Elements(const ModelConfig& config) {
    for (const Parameter& parameter : model_parameters(config)) {
      const bool table = parameter.role == ParameterRole::embedding || parameter.role == ParameterRole::head;
      const bool vector = !parameter.is_matrix() || parameter.role == ParameterRole::positions;
      (table ? tables : vector ? vectors : blocks) += parameter.elements();
    }
  }
};

/// M·N(2β + β_a)(D − 1) for the N elements of blocks, all ranks together. Embedding and head are needed in one direction each: a
/// tied table in both places, forward.
TEST(DataZero3, ReceivesWeightsForEachUseAndGradientsOfItsPart) {
  for (ModelCase of : cases()) {
    const Elements elements(of.config);
    const std::uint64_t beta = of.dtype == DType::bf16 ? 2 : of.dtype == DType::f32 ? 4 : 8;
    const std::uint64_t beta_a = std::max<std::uint64_t>(beta, 4);
    const std::uint64_t uses = of.config.tied_embeddings ? 2 : 1;
    for (const int D : {2, 3, 6}) {
      for (const std::size_t M : {std::size_t{1}, std::size_t{2}}) {
        of.micro_batches = M;
        const ModelRun run = run_model(of, Layout{{{AxisKind::dp, D}}}.with(DataSharing::zero3));
        expect_counted(run, of.describe());
        formulas::PurposeBytes received;
        for (int rank = 0; rank < D; ++rank) {
          for (int i = 0; i < kPurposes; ++i) {
            const auto purpose = static_cast<Purpose>(i);
            received[purpose] += run.backward[static_cast<std::size_t>(rank)].received[i];
            if (purpose != Purpose::other) received[purpose] += run.forward[static_cast<std::size_t>(rank)].received[i];
          }
        }
        const auto others = static_cast<std::uint64_t>(D - 1);
        const std::string where = std::to_string(D) + ", " + of.describe();
        EXPECT_EQ(received[Purpose::weights],
                  (M * (2 * elements.blocks + uses * elements.tables) + elements.vectors) * beta * others)
            << where;
        EXPECT_EQ(received[Purpose::gradients], M * elements.blocks * beta_a * others) << where;
        EXPECT_EQ(received[Purpose::embedding] + received[Purpose::head], M * elements.tables * beta_a * others) << where;
        EXPECT_EQ(received[Purpose::other], elements.vectors * beta_a * others) << where;
        EXPECT_EQ(received[Purpose::kv] + received[Purpose::activations], 0U) << where;
      }
    }
  }
}

/// A rank holds the D-th part of all but vectors. What is gathered doesn't grow with the layers: the weights of two sublayers,
/// the gradients of two at most, or a table with its gradient, one sublayer's part of a micro-batch, and what small messages wait
/// in.
TEST(DataZero3, HoldsItsPartAndTwoSublayers) {
  for (const std::size_t M : {std::size_t{1}, std::size_t{2}}) {
    std::vector<std::uint64_t> gathered;
    for (const std::size_t layers : {std::size_t{2}, std::size_t{5}}) {
      ModelCase of{.config = small_config(48, layers, 4, 2, 12, 129, 61), .batch = 8, .sequence = 9, .dtype = DType::f32};
      of.micro_batches = M;
      const Setting setting = of.setting();
      const Layout layout = shared("dp=4");
      const ModelRun run = run_model(of, layout);
      const Elements elements(of.config);
      std::uint64_t all = 0;
      for (int rank = 0; rank < 4; ++rank) {
        const CategoryBytes& peak = run.peaks[static_cast<std::size_t>(rank)];
        const std::uint64_t held = formulas::held_elements(setting, layout, 0, 0, rank);
        EXPECT_EQ(peak[Category::parameters], held * 4) << of.describe();
        EXPECT_EQ(peak[Category::gradients], held * 4) << of.describe();
        EXPECT_EQ(peak[Category::optimizer], formulas::state_elements(setting, layout, 0, 0, rank) * 8) << of.describe();
        EXPECT_EQ(peak, run.forecast[static_cast<std::size_t>(rank)]) << of.describe();
        all += held;
      }
      EXPECT_EQ(all, elements.blocks + elements.tables + 4 * elements.vectors);
      gathered.push_back(run.peaks[0][Category::communication]);
      const std::uint64_t attention = 2 * 48 * 12 * (4 + 2);
      const std::uint64_t mlp = 3 * 48 * 129;
      EXPECT_LE(gathered.back(), (2 * (attention + mlp) + (M > 1 ? mlp / 4 + 1 : 0)) * 4 + kStagingRingBytes);
    }
    EXPECT_EQ(gathered[0], gathered[1]) << M;
  }
}

/// HSDP: each of the ranks of dp has all parts, which are summed over them once a step.
TEST(Shard, CutsWhatDpSaysOverItsRanksAlone) {
  ModelCase of = cases()[2];
  of.micro_batches = 2;
  const Elements elements(of.config);
  const std::uint64_t all = elements.blocks + elements.tables + elements.vectors;
  const std::uint64_t uses = of.config.tied_embeddings ? 2 : 1;
  for (const DataSharing sharing : {DataSharing::zero1, DataSharing::zero3}) {
    const Layout layout = Layout::parse("dp=2,shard=3").with(sharing);
    const ModelRun run = run_model(of, layout);
    expect_counted(run, layout.label());
    formulas::PurposeBytes received;
    for (int rank = 0; rank < 6; ++rank) {
      const auto me = static_cast<std::size_t>(rank);
      EXPECT_EQ(run.peaks[me], run.forecast[me]) << layout.label();
      for (int i = 0; i < kPurposes; ++i) {
        const auto purpose = static_cast<Purpose>(i);
        received[purpose] += run.backward[me].received[i];
        if (purpose != Purpose::other) received[purpose] += run.forward[me].received[i];
      }
    }
    // Two groups of three, in f64; then the parts, over two ranks each.
    const std::uint64_t groups = 2 * 2 * 8;
    const std::uint64_t parts = 2 * 8;
    const std::uint64_t M = sharing == DataSharing::zero3 ? 2 : 1;
    EXPECT_EQ(received[Purpose::gradients], elements.blocks * (M * groups + parts));
    EXPECT_EQ(received[Purpose::embedding] + received[Purpose::head], elements.tables * (M * groups + parts));
    EXPECT_EQ(received[Purpose::other], elements.vectors * (groups + parts));
    EXPECT_EQ(received[Purpose::weights], sharing == DataSharing::zero1
                                              ? all * groups
                                              : (M * (2 * elements.blocks + uses * elements.tables) + elements.vectors) * groups);
  }
}

TEST(Shard, StepsAreThoseOfPlainReplicas) {
  const ModelCase of = cases()[2];
  const TemporaryFolder folder;
  const Training expected = train(of, Layout::parse("dp=4"), 2, folder.path() / "plain");
  for (const DataSharing sharing : {DataSharing::zero1, DataSharing::zero3}) {
    for (const char* text : {"dp=2,shard=2", "dp=2,shard=2,tp=2", "dp=2,shard=2,tsp=2"}) {
      const Layout layout = Layout::parse(text).with(sharing);
      const std::filesystem::path there = folder.path() / layout.label();
      const Training actual = train(of, layout, 2, there);
      for (std::size_t step = 0; step < 2; ++step) {
        EXPECT_NEAR(actual.losses[step], expected.losses[step], 1e-12 * expected.losses[step]) << layout.label();
        EXPECT_NEAR(actual.norms[step], expected.norms[step], 1e-11 * expected.norms[step]) << layout.label();
      }
      const FoundCheckpoint saved = found_in(there);
      EXPECT_TRUE(train(of, Layout::tsp(2), 2, folder.path() / "loaded" / layout.label(), saved).files == files_in(saved.folder))
          << layout.label();
    }
  }
}

TEST(Shard, OfPlainReplicasIsRefused) {
  const ModelConfig config = cases()[2].config;
  EXPECT_EQ(refused_text([&] { check_layout(config, Layout::parse("dp=2,shard=4")); }),
            "shard=4: its ranks share what --dp says, and dp is plain; try "
            "--dp zero1 or zero3, or dp=8");
}

TEST(DataZero3, CheckpointsGoOnUnderOtherLayoutsAndBack) {
  const ModelCase of = cases()[1];
  const Layout all = shared("dp=4");
  const TemporaryFolder folder;
  const Training whole = train(of, all, 4, folder.path() / "whole");
  train(of, all, 2, folder.path() / "first");
  const FoundCheckpoint saved = found_in(folder.path() / "first");
  EXPECT_EQ(saved.state.layout, all);
  const Training again = train(of, all, 4, folder.path() / "again", saved);
  EXPECT_EQ(again.losses, (std::vector<double>{whole.losses.begin() + 2, whole.losses.end()}));
  EXPECT_TRUE(again.files == whole.files);
  for (const Layout& other : {Layout::parse("dp=2"), Layout::tsp(4), shared("dp=3"), shared("dp=2,tp=2"),
                              Layout::parse("dp=4").with(DataSharing::zero1)}) {
    const std::filesystem::path there = folder.path() / other.label();
    // Loaded and saved without a step, files are the same.
    EXPECT_TRUE(train(of, other, 2, there, saved).files == files_in(saved.folder)) << other.label();
    const FoundCheckpoint back = found_in(there);
    EXPECT_TRUE(train(of, all, 4, folder.path() / ("back" + other.label()), back).files == whole.files) << other.label();
    const Training on = train(of, other, 4, folder.path() / ("on" + other.label()), saved);
    ASSERT_EQ(on.losses.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(on.losses[i], again.losses[i], 2e-2 * again.losses[i]) << other.label();
  }
}

/// A data rank without a sequence of its own joins the others' gathers. Neither dtype nor training matters to what is gathered.
TEST(DataZero3, EvaluatesFewerSequencesThanReplicas) {
  for (const std::size_t batch : {1U, 3U, 6U}) {
    for (const char* text : {"dp=4", "dp=4,tsp=2", "dp=4,sp=2"}) {
      ModelCase of = models()[0];
      of.batch = batch;
      const BatchData data(of);
      const auto evaluated = [&](const Layout& on) {
        double mean = 0;
        std::size_t rows = 0;
        std::mutex mutex;
        run_ranks(on.ranks(), [&](Context& context) {
          Rank rank(context);
          Mesh mesh(context.world(), on);
          Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
          model.parameters().fill_fresh(of.config.layers, of.seed);
          const LogitsSink sink = [&](std::span<const std::size_t> numbers, std::size_t first_id, const ConstTensor& /*tile*/) {
            const std::lock_guard lock(mutex);
            if (first_id == 0) rows += numbers.size();
          };
          const Loss loss = model.evaluate(data.view(of), &sink);
          if (rank.rank() == 0) mean = loss.mean;
        });
        EXPECT_EQ(rows, batch * of.sequence) << on.label();
        return mean;
      };
      EXPECT_EQ(evaluated(shared(text)), evaluated(Layout::parse(text))) << text << ", batch " << batch;
    }
  }
}

TEST(DataZero3, IsRefusedByNameBesideWhatDoesntKnowIt) {
  const std::string stages = shared("dp=2,pp=2").why_not();
  EXPECT_EQ(stages,
            "pp beside dp (zero3): a stage computes several micro-batches at once, and doesn't know yet when weights that dp's "
            "ranks share are needed; try --dp zero1");
  const std::string rows = shared("dp=2,zero3=2").why_not();
  EXPECT_EQ(rows,
            "zero3 beside dp (zero3): its ranks have parts of each sublayer's weights already; try --dp zero1, or tsp, beside "
            "which dp's ranks can share them");
  EXPECT_EQ(shared("dp=2,tp=2,sp=2").why_not(), "");
  EXPECT_EQ(shared("dp=1,pp=2").why_not(), "");
}

}  // namespace
}  // namespace tsprun::detail::test::data_zero3_test
