// Forecasts of batches whose sequences pack documents: programs, FLOPs and memory are those of real ranks whose ids have these
// documents, pairs are as many as counting them one by one gives, and time follows them; bytes don't change.
#include "core/program/recorder.h"
#include "layers/layout/document_lengths.h"
#include "layers/theory/flops.h"
#include "layers/theory/kernel_price.h"
#include "layers/theory/lone_walk.h"
#include "layers/theory/search.h"
#include "layers/theory/simulate.h"
#include "layers/theory/step_counts.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"
#include "tests/support/program_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::test::document_forecasts_test {
namespace {

using Lengths = std::vector<std::uint32_t>;

constexpr Token kEnd = 1;

/// Returns random lengths of documents that are `sequence` tokens together.
Lengths random_lengths(std::mt19937& random, std::size_t sequence) {
  Lengths lengths;
  while (sequence > 0) {
    const std::size_t most = random() % 3 == 0 ? 3 : std::max<std::size_t>(1, sequence);
    lengths.push_back(static_cast<std::uint32_t>(1 + random() % std::min(sequence, most)));
    sequence -= lengths.back();
  }
  return lengths;
}

/// Returns the pairs on rank `rank` of `ranks`, token by token: chunk c has ⌊S/2D⌋ tokens and one more if c < S mod 2D, and the
/// rank has chunks `rank` and 2D − 1 − `rank`.
std::size_t counted_pairs(const Lengths& lengths, int ranks, int rank, std::size_t window) {
  std::vector<std::size_t> starts;
  for (const std::uint32_t length : lengths) starts.insert(starts.end(), length, starts.size());
  const auto chunks = 2 * static_cast<std::size_t>(ranks);
  std::size_t pairs = 0;
  for (std::size_t chunk = 0, i = 0; chunk < chunks; ++chunk) {
    const std::size_t end = i + starts.size() / chunks + (chunk < starts.size() % chunks ? 1 : 0);
    for (; i < end; ++i) {
      if (chunk != static_cast<std::size_t>(rank) && chunk != chunks - 1 - static_cast<std::size_t>(rank)) continue;
      for (std::size_t j = starts[i]; j <= i; ++j) pairs += window == 0 || i < j + window ? 1U : 0U;
    }
  }
  return pairs;
}

TEST(DocumentForecasts, CountThePairsOfEachRank) {
  std::mt19937 random(11);
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t sequence : {1U, 7U, 40U, 61U}) {
      for (int i = 0; i < 10; ++i) {
        const Lengths lengths = random_lengths(random, sequence);
        for (const std::size_t window : {0U, 1U, 6U, 100U}) {
          for (int rank = 0; rank < ranks; ++rank) {
            EXPECT_EQ(Zigzag(sequence, ranks).attention_pairs(rank, window, lengths), counted_pairs(lengths, ranks, rank, window))
                << print_documents(lengths) << ", rank " << rank << " of " << ranks << ", window " << window;
          }
        }
      }
    }
  }
}

// --- programs ------------------------------------------------------------------------------------------------------------------

/// A case and the documents of each of its sequences.
struct PackedCase {
  ModelCase of;
  Lengths lengths;

  Setting setting() const {
    Setting setting = of.setting();
    setting.documents = lengths;
    return setting;
  }
};

std::vector<PackedCase> cases() {
  return {{{.config = small_config(32, 2, 4, 2, 8, 12, 31), .batch = 4, .sequence = 47}, {20, 1, 1, 9, 16}},
          {{.config = with_windows({5, 0, 30}, small_config(32, 3, 4, 4, 8, 12, 31)),
            .batch = 4,
            .sequence = 45,
            .dtype = DType::f32,
            .recompute = Recompute::selective},
           {3, 33, 9}},
          {{.config = small_gpt2_config(2, 4, 8, 12, 31),
            .batch = 4,
            .sequence = 40,
            .dtype = DType::bf16,
            .recompute = Recompute::full,
            .kv_bucket_heads = 1,
            .micro_batches = 2},
           {40}}};
}

