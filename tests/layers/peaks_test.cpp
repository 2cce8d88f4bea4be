// The forecast of memory peaks against what ranks' arenas measure, under every scheme: a training step, an evaluation, one block.
#include "layers/theory/peaks.h"

#include "core/kernels/check.h"
#include "layers/model/single_block.h"
#include "layers/theory/layouts.h"
#include "tests/layers/model_run.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tsprun::detail::test::peaks_test {
namespace {

std::vector<Layout> layouts() {
  constexpr TensorExchange kSlices = TensorExchange::sequence;
  return each_axis(4, {Layout::parse("tsp=1"), Layout::parse("tsp=8"), Layout::parse("dp=2,tsp=2"), Layout::parse("tp=8"),
                       Layout::parse("sp=3"), Layout::parse("zero3=3"), Layout::parse("tp=2,sp=2"),
                       Layout::parse("sp=2,tp=2").with(SequenceExchange::ring),
                       Layout::parse("tp=2,sp=2").with(kSlices).with(SequenceExchange::ulysses), Layout::parse("tp=2,tsp=2"),
                       Layout::parse("dp=2,tsp=2,tp=2").with(kSlices), Layout::parse("dp=2,zero3=2")});
}

/// Every recomputation mode and type once.
std::vector<ModelCase> cases() {
  return {{.config = small_config(128, 2, 8, 4, 16, 321, 501), .batch = 4, .sequence = 151, .dtype = DType::f32},
          {.config = small_config(64, 3, 8, 1, 8, 203, 1001, true),
           .batch = 4,
           .sequence = 130,
           .dtype = DType::bf16,
           .recompute = Recompute::selective,
           .threads = 2},
          {.config = small_config(64, 2, 16, 16, 8, 200, 97),
           .batch = 4,
           .sequence = 150,
           .dtype = DType::f64,
           .recompute = Recompute::full,
           .kv_bucket_heads = 1},
          {.config = with_windows({9, 0, 100}, small_config(64, 3, 8, 4, 8, 40, 97)),
           .batch = 4,
           .sequence = 131,
           .dtype = DType::bf16,
           .recompute = Recompute::full}};
}

void expect_forecast(const CategoryBytes& measured, const CategoryBytes& forecast, const std::string& where) {
  for (std::size_t i = 0; i < kCategories; ++i)
    EXPECT_EQ(measured.of[i], forecast.of[i]) << name(static_cast<Category>(i)) << ", " << where;
  EXPECT_EQ(measured.total, forecast.total) << where;
}

theory::MeshSetting mesh_setting(const ModelCase& of, const Layout& layout) {
  return {.setting = of.setting(), .layout = layout};
}

theory::PeakOptions options(const ModelCase& of, bool training) {
  return {.threads = of.threads, .kv_bucket_heads = of.kv_bucket_heads, .training = training, .passes = 1};
}

std::string describe(const ModelCase& of, const Layout& layout, int rank) {
  return of.describe() + ", " + layout.label() + ", rank " + std::to_string(rank);
}

ModelOptions model_options(const ModelCase& of, bool training) {
  return {.config = of.config,
          .dtype = of.dtype,
          .recompute = of.recompute,
          .training = training,
          .kv_bucket_heads = of.kv_bucket_heads};
}

TEST(Peaks, OfATrainingStepAreWhatTheScheduleAllocates) {
  for (const ModelCase& of : cases()) {
    for (const Layout& layout : layouts()) {
      const ModelRun run = run_model(of, layout);
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        expect_forecast(run.peaks[static_cast<std::size_t>(rank)],
                        theory::peaks(mesh_setting(of, layout), rank, BatchData(of).ids, options(of, true)),
                        describe(of, layout, rank));
      }
    }
  }
}

