// Decoding with weights and cache in place: its logits against those of the training schedule's forward pass, and its traffic.
#include "layers/model/decode.h"
#include "layers/model/sampling.h"
#include "layers/theory/peaks.h"
#include "tests/layers/decoding_formulas.h"
#include "tests/layers/model_run.h"
#include "tests/layers/rotary_forms.h"

#include <gtest/gtest.h>

namespace tsprun::detail::test::decode_test {
namespace {

struct Decoded {
  std::vector<Token> text;
  std::vector<std::vector<double>> logits;  // after the prompt and after each token
  std::vector<std::uint64_t> bytes;         // received by all ranks for each token after the prompt
  theory::PurposeBytes for_prompt;          // received by all ranks
  std::vector<theory::PurposeBytes> for_tokens;
  std::vector<CategoryBytes> peaks;  // by rank
};

void add_received(theory::PurposeBytes& sum, const TrafficCounters& before, const TrafficCounters& after) {
  for (int p = 0; p < kPurposes; ++p) sum[static_cast<Purpose>(p)] += after.received[p] - before.received[p];
}

/// Greedy text of `count` tokens after a prompt.
Decoded decode(const ModelCase& of, const Layout& layout, std::span<const Token> prompt, std::size_t count) {
  Decoded result;
  result.bytes.assign(count, 0);
  result.for_tokens.resize(count);
  result.peaks.resize(static_cast<std::size_t>(layout.ranks()));
  std::mutex mutex;
  run_ranks(layout.ranks(),
            [&](Context& context) {
              Rank rank(context);
              Mesh mesh(context.world(), layout);
              Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
              model.parameters().fill_fresh(of.config.layers, of.seed);
              disturb(model.parameters());
              Decoder decoder(rank, model, {prompt.size() + count});
              const TrafficCounters begin = context.traffic();
              ConstTensor logits = decoder.prompt(std::vector<std::vector<Token>>{{prompt.begin(), prompt.end()}});
              {
                const std::lock_guard lock(mutex);
                add_received(result.for_prompt, begin, context.traffic());
              }
              for (std::size_t i = 0; i < count; ++i) {
                const Token token = sample(logits.select(0, 0), {.temperature = 0}, i);
                if (context.rank() == 0) {
                  result.text.push_back(token);
                  std::vector<double> values(of.config.vocabulary);
                  for (std::size_t v = 0; v < values.size(); ++v) values[v] = element(buffer_of(logits), v);
                  result.logits.push_back(std::move(values));
                }
                const TrafficCounters before = context.traffic();
                logits = decoder.step({&token, 1});
                const TrafficCounters after = context.traffic();
                const std::lock_guard lock(mutex);
                for (int p = 0; p < kPurposes; ++p) result.bytes[i] += after.received[p] - before.received[p];
                add_received(result.for_tokens[i], before, after);
              }
              result.peaks[static_cast<std::size_t>(context.rank())] = rank.memory_peaks();
            },
            {.algorithms = of.algorithms});
  return result;
}

/// Logits of the last position, by the forward pass on one rank, in a run whose longest sequence has `longest` tokens.
std::vector<double> last_logits(const ModelCase& of, std::span<const Token> ids, std::size_t longest) {
  std::vector<double> last(of.config.vocabulary);
  run_ranks(1, [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), Layout::tsp(context.size()));
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
    model.parameters().fill_fresh(of.config.layers, of.seed);
    disturb(model.parameters());
    model.expect(longest);
    const std::vector<std::int64_t> labels(ids.size(), 0);
    const LogitsSink sink = [&](std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& logits) {
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (rows[r] + 1 != ids.size()) continue;
        for (std::size_t v = 0; v < logits.size(1); ++v) last[first_id + v] = element(buffer_of(logits), r * logits.size(1) + v);
      }
    };
    model.evaluate({.batch = 1, .sequence = ids.size(), .ids = ids, .labels = labels}, &sink);
  });
  return last;
}

std::vector<Token> some_ids(std::size_t count, std::size_t vocabulary) {
  std::mt19937 random(5);
  std::vector<Token> ids(count);
  for (Token& id : ids) id = static_cast<Token>(random() % vocabulary);
  return ids;
}