std::vector<Layout> layouts() {
  constexpr TensorExchange kSlices = TensorExchange::sequence;
  return {Layout::parse("tsp=1"),
          Layout::parse("tsp=4"),
          Layout::parse("dp=2,tsp=2"),
          Layout::parse("tp=2").with(kSlices),
          Layout::parse("sp=3"),
          Layout::parse("sp=4").with(SequenceExchange::ring),
          Layout::parse("sp=4").with(SequenceExchange::ulysses),
          Layout::parse("zero3=3"),
          Layout::parse("tp=2,sp=2").with(SequenceExchange::ring),
          Layout::parse("tp=2,tsp=2")};
}

/// Returns a batch whose ids end each document with kEnd, and have it nowhere else.
BatchData data_of(const PackedCase& packed) {
  BatchData data(packed.of);
  for (Token& id : data.ids) id = id == kEnd ? kEnd + 1 : id;
  for (std::size_t at = 0, number = 0; at < data.ids.size(); ++number) {
    at += packed.lengths[number % packed.lengths.size()];
    data.ids[at - 1] = kEnd;
  }
  return data;
}

/// A training step that was recorded, and the peaks of its run.
struct Recorded {
  Program program;
  CategoryBytes peaks;
};

Recorded record(Context& context, const ModelCase& of, const Layout& layout, const TokenBatch& tokens) {
  Recorder recorder;
  Rank rank(context, {.threads = 1, .recorder = &recorder});
  Mesh mesh(context.world(), layout);
  Model model(rank, mesh,
              {.config = of.config,
               .dtype = of.dtype,
               .recompute = of.recompute,
               .training = true,
               .kv_bucket_heads = of.kv_bucket_heads});
  model.parameters().fill_fresh(of.config.layers, of.seed);
  const auto step = [&] {
    model.forward_backward(tokens);
    model.update({}, model.gradient_norm());
  };
  step();
  recorder.begin(heap_of(context).use());
  step();
  return {.program = recorder.end(), .peaks = rank.memory_peaks()};
}

/// Returns the FLOPs of a kernel in a program.
double flops_of(const Program& program, std::string_view kernel) {
  double sum = 0;
  for (const ProgramItem& item : program.items) {
    if (item.kind == ItemKind::kernel && program.costs[item.index].kernel == kernel) sum += program.costs[item.index].flops;
  }
  return sum;
}

/// Returns the FLOPs of attention's forward pass in all layers, for all ranks together.
double counted_flops(const PackedCase& packed) {
  const ModelConfig& config = packed.of.config;
  std::size_t pairs = 0;
  for (std::size_t layer = 0; layer < config.layers; ++layer)
    pairs += counted_pairs(packed.lengths, 1, 0, config.layer(layer).window);
  return 4.0 * static_cast<double>(pairs * packed.of.batch * config.query_heads * config.head_dim);
}

/// Records the step of real ranks with these tokens, and expects of phantoms with each of `forecasts` the same.
void expect_programs(const PackedCase& packed, const Layout& layout, const TokenBatch& real_tokens,
                     std::initializer_list<TokenBatch> forecasts) {
  const std::string where = packed.of.describe() + ", " + layout.label();
  std::mutex mutex;
  double forward = 0;
  double backward = 0;
  run_ranks(layout.ranks(), [&](Context& context) {
    const Recorded real = record(context, packed.of, layout, real_tokens);
    for (const TokenBatch& tokens : forecasts) {
      Context imagined = make_phantom(context.rank(), context.size(), likeness(context));
      const Recorded phantom = record(imagined, packed.of, layout, tokens);
      EXPECT_EQ(first_difference(real.program, phantom.program), "") << where << ", rank " << context.rank();
      EXPECT_EQ(real.peaks, phantom.peaks) << where << ", rank " << context.rank();
    }
    const std::lock_guard lock(mutex);
    forward += flops_of(real.program, "flash forward");
    backward += flops_of(real.program, "flash backward");
  });
  const double once = counted_flops(packed);
  EXPECT_EQ(forward, packed.of.recompute == Recompute::full ? 2 * once : once) << where;
  EXPECT_EQ(backward, 2.5 * once) << where;
}