TEST(Peaks, OfAnEvaluationAreWhatTheScheduleAllocates) {
  for (ModelCase of : cases()) {
    if (of.recompute == Recompute::selective) continue;  // two types will do: nothing is made again
    const BatchData data(of);
    for (const Layout& layout : layouts()) {
      run_ranks(layout.ranks(), [&](Context& context) {
        Rank rank(context, {.threads = of.threads, .trace = nullptr});
        Mesh mesh(context.world(), layout);
        Model model(rank, mesh, model_options(of, false));
        model.parameters().fill_fresh(of.config.layers, of.seed);
        model.evaluate(data.view(of));
        expect_forecast(rank.memory_peaks(), theory::peaks(mesh_setting(of, layout), rank.rank(), data.ids, options(of, false)),
                        describe(of, layout, rank.rank()));
      });
    }
  }
}

TEST(Peaks, OfOneBlockAreWhatTheScheduleAllocates) {
  for (ModelCase of : cases()) {
    for (const Layout& layout : layouts()) {
      if (layout.data() > 1) continue;
      for (const bool backward : {false, true}) {
        run_ranks(layout.ranks(), [&](Context& context) {
          Rank rank(context, {.threads = of.threads, .trace = nullptr});
          Mesh mesh(context.world(), layout);
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
          expect_forecast(rank.memory_peaks(),
                          theory::block_counts(mesh_setting(of, layout), rank.rank(), options(of, backward)).memory,
                          describe(of, layout, rank.rank()));
        });
      }
    }
  }
}

TEST(Peaks, CountTheScratchOfFilesThatAreReadAndWritten) {
  // With few tokens it is the largest part of the workspace: of W_O and W_2, of which the store has columns.
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const ModelCase of{.config = small_config(128, 1, 8, 2, 16, 352, 97), .batch = 2, .sequence = 2, .dtype = dtype};
    const DType sums = kernels::summed_in(dtype);
    for (const char* text : {"tsp=1", "tsp=2", "sp=2", "zero3=2", "tp=2", "tp=2,sp=2"}) {
      const Layout layout = Layout::parse(text);
      const auto save = [&](Rank& rank, const ParameterStore& store, Tensor ParameterPart::*member) {
        for (const ParameterPart& part : store.parts()) {
          if (part.plan.counted)
            for_natural_blocks(rank, part.plan, part.*member, [](const safetensors::Rectangle&, ConstBuffer) {});
        }
      };
      const auto load = [&](Rank& rank, const ParameterStore& store) {
        for (const ParameterPart& part : store.parts()) {
          const Tensor& widest = dtype == sums ? part.value : part.master;
          fill_natural_blocks(rank, part.plan, widest, [](const safetensors::Rectangle&, Buffer) {});
        }
      };
      run_ranks(layout.ranks(), [&](Context& context) {
        Rank rank(context);
        Mesh mesh(context.world(), layout);
        SingleBlock block(rank, mesh, model_options(of, true), of.batch, of.sequence);
        block.parameters().fill_fresh(of.config.layers, of.seed);
        load(rank, block.parameters());
        OwnedTensor x = block.residual(block.kept(), of.dtype, "x");
        rank.compute().fill_zero(x);
        block.forward(std::move(x)).reset();
        const OwnedTensor d = block.residual(Category::workspace, sums, "dy");
        rank.compute().fill_zero(d);
        block.backward(d);
        save(rank, block.parameters(), &ParameterPart::gradient);
        theory::PeakOptions counted = options(of, true);
        counted.files = true;
        expect_forecast(rank.memory_peaks(), theory::block_counts(mesh_setting(of, layout), rank.rank(), counted).memory,
                        "block, " + describe(of, layout, rank.rank()));
      });
      const BatchData data(of);
      run_ranks(layout.ranks(), [&](Context& context) {
        Rank rank(context);
        Mesh mesh(context.world(), layout);
        Model model(rank, mesh, model_options(of, true));
        model.parameters().fill_fresh(of.config.layers, of.seed);
        load(rank, model.parameters());
        model.forward_backward(data.view(of));
        model.update({}, model.gradient_norm());
        save(rank, model.parameters(), &ParameterPart::value);
        save(rank, model.parameters(), &ParameterPart::m);
        theory::PeakOptions counted = options(of, true);
        counted.files = true;
        theory::RunPeaks run(mesh_setting(of, layout), rank.rank(), counted);
        run.pass(data.view(of));
        run.save();
        expect_forecast(rank.memory_peaks(), run.peaks(), "model, " + describe(of, layout, rank.rank()));
      });
    }
  }
}