/// Every kind that can be decoded, for eight query heads.
std::vector<Layout> layouts() {
  constexpr TensorExchange kSlices = TensorExchange::sequence;
  return {Layout::tsp(1),
          Layout::tsp(2),
          Layout::tsp(8),
          Layout::parse("tp=2"),
          Layout::parse("tp=8"),
          Layout::parse("tp=4").with(kSlices),
          Layout::parse("sp=4"),
          Layout::parse("sp=3"),  // shares of unequal size
          Layout::parse("sp=9"),  // one of them without a head
          Layout::parse("sp=4").with(SequenceExchange::ring),
          Layout::parse("tp=2,sp=2"),
          Layout::parse("sp=3,tp=2").with(kSlices),
          Layout::parse("tp=2,tsp=2"),
          Layout::parse("tsp=4,tp=2")};
}

TEST(Decoder, LogitsEqualThoseOfTheForwardPassUnderEveryLayout) {
  std::vector<ModelConfig> models = {small_config(24, 2, 8, 4, 4, 21, 41),
                                     small_config(16, 2, 8, 1, 4, 13, 17, true),
                                     small_gpt2_config(2, 8, 4, 21, 41),
                                     small_unlike_config(4),
                                     small_lending_config(4),
                                     small_lending_family(0),
                                     small_lending_family(4),
                                     small_norms_config(4),
                                     small_norms_config(2, Norm::layer_without_bias, true)};
  // Longer than the original context, which the prompt isn't.
  for (const auto& [name, form] : rotary_forms(small_config(16, 1, 8, 2, 8, 5, 17), 11)) models.push_back(form);
  for (const auto& config : models) {
    ModelCase of{.config = config, .sequence = 9};
    const std::vector<Token> prompt = some_ids(9, config.vocabulary);
    std::vector<Token> ids = prompt;
    std::vector<std::vector<double>> expected;
    for (const Token token : decode(of, Layout::tsp(1), prompt, 4).text) {
      expected.push_back(last_logits(of, ids, 13));
      ids.push_back(token);
    }
    for (const Layout& layout : layouts()) {
      const Decoded decoded = decode(of, layout, prompt, 4);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        for (std::size_t v = 0; v < expected[i].size(); ++v) {
          ASSERT_NEAR(decoded.logits[i][v], expected[i][v], 1e-10)
              << "token " << i << ", " << layout.label() << ", " << of.describe();
        }
      }
    }
  }
}

TEST(Decoder, RefusesMoreTokensThanThereAreLearnedPositions) {
  const ModelCase of{.config = small_gpt2_config(1, 2, 4, 8, 9)};
  EXPECT_THROW(decode(of, Layout::tsp(1), some_ids(60, 9), 5), std::exception);
  EXPECT_EQ(decode(of, Layout::tsp(1), some_ids(60, 9), 4).text.size(), 4U);
}

TEST(Decoder, GreedyTextIsTheSameUnderEveryLayout) {
  for (const std::size_t kv_heads : {1U, 8U}) {
    ModelCase of{.config = small_config(24, 2, 8, kv_heads, 4, 21, 41), .sequence = 1};
    for (const std::size_t length : {1U, 7U}) {
      const std::vector<Token> prompt = some_ids(length, of.config.vocabulary);
      const Decoded one = decode(of, Layout::tsp(1), prompt, 6);
      for (const Layout& layout : layouts()) {
        EXPECT_EQ(decode(of, layout, prompt, 6).text, one.text) << layout.label() << ", " << length;
      }
    }
  }
}

TEST(Decoder, BytesOfATokenDependNeitherOnThePositionNorOnTheParameters) {
  const ModelCase of{.config = small_config(24, 2, 8, 4, 4, 21, 41), .sequence = 1};
  const ModelCase wider{.config = small_config(24, 2, 8, 4, 4, 210, 41), .sequence = 1};
  for (const Layout& layout : layouts()) {
    // Who caches a token goes round, and may have computed some of its K and V: positions that are alike in that.
    constexpr std::size_t kRound = 72;
    const Decoded after_few = decode(of, layout, some_ids(3, 41), 3);
    EXPECT_EQ(after_few.bytes, decode(of, layout, some_ids(3 + kRound, 41), 3).bytes) << layout.label();
    EXPECT_EQ(after_few.bytes, decode(wider, layout, some_ids(3, 41), 3).bytes) << layout.label();
  }
}

theory::MeshSetting mesh_setting(const ModelCase& of, const Layout& layout) {
  return {.setting = of.setting(), .layout = layout};
}

/// Every way to cut K/V heads, both kinds of models, prompts shorter than there are ranks.
std::vector<ModelConfig> configs() {
  return {small_config(24, 2, 8, 4, 4, 21, 41),
          small_config(16, 3, 8, 1, 4, 13, 17, true),
          small_config(16, 1, 8, 2, 4, 13, 17),
          small_gpt2_config(2, 8, 4, 21, 41),
          small_unlike_config(4),
          small_lending_config(2),
          as_family("olmo2", small_config(24, 2, 8, 4, 4, 21, 41)),
          as_family("olmo2", small_config(16, 1, 8, 1, 4, 13, 17))};
}

