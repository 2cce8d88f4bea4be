// The forecast of memory peaks against what ranks' arenas measure, under every scheme: a training step, an evaluation, one block.
#include "layers/theory/peaks.h"

#include "core/kernels/check.h"
#include "layers/model/single_block.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <vector>

namespace tsprun::test::peaks_test {
namespace {

struct Layout {
  MeshShape shape;
  SequenceExchange exchange = SequenceExchange::gather;
};

std::vector<Layout> layouts() {
  constexpr TensorExchange kSlices = TensorExchange::sequence;
  return {{{.sequence = 1}},
          {{.sequence = 4}},
          {{.sequence = 8}},
          {{.data = 2, .sequence = 2}},
          {{.data = 2}},
          {{.scheme = Scheme::dense, .tensor = 4}},
          {{.scheme = Scheme::dense, .tensor = 8}},
          {{.scheme = Scheme::dense, .tensor = 4, .exchange = kSlices}},
          {{.scheme = Scheme::dense, .sequence = 3}},
          {{.scheme = Scheme::dense, .sequence = 4}, SequenceExchange::ring},
          {{.scheme = Scheme::dense, .sequence = 4}, SequenceExchange::ulysses},
          {{.scheme = Scheme::zero3, .sequence = 3}},
          {{.scheme = Scheme::dense, .tensor = 2, .sequence = 2}},
          {{.scheme = Scheme::dense, .tensor = 2, .sequence = 2, .sequence_outside = true}, SequenceExchange::ring},
          {{.scheme = Scheme::dense, .tensor = 2, .sequence = 2, .exchange = kSlices}, SequenceExchange::ulysses},
          {{.tensor = 2, .sequence = 2}},
          {{.data = 2, .tensor = 2, .sequence = 2, .sequence_outside = true, .exchange = kSlices}},
          {{.scheme = Scheme::zero3, .data = 2, .sequence = 2}}};
}

/// Every recomputation mode and type once.
std::vector<ModelCase> cases() {
  return {{.config = small_config(128, 2, 8, 4, 16, 321, 501), .batch = 2, .sequence = 151, .dtype = DType::f32},
          {.config = small_config(64, 3, 8, 1, 8, 203, 3001, true),
           .batch = 2,
           .sequence = 130,
           .dtype = DType::bf16,
           .recompute = Recompute::selective,
           .threads = 2},
          {.config = small_config(64, 2, 16, 16, 8, 200, 97),
           .batch = 2,
           .sequence = 300,
           .dtype = DType::f64,
           .recompute = Recompute::full,
           .kv_bucket_heads = 1}};
}

void expect_forecast(const CategoryBytes& measured, const CategoryBytes& forecast, const std::string& where) {
  for (std::size_t i = 0; i < kCategories; ++i)
    EXPECT_EQ(measured.of[i], forecast.of[i]) << name(static_cast<Category>(i)) << ", " << where;
  EXPECT_EQ(measured.total, forecast.total) << where;
}

theory::MeshSetting mesh_setting(const ModelCase& of, const MeshShape& shape) {
  return {.setting = of.setting(), .shape = shape, .exchange = of.exchange};
}

theory::PeakOptions options(const ModelCase& of, bool training) {
  return {.threads = of.threads, .kv_bucket_heads = of.kv_bucket_heads, .training = training, .passes = 1};
}

std::string describe(const ModelCase& of, const MeshShape& shape, int rank) {
  return of.describe() + ", " + test::describe(shape) + ", exchange " + std::to_string(static_cast<int>(of.exchange)) +
         ", rank " + std::to_string(rank);
}

ModelOptions model_options(const ModelCase& of, bool training) {
  return {.config = of.config,
          .dtype = of.dtype,
          .recompute = of.recompute,
          .training = training,
          .kv_bucket_heads = of.kv_bucket_heads,
          .exchange = of.exchange};
}

TEST(Peaks, OfATrainingStepAreWhatTheScheduleAllocates) {
  for (ModelCase of : cases()) {
    for (const auto& [shape, exchange] : layouts()) {
      of.exchange = exchange;
      const ModelRun run = run_model(of, shape);
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        expect_forecast(run.peaks[static_cast<std::size_t>(rank)],
                        theory::peaks(mesh_setting(of, shape), rank, BatchData(of).ids, options(of, true)),
                        describe(of, shape, rank));
      }
    }
  }
}

TEST(Peaks, OfAnEvaluationAreWhatTheScheduleAllocates) {
  for (ModelCase of : cases()) {
    if (of.recompute == Recompute::selective) continue;  // two types will do: nothing is made again
    const BatchData data(of);
    for (const auto& [shape, exchange] : layouts()) {
      of.exchange = exchange;
      run_ranks(shape.ranks(), [&, shape = shape](Context& context) {
        Rank rank(context, {.threads = of.threads, .trace = nullptr});
        Mesh mesh(context.world(), shape);
        Model model(rank, mesh, model_options(of, false));
        model.parameters().fill_fresh(of.config.layers, of.seed);
        model.evaluate(data.view(of));
        expect_forecast(rank.memory_peaks(), theory::peaks(mesh_setting(of, shape), rank.rank(), data.ids, options(of, false)),
                        describe(of, shape, rank.rank()));
      });
    }
  }
}

TEST(Peaks, OfOneBlockAreWhatTheScheduleAllocates) {
  for (ModelCase of : cases()) {
    for (const auto& [shape, exchange] : layouts()) {
      if (shape.data > 1) continue;
      of.exchange = exchange;
      for (const bool backward : {false, true}) {
        run_ranks(shape.ranks(), [&, shape = shape](Context& context) {
          Rank rank(context, {.threads = of.threads, .trace = nullptr});
          Mesh mesh(context.world(), shape);
          SingleBlock block(rank, mesh, model_options(of, backward), of.batch, of.sequence);
          block.parameters().fill_fresh(of.config.layers, of.seed);
          OwnedTensor x = block.residual(block.kept(), of.dtype, "x");
          rank.compute().fill_zero(x);
          OwnedTensor y = block.forward(std::move(x));
          if (backward) {
            y.reset();
            const OwnedTensor d = block.residual(Category::workspace, kernels::summed_in(of.dtype), "dy");
            rank.compute().fill_zero(d);
            block.backward(d);
          }
          expect_forecast(rank.memory_peaks(), theory::block_peaks(mesh_setting(of, shape), rank.rank(), options(of, backward)),
                          describe(of, shape, rank.rank()));
        });
      }
    }
  }
}

TEST(Peaks, OfASingleBlockWithBiasesAreRefused) {
  const ModelCase of{.config = small_gpt2_config(1, 8, 3, 21, 40), .batch = 1, .sequence = 8};
  try {
    theory::block_peaks(mesh_setting(of, MeshShape::tsp(2)), 0);
    ADD_FAILURE() << "it was computed";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    EXPECT_NE(std::string(error.what()).find("only models of Llama's kind"), std::string::npos) << error.what();
  }
}

TEST(Peaks, OfALayoutThatCannotBeAreRefused) {
  ModelCase of{.config = small_config(64, 1, 8, 8, 8, 64, 64), .batch = 1, .sequence = 8};
  EXPECT_THROW(theory::peaks(mesh_setting(of, {.sequence = 3}), 0), Error);
}

}  // namespace
}  // namespace tsprun::test::peaks_test