TEST(Peaks, CountTheCopiesOfAOneShotAllReduceOfAnySize) {
  const ModelCase of{.config = small_config(64, 2, 8, 4, 8, 176, 97),
                     .batch = 1,
                     .sequence = 300,
                     .dtype = DType::f32,
                     .algorithms = "all_reduce=one_shot"};
  for (const char* text : {"sp=2", "tp=2", "tp=2,sp=2", "dp=2"}) {
    const Layout layout = Layout::parse(text);
    ModelCase each = of;
    if (layout.data() > 1) each.batch = 2;
    const ModelRun run = run_model(each, layout);
    theory::PeakOptions counted = options(each, true);
    counted.like.algorithms = each.algorithms;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      expect_forecast(run.peaks[static_cast<std::size_t>(rank)],
                      theory::peaks(mesh_setting(each, layout), rank, BatchData(each).ids, counted),
                      describe(each, layout, rank));
    }
  }
}

/// The search asks the fullest rank alone. Windows show ranks in the middle most keys; which of them has most is known but for
/// what is held together with them at that moment.
TEST(Peaks, AreLargestAtTheFullestRankWhereWindowsHideKeysButForLittle) {
  for (const std::size_t window : {130U, 500U, 900U}) {
    for (const char* layout : {"sp=8", "tsp=8", "zero3=8", "tp=2,sp=4"}) {
      const ModelCase of{.config = with_windows({window, window}, small_config(32, 2, 8, 4, 4, 16, 40)),
                         .batch = 2,
                         .sequence = 2048,
                         .dtype = DType::f32};
      const theory::MeshSetting mesh = mesh_setting(of, Layout::parse(layout));
      std::uint64_t largest = 0;
      for (int rank = 0; rank < mesh.layout.ranks(); ++rank)
        largest = std::max(largest, theory::peaks(mesh, rank, {}, options(of, true)).total);
      constexpr std::uint64_t kOfAThousand = 1004;
      const std::uint64_t fullest = theory::peaks(mesh, theory::fullest(mesh), {}, options(of, true)).total;
      EXPECT_GE(fullest * kOfAThousand / 1000, largest) << layout << ", W " << window;
    }
  }
}

/// Where norms span all heads of q and k, W_O comes turn by turn after all projections: never more of it than where each head is
/// normed by itself. In the backward pass all turns' weights stay.
TEST(Peaks, OfAnEvaluationHoldFewShardsOfWeightsWhereNormsSpanAllHeads) {
  const auto communicated = [](QueryKeyNorm norm, bool training) {
    ModelConfig config = small_config(256, 1, 8, 8, 32, 16, 16);
    config.specs = LayerSpec{.query_key_norm = norm};
    const ModelCase of{.config = config, .batch = 1, .sequence = 8, .dtype = DType::f32};
    return theory::peaks(mesh_setting(of, Layout::tsp(8)), 3, {}, options(of, training))[Category::communication];
  };
  EXPECT_LE(communicated(QueryKeyNorm::rows, false), communicated(QueryKeyNorm::heads, false));
  EXPECT_GT(communicated(QueryKeyNorm::rows, true), communicated(QueryKeyNorm::heads, true));
}

TEST(Peaks, OfASingleBlockWithBiasesAreRefused) {
  const ModelCase of{.config = small_gpt2_config(1, 8, 3, 21, 40), .batch = 1, .sequence = 8};
  try {
    theory::block_counts(mesh_setting(of, Layout::tsp(2)), 0);
    ADD_FAILURE() << "it was computed";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    EXPECT_NE(std::string(error.what()).find("only models of Llama's kind"), std::string::npos) << error.what();
  }
}

TEST(Peaks, OfALayoutThatCannotBeAreRefused) {
  ModelCase of{.config = small_config(64, 1, 8, 8, 8, 64, 64), .batch = 1, .sequence = 8};
  EXPECT_THROW(theory::peaks(mesh_setting(of, Layout::parse("tsp=3")), 0), Error);
}

}  // namespace
}  // namespace tsprun::detail::test::peaks_test