TEST(Decoder, ReceivesWhatTheFormulasSayForEachPurpose) {
  for (const ModelConfig& config : configs()) {
    for (const auto& [length, one_shot] : {std::pair<std::size_t, bool>{1, true}, {2, false}, {23, true}}) {
      for (const Layout& layout : layouts()) {
        ModelCase of{.config = config, .sequence = 1};
        of.algorithms = one_shot ? "all_reduce=one_shot" : "all_reduce=direct";
        const auto ranks = static_cast<std::uint64_t>(layout.ranks());
        const std::uint64_t summed = (ranks - 1) * config.hidden * of.setting().bytes.accumulated * (one_shot ? ranks : 2);
        const std::vector<Token> prompt = some_ids(length, config.vocabulary);
        const Decoded decoded = decode(of, layout, prompt, 5);
        formulas::PurposeBytes all;
        for (int p = 0; p < kPurposes; ++p) {
          const auto purpose = static_cast<Purpose>(p);
          const std::string where =
              std::string(name(purpose)) + ", " + config.name + ", " + layout.label() + ", prompt of " + std::to_string(length);
          EXPECT_EQ(decoded.for_prompt[purpose], formulas::prompt_traffic(of.setting(), layout, prompt, summed)[purpose])
              << where;
          for (std::size_t i = 0; i < 5; ++i) {
            EXPECT_EQ(decoded.for_tokens[i][purpose], formulas::token_traffic(of.setting(), layout, length + i, summed)[purpose])
                << where;
            all[purpose] += decoded.for_tokens[i][purpose];
          }
        }
        EXPECT_EQ(all, formulas::tokens_traffic(of.setting(), layout, length, 5, summed));
      }
    }
  }
}

TEST(Decoder, HoldsAtItsPeakAndReceivesWhatIsForecast) {
  for (const ModelConfig& config : configs()) {
    for (const Layout& layout : layouts()) {
      const ModelCase of{.config = config, .sequence = 1};
      const std::vector<Token> prompt = some_ids(40, config.vocabulary);
      const Decoded decoded = decode(of, layout, prompt, 20);
      const std::vector<DecodedText> texts = {{.prompt = prompt, .added = decoded.text}};
      theory::RankCounts all;
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        const theory::RankCounts counts = theory::decoding_counts(mesh_setting(of, layout), rank, texts, {.training = false});
        EXPECT_EQ(decoded.peaks[static_cast<std::size_t>(rank)], counts.memory)
            << config.name << ", " << layout.label() << ", rank " << rank;
        all.traffic += counts.traffic;
        all.tokens += counts.tokens;
      }
      theory::PurposeBytes tokens;
      for (const theory::PurposeBytes& each : decoded.for_tokens) tokens += each;
      EXPECT_EQ(decoded.for_prompt, all.traffic.forward) << config.name << ", " << layout.label();
      EXPECT_EQ(tokens, all.tokens) << config.name << ", " << layout.label();
    }
  }
}

/// Decodes prompts together, those of each replica, and returns every text and what this job's ranks held and received.
struct Together {
  std::vector<std::vector<Token>> texts;
  std::vector<CategoryBytes> peaks;
  std::vector<theory::PurposeBytes> received;  // by rank, for all tokens after the prompts
};

Together decode_together(const ModelCase& of, const Layout& layout, const std::vector<std::vector<Token>>& prompts,
                         std::size_t count) {
  Together result;
  result.texts.resize(prompts.size());
  result.peaks.resize(static_cast<std::size_t>(layout.ranks()));
  result.received.resize(result.peaks.size());
  run_ranks(layout.ranks(),
            [&](Context& context) {
              Rank rank(context);
              Mesh mesh(context.world(), layout);
              Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
              model.parameters().fill_fresh(of.config.layers, of.seed);
              disturb(model.parameters());
              // Text n is replica (n mod dp)'s.
              std::vector<std::vector<Token>> own;
              std::vector<std::size_t> numbers;
              std::vector<std::size_t> positions;
              for (auto n = static_cast<std::size_t>(mesh.place(mesh.layout().data_axis())); n < prompts.size();
                   n += static_cast<std::size_t>(layout.data())) {
                own.push_back(prompts[n]);
                numbers.push_back(n);
                positions.push_back(prompts[n].size() + count);
              }
              Decoder decoder(rank, model, positions);
              ConstTensor logits = decoder.prompt(own);
              const TrafficCounters before = context.traffic();
              for (std::size_t i = 0; i < count; ++i) {
                std::vector<Token> next;
                for (std::size_t text = 0; text < own.size(); ++text) {
                  next.push_back(sample(logits.select(0, text), {.temperature = 0}, i));
                  if (mesh.group(layout.axes_of_replica()).rank() == 0) result.texts[numbers[text]].push_back(next.back());
                }
                logits = decoder.step(next);
              }
              const auto me = static_cast<std::size_t>(context.rank());
              add_received(result.received[me], before, context.traffic());
              result.peaks[me] = rank.memory_peaks();
            },
            {.algorithms = of.algorithms});
  return result;
}