TEST(DocumentForecasts, AreTheProgramsOfRealRanks) {
  for (const PackedCase& packed : cases()) {
    const BatchData data = data_of(packed);
    TokenBatch by_ids = data.view(packed.of);
    by_ids.document_end = kEnd;
    TokenBatch by_lengths = data.view(packed.of);
    by_lengths.documents = packed.lengths;
    for (const Layout& layout : layouts()) {
      expect_programs(packed, layout, by_ids, {by_ids, by_lengths});
      expect_programs(packed, layout, by_lengths, {by_ids});
    }
  }
}

TEST(DocumentForecasts, KeepTheLossOfIdsThatHaveTheDocuments) {
  for (const char* layout : {"tsp=1", "sp=3"}) {
    const PackedCase packed = cases().front();
    const BatchData data = data_of(packed);
    run_ranks(Layout::parse(layout).ranks(), [&](Context& context) {
      Rank rank(context);
      Mesh mesh(context.world(), Layout::parse(layout));
      Model model(rank, mesh, {.config = packed.of.config, .dtype = packed.of.dtype});
      model.parameters().fill_fresh(packed.of.config.layers, packed.of.seed);
      TokenBatch tokens = data.view(packed.of);
      const double whole = model.evaluate(tokens).mean;
      tokens.documents = packed.lengths;
      const double by_lengths = model.evaluate(tokens).mean;
      tokens.documents = {};
      tokens.document_end = kEnd;
      EXPECT_EQ(model.evaluate(tokens).mean, by_lengths);
      EXPECT_NE(whole, by_lengths);
      tokens.document_end = {};
      const Lengths few = {20, 26};
      tokens.documents = few;
      EXPECT_REFUSED(model.evaluate(tokens), "46 tokens together in sequences of 47");
    });
  }
}

// --- counts --------------------------------------------------------------------------------------------------------------------

/// Sizes that divide evenly over up to eight ranks. With a window documents are cut where sequences are, else they are dealt.
Setting even_setting(const Lengths& lengths, Recompute recompute = Recompute::none, std::size_t window = 12) {
  const ModelCase of{.config = with_windows({0, window}, small_config(64, 2, 8, 4, 8, 96, 128)),
                     .batch = 8,
                     .sequence = 64,
                     .dtype = DType::bf16,
                     .recompute = recompute};
  Setting setting = of.setting();
  setting.documents = lengths;
  return setting;
}

TEST(DocumentForecasts, OfFlopsAreThoseOfTheFormulasAndOfBytesThoseWithoutDocuments) {
  const Lengths lengths = {33, 1, 7, 23};
  for (const int ranks : {2, 4, 8}) {
    for (const Layout& layout : theory::all_layouts(ranks)) {
      for (const auto& [recompute, window] : {std::pair<Recompute, std::size_t>{Recompute::none, 12}, {Recompute::full, 0}}) {
        const Setting setting = even_setting(lengths, recompute, window);
        const theory::StepCounts counts = theory::step_counts({setting, layout});
        const theory::StepFlops formula = theory::most_flops(setting, layout);
        const auto expect_near = [&](double counted, double expected) {
          EXPECT_NEAR(counted, expected, 1e-12 * expected) << layout.label();
        };
        expect_near(counts.flops.forward.attention_core, formula.forward.attention_core);
        expect_near(counts.flops.backward.attention_core, formula.backward.attention_core);
        expect_near(counts.flops.total(), formula.total());
        const theory::StepCounts whole = theory::step_counts({even_setting({}, recompute, window), layout});
        EXPECT_EQ(counts.traffic.forward, whole.traffic.forward) << layout.label();
        EXPECT_EQ(counts.traffic.backward, whole.traffic.backward) << layout.label();
        EXPECT_LT(counts.flops.total(), whole.flops.total()) << layout.label();
      }
    }
  }
}

