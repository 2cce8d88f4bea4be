// Programs: what a phantom records is what the real rank with the same arguments records, item by item, for every strategy.
#include "core/kernels/check.h"
#include "core/program/recorder.h"
#include "layers/model/decode.h"
#include "layers/model/single_block.h"
#include "tests/layers/model_run.h"
#include "tests/support/program_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace tsprun::detail::test::program_test {
namespace {

std::vector<Layout> layouts() {
  constexpr TensorExchange kSlices = TensorExchange::sequence;
  return {Layout::parse("tsp=1"),
          Layout::parse("tsp=4"),
          Layout::parse("dp=2,tsp=2"),
          Layout::parse("tp=4"),
          Layout::parse("tp=4").with(kSlices),
          Layout::parse("sp=3"),
          Layout::parse("sp=4").with(SequenceExchange::ring),
          Layout::parse("sp=4").with(SequenceExchange::ulysses),
          Layout::parse("zero3=3"),
          Layout::parse("tp=2,sp=2"),
          Layout::parse("tp=2,sp=2").with(kSlices).with(SequenceExchange::ulysses),
          Layout::parse("tp=2,tsp=2"),
          Layout::parse("dp=2,zero3=2")};
}

/// Every recomputation mode, type and kind of model once.
std::vector<ModelCase> cases() {
  return {{.config = small_config(64, 2, 8, 4, 8, 61, 101), .batch = 2, .sequence = 47, .dtype = DType::f32},
          {.config = small_config(64, 2, 8, 8, 8, 60, 97, true),
           .batch = 2,
           .sequence = 33,
           .dtype = DType::bf16,
           .recompute = Recompute::selective,
           .threads = 2},
          {.config = small_gpt2_config(2, 8, 8, 60, 97),
           .batch = 2,
           .sequence = 40,
           .dtype = DType::f64,
           .recompute = Recompute::full,
           .kv_bucket_heads = 1},
          {.config = with_windows({5, 0, 30}, small_config(64, 3, 8, 2, 8, 40, 97)),
           .batch = 2,
           .sequence = 45,
           .dtype = DType::f32,
           .recompute = Recompute::full}};
}

ModelOptions model_options(const ModelCase& of, bool training) {
  return {.config = of.config,
          .dtype = of.dtype,
          .recompute = of.recompute,
          .training = training,
          .kv_bucket_heads = of.kv_bucket_heads};
}

/// Work of a rank between its making and its end; `record` returns the program of what it is given.
using Record = std::function<Program(const std::function<void()>&)>;
using Body = std::function<Program(Rank& rank, Mesh& mesh, const Record& record)>;

Program record_on(Context& context, const Layout& layout, std::size_t threads, const Body& body) {
  Recorder recorder;
  Rank rank(context, {.threads = threads, .recorder = &recorder});
  Mesh mesh(context.world(), layout);
  return body(rank, mesh, [&](const std::function<void()>& pass) {
    recorder.begin(heap_of(context).use());
    pass();
    return recorder.end();
  });
}

/// Runs `body` on real ranks and on phantoms of each, and compares.
void expect_equal_programs(const ModelCase& of, const Layout& layout, const Body& body, const RankOptions& options = {}) {
  run_ranks(
      layout.ranks(),
      [&](Context& context) {
        const Program real = record_on(context, layout, of.threads, body);
        Context imagined = make_phantom(context.rank(), context.size(), likeness(context));
        const Program phantom = record_on(imagined, layout, of.threads, body);
        EXPECT_EQ(first_difference(real, phantom), "") << of.describe() << ", " << layout.label() << ", rank " << context.rank();
        const auto kernels = std::ranges::count(real.items, ItemKind::kernel, &ProgramItem::kind);
        EXPECT_GT(kernels, 0);
      },
      options);
}

TEST(Program, OfATrainingStepIsThatOfAPhantom) {
  for (const ModelCase& of : cases()) {
    const BatchData data(of);
    for (const Layout& layout : layouts()) {
      expect_equal_programs(of, layout, [&](Rank& rank, Mesh& mesh, const Record& record) {
        Model model(rank, mesh, model_options(of, true));
        model.parameters().fill_fresh(of.config.layers, of.seed);
        const auto step = [&] {
          model.forward_backward(data.view(of));
          model.update({}, model.gradient_norm());
        };
        step();  // buffers that are kept exist from the second step on
        return record(step);
      });
    }
  }
}

TEST(Program, OfAnEvaluationIsThatOfAPhantom) {
  for (const ModelCase& of : cases()) {
    const BatchData data(of);
    for (const Layout& layout : layouts()) {
      expect_equal_programs(of, layout, [&](Rank& rank, Mesh& mesh, const Record& record) {
        Model model(rank, mesh, model_options(of, false));
        model.parameters().fill_fresh(of.config.layers, of.seed);
        return record([&] { model.evaluate(data.view(of)); });
      });
    }
  }
}

TEST(Program, OfOneBlockIsThatOfAPhantom) {
  for (const ModelCase& of : cases()) {
    if (!of.config.rotary_positions()) continue;  // single blocks have no biases
    for (const Layout& layout : layouts()) {
      if (layout.data() > 1) continue;
      expect_equal_programs(of, layout, [&](Rank& rank, Mesh& mesh, const Record& record) {
        SingleBlock block(rank, mesh, model_options(of, true), of.batch, of.sequence);
        block.parameters().fill_fresh(of.config.layers, of.seed);
        return record([&] {
          OwnedTensor y = block.forward(block.residual(block.kept(), of.dtype, "x"));
          y.reset();
          block.backward(block.residual(Category::workspace, kernels::summed_in(of.dtype), "dy"));
        });
      });
    }
  }
}

TEST(Program, OfDecodingIsThatOfAPhantom) {
  const ModelCase of = cases().front();
  const std::vector<Token> prompt = {5, 17, 3, 96, 44, 2, 71, 8};
  for (const Layout& layout : layouts()) {
    if (!Decoder::why_not(layout).empty()) continue;
    expect_equal_programs(of, layout, [&](Rank& rank, Mesh& mesh, const Record& record) {
      Model model(rank, mesh, model_options(of, false));
      model.parameters().fill_fresh(of.config.layers, of.seed);
      return record([&] {
        const std::vector<std::vector<Token>> prompts = {prompt, {9, 1}};
        Decoder decoder(rank, model, {prompt.size() + 3, 5});
        decoder.prompt(prompts);
        for (const Token id : {7, 30, 12}) decoder.step(std::vector<Token>{id, 5});
      });
    });
  }
}

// Ranks of different nodes choose other algorithms and take other memory, which a phantom knows.
TEST(Program, OfRanksOfSeveralNodesIsThatOfAPhantom) {
  const ModelCase of = cases().front();
  const BatchData data(of);
  for (const Layout& layout : {Layout::parse("tsp=4"), Layout::parse("tp=2,sp=2"), Layout::parse("dp=2,tsp=2")}) {
    for (const bool reassociate : {false, true}) {
      expect_equal_programs(of, layout,
                            [&](Rank& rank, Mesh& mesh, const Record& record) {
                              Model model(rank, mesh, model_options(of, true));
                              model.parameters().fill_fresh(of.config.layers, of.seed);
                              return record([&] { model.forward_backward(data.view(of)); });
                            },
                            {.nodes = 2, .reassociate = reassociate});
    }
  }
}

TEST(Program, SaysWhereItDiffersFromAnother) {
  Program one;
  one.costs = {{.kernel = "gemm", .sizes = {2, 3, 4}, .flops = 48, .bytes_read = 80, .bytes_written = 24}};
  one.items = {{.kind = ItemKind::kernel}, {.kind = ItemKind::wait, .stream = 1, .amount = 2}};
  Program other = one;
  EXPECT_EQ(first_difference(one, other), "");
  other.items[1].amount = 3;
  EXPECT_EQ(first_difference(one, other),
            "item 1 of 2 and 2: \"wait for #2 on stream weights\" and \"wait for #3 on stream weights\", after\n"
            "  gemm f32 to f32 [2, 3, 4], 48 FLOPs, 80 B read, 24 B written");
  other.items.pop_back();
  EXPECT_EQ(first_difference(one, other), "2 and 1 items; the next is \"wait for #2 on stream weights\"");
}

}  // namespace
}  // namespace tsprun::detail::test::program_test