/// More of them than one thin product takes, all of different lengths.
std::vector<std::vector<Token>> some_prompts(std::size_t vocabulary) {
  std::vector<std::vector<Token>> prompts;
  for (const std::size_t length : {7U, 1U, 12U, 2U, 5U}) prompts.push_back(some_ids(length, vocabulary));
  std::ranges::reverse(prompts[2]);
  return prompts;
}

TEST(Decoder, TextsDecodedTogetherAreThoseDecodedAlone) {
  std::vector<Layout> all = layouts();
  for (const char* with_replicas : {"dp=2", "dp=3,tp=2", "dp=2,tsp=2", "dp=2,tp=2,sp=2"})
    all.push_back(Layout::parse(with_replicas));
  for (const ModelConfig& config : configs()) {
    const ModelCase of{.config = config, .sequence = 1};
    const std::vector<std::vector<Token>> prompts = some_prompts(config.vocabulary);
    std::vector<std::vector<Token>> alone;
    for (const std::vector<Token>& prompt : prompts) alone.push_back(decode(of, Layout::tsp(1), prompt, 6).text);
    for (const Layout& layout : all) {
      EXPECT_EQ(decode_together(of, layout, prompts, 6).texts, alone) << config.name << ", " << layout.label();
    }
  }
}

TEST(Decoder, TextsDecodedTogetherReceiveWhatEachReceivesAlone) {
  for (const ModelConfig& config : configs()) {
    const ModelCase of{.config = config, .sequence = 1, .algorithms = "all_reduce=direct"};
    const std::vector<std::vector<Token>> prompts = some_prompts(config.vocabulary);
    for (const Layout& layout : layouts()) {
      const auto hops = static_cast<std::uint64_t>(layout.ranks() - 1);
      const std::uint64_t summed = hops * config.hidden * of.setting().bytes.accumulated * 2;
      formulas::PurposeBytes alone;
      for (const std::vector<Token>& prompt : prompts)
        alone += formulas::tokens_traffic(of.setting(), layout, prompt.size(), 4, summed);
      formulas::PurposeBytes together;
      for (const theory::PurposeBytes& of_rank : decode_together(of, layout, prompts, 4).received) together += of_rank;
      EXPECT_EQ(together, alone) << config.name << ", " << layout.label();
    }
  }
}

TEST(Decoder, TextsDecodedTogetherHoldAndReceiveWhatIsForecast) {
  const ModelConfig config = configs().front();
  const ModelCase of{.config = config, .sequence = 1};
  const std::vector<std::vector<Token>> prompts = some_prompts(config.vocabulary);
  for (const char* of_layout : {"tsp=4", "tp=2,sp=2", "dp=2,tsp=2", "dp=2"}) {
    const Layout layout = Layout::parse(of_layout);
    const Together together = decode_together(of, layout, prompts, 5);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::vector<DecodedText> texts;
      for (auto n = static_cast<std::size_t>(rank / layout.replica()); n < prompts.size();
           n += static_cast<std::size_t>(layout.data())) {
        texts.push_back({.prompt = prompts[n], .added = together.texts[n]});
      }
      const theory::RankCounts counts = theory::decoding_counts(mesh_setting(of, layout), rank, texts, {.training = false});
      const auto me = static_cast<std::size_t>(rank);
      EXPECT_EQ(together.peaks[me], counts.memory) << layout.label() << ", rank " << rank;
      EXPECT_EQ(together.received[me], counts.tokens) << layout.label() << ", rank " << rank;
    }
  }
}