TEST(DocumentForecasts, TellHowUnlikeTheSharesOfRanksAre) {
  Setting setting = even_setting({33, 1, 7, 23});
  double most = 0;
  double all = 0;
  for (int rank = 0; rank < 4; ++rank) {
    double pairs = 0;
    for (const std::size_t window : {0U, 12U}) pairs += static_cast<double>(counted_pairs(setting.documents, 4, rank, window));
    most = std::max(most, pairs);
    all += pairs;
  }
  for (const char* layout : {"tsp=4", "sp=4", "zero3=4", "dp=2,tsp=4"})
    EXPECT_DOUBLE_EQ(theory::attention_imbalance(setting, Layout::parse(layout)), 4 * most / all) << layout;
  EXPECT_GT(most, 1.05 * all / 4);
  Setting dealt = even_setting({9000, 4096, 3288}, Recompute::none, 0);
  dealt.sequence = 16384;
  EXPECT_LT(theory::attention_imbalance(dealt, Layout::parse("tsp=4")), 1.01);
  EXPECT_EQ(theory::attention_imbalance(setting, Layout::parse("tp=4")), 1);
  EXPECT_EQ(theory::attention_imbalance(setting, Layout::parse("sp=4").with(SequenceExchange::ulysses)), 1);
}

/// With heads that are most of the model, memory peaks in attention. All chunks have the first document in common, and those of
/// two ranks none of the others.
TEST(DocumentForecasts, OfMemoryDoNotDependOnWhatTheDocumentsAre) {
  const ModelCase of{.config = small_config(8, 2, 8, 8, 16, 8, 9), .batch = 2, .sequence = 64, .dtype = DType::bf16};
  const Layout layout = Layout::parse("sp=4").with(SequenceExchange::ring);
  for (const bool training : {false, true}) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const auto peaks_of = [&](const Lengths& lengths) {
        theory::RunPeaks run({.setting = of.setting(), .layout = layout}, rank, {.training = training});
        TokenBatch tokens;
        tokens.batch = of.batch;
        tokens.sequence = of.sequence;
        tokens.documents = lengths;
        for (int pass = 0; pass < 2; ++pass) run.pass(tokens);
        return run.peaks();
      };
      const CategoryBytes whole = peaks_of({64});
      EXPECT_EQ(peaks_of(Lengths(8, 8)), whole) << "rank " << rank << ", training " << training;
      EXPECT_EQ(peaks_of(Lengths(64, 1)), whole) << "rank " << rank << ", training " << training;
    }
  }
}

// --- time ----------------------------------------------------------------------------------------------------------------------

/// Sequences whose attention takes most of the time.
theory::MeshSetting long_setting(const std::string& layout, const Lengths& lengths, std::size_t window = 0) {
  const ModelCase of{.config = with_windows({0, window}, small_config(256, 2, 8, 8, 32, 512, 1024)),
                     .batch = 1,
                     .sequence = 16384,
                     .dtype = DType::bf16};
  Setting setting = of.setting();
  setting.documents = lengths;
  return {.setting = setting, .layout = Layout::parse(layout)};
}

TEST(DocumentForecasts, PlayTheKernelsOfTheDocuments) {
  const theory::Machine machine = theory::find_machine("h100");
  const Lengths lengths = {9000, 4096, 3288};
  for (const char* layout : {"tsp=4", "sp=4", "tp=2,sp=2"}) {
    const theory::MeshSetting of = long_setting(layout, lengths);
    const theory::Simulated played = theory::simulate(of, machine, {});
    const theory::Simulated whole = theory::simulate(long_setting(layout, {}), machine, {});
    double expected = 0;
    for (int rank = 0; rank < of.layout.ranks(); ++rank)
      expected += theory::step_flops(of.setting, of.layout, theory::place_of(of.layout, rank)).total();
    EXPECT_NEAR(played.flops, expected, 1e-9 * expected) << layout;
    EXPECT_EQ(played.received, whole.received) << layout;
    EXPECT_LT(played.seconds, whole.seconds) << layout;
    EXPECT_LT(played.compute_seconds, whole.compute_seconds) << layout;
  }
}

/// A window keeps documents from being dealt. Of chunks of 2048 tokens the third rank has the last parts of two documents of
/// three chunks, and is waited for.
TEST(DocumentForecasts, ModelTheTimeOfTheRankThatAttendsMost) {
  const theory::Machine machine = theory::find_machine("h100");
  const theory::SearchOptions options{.memory_bytes = std::uint64_t{80} << 30, .dtype = DType::bf16};
  const Lengths lengths = {6144, 6144, 4096};
  const theory::MeshSetting of = long_setting("sp=4", lengths, 512);
  const theory::Candidate judged = theory::judge(of.setting, of.layout, machine, options);
  double slowest = 0;
  double fastest = 1e9;
  for (int rank = 0; rank < 4; ++rank) {
    theory::PeakOptions how;
    how.pieces = machine.pieces;
    const double seconds = theory::walk(theory::record_step(of, rank, how, 2, true).program, machine, {}).seconds;
    slowest = std::max(slowest, seconds);
    fastest = std::min(fastest, seconds);
  }
  EXPECT_LT(fastest, 0.99 * slowest);
  EXPECT_DOUBLE_EQ(judged.time.seconds, slowest);
  const theory::Candidate whole = theory::judge(long_setting("sp=4", {}, 512).setting, of.layout, machine, options);
  EXPECT_LT(judged.time.seconds, whole.time.seconds);
  // The same work in less time: a share of the peak that counts the pairs that are left.
  EXPECT_NEAR(judged.utilization * judged.time.seconds / (whole.utilization * whole.time.seconds),
              theory::model_flops(of.setting) / theory::model_flops(long_setting("sp=4", {}, 512).setting), 1e-12);
}

TEST(DocumentForecasts, PriceAttentionThatIsNotFusedWithoutRegardToMasks) {
  theory::Machine machine = theory::find_machine("h100");
  ASSERT_TRUE(machine.choose_attention(std::string(theory::kUnfused)));
  KernelCost cost{.kernel = "flash forward", .dtype = DType::bf16, .result = DType::bf16, .sizes = {1, 64, 64, 8, 32}};
  cost.flops = 4.0 * 64 * 65 / 2 * 8 * 32;
  const double seen = theory::kernel_seconds(cost, machine);
  cost.flops = 0;
  EXPECT_EQ(theory::kernel_seconds(cost, machine), seen);
  cost.sizes[1] = 0;
  EXPECT_EQ(theory::kernel_seconds(cost, machine), machine.launch_seconds);
}

TEST(DocumentLengths, ArePrintedByRunsAndCutWithTheirSequence) {
  const Lengths lengths = {5, 5, 5, 1, 7, 7};
  EXPECT_EQ(print_documents(lengths), "3x5,1,2x7");
  EXPECT_EQ(print_documents(Lengths{}), "");
  EXPECT_EQ(documents_within(lengths, 12), (Lengths{5, 5, 2}));
  EXPECT_EQ(documents_within(lengths, 10), (Lengths{5, 5}));
  EXPECT_EQ(documents_within(lengths, 30), lengths);
  EXPECT_EQ(documents_within(Lengths{}, 30), Lengths{});
}

}  // namespace
}  // namespace tsprun::detail::test::document_forecasts_test