/// Tensor parallelism needs one all_reduce a sublayer, beside the embedding's row and the logits.
TEST(Decoder, UnderTensorParallelismSublayersMoveOneAllReduceEach) {
  const ModelCase of{.config = small_config(24, 2, 8, 4, 4, 21, 41), .sequence = 1, .algorithms = "all_reduce=direct"};
  const std::uint64_t element = 8;
  for (const int ranks : {2, 4}) {
    const auto hops = static_cast<std::uint64_t>(ranks - 1);
    const std::uint64_t sublayers = 2 * 2 * 2 * hops * 24 * element;
    const std::uint64_t rest = hops * (24 + 41) * element;
    const Decoded decoded = decode(of, Layout{{{AxisKind::tp, ranks}}}, some_ids(3, 41), 4);
    for (const std::uint64_t bytes : decoded.bytes) EXPECT_EQ(bytes, sublayers + rest) << ranks;
  }
}

TEST(Decoder, RefusesWhatItCannotDecodeByName) {
  EXPECT_NE(Decoder::why_not(Layout::parse("zero3=2")).find("zero3"), std::string::npos);
  EXPECT_EQ(Decoder::why_not(Layout::parse("dp=2")), "");
  EXPECT_NE(Decoder::why_not(Layout::parse("sp=2").with(SequenceExchange::ulysses)).find("ulysses"), std::string::npos);
  EXPECT_EQ(Decoder::why_not(Layout::parse("tp=2,sp=1").with(SequenceExchange::ulysses)), "");
}

TEST(Sampling, GreedyTakesTheLowestOfEqualIds) {
  std::vector<float> logits{1, 3, 3, 2};
  EXPECT_EQ(sample(Tensor(std::span(logits), {4}), {.temperature = 0}, 0), 1);
}

TEST(Sampling, FollowsTheDistribution) {
  std::vector<double> logits{0, std::log(2.0), std::log(5.0)};  // 1/8, 2/8, 5/8
  std::vector<int> counts(3, 0);
  constexpr int kDraws = 8000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(sample(Tensor(std::span(logits), {3}), {.seed = 3}, static_cast<std::uint64_t>(i)))];
  }
  EXPECT_NEAR(counts[0], kDraws / 8.0, 120);
  EXPECT_NEAR(counts[1], kDraws / 4.0, 160);
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  std::vector<double> logits{0, 4, 2, 3};
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Token of_two = sample(Tensor(std::span(logits), {4}), {.temperature = 5, .top_k = 2}, i);
    EXPECT_TRUE(of_two == 1 || of_two == 3);
    EXPECT_EQ(sample(Tensor(std::span(logits), {4}), {.top_p = 0.1}, i), 1);
  }
}

TEST(Sampling, TopKDrawsAsASortOfAllWould) {
  std::vector<double> logits;
  for (int i = 0; i < 1000; ++i) logits.push_back((i * 7919 % 1000) / 100.0 + (i % 3 == 0 ? 0.0 : 0.01));
  std::vector<double> cut = logits;  // what isn't among the 50 likeliest gets no probability
  std::vector<double> sorted = logits;
  std::ranges::sort(sorted, std::greater());
  for (double& logit : cut)
    if (logit < sorted[49]) logit = -1e9;
  ASSERT_EQ(std::ranges::count_if(cut, [](double logit) { return logit > -1; }), 50);
  for (std::uint64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(sample(Tensor(std::span(logits), {1000}), {.temperature = 2, .top_k = 50, .seed = 5}, i),
              sample(Tensor(std::span(cut), {1000}), {.temperature = 2, .seed = 5}, i));
  }
}

TEST(Sampling, PenaltyDividesOnceWhatTheTextHas) {
  std::vector<double> logits{3, 2.9, -1, -1.05};
  const std::vector<Token> before = {0, 2, 0, 0};
  const auto likeliest = [&](double penalty, std::span<const Token> of) {
    return sample(Tensor(std::span(logits), {4}), {.temperature = 0, .repetition_penalty = penalty}, 0, of);
  };
  EXPECT_EQ(likeliest(1, before), 0);
  EXPECT_EQ(likeliest(1.02, before), 0);  // 2.94: divided once, though token 0 is there three times
  EXPECT_EQ(likeliest(1.1, before), 1);
  EXPECT_EQ(likeliest(1.1, {}), 0);
  logits = {-9, -9, -1, -1.05};
  EXPECT_EQ(likeliest(1.1, before), 3);  // below 0 the penalty multiplies
  EXPECT_EQ(likeliest(0.5, before), 2);
}

TEST(Sampling, RefusesNaN) {
  std::vector<double> logits{0, std::nan(""), 2};
  EXPECT_THROW(sample(Tensor(std::span(logits), {3}), {}, 0), Error);
}

}  // namespace
}  // namespace tsprun::detail::test::decode_test
