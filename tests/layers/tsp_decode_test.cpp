// Decoding with weights and cache in place: its logits against those of the training schedule's forward pass, and its traffic.
#include "layers/model/sampling.h"
#include "layers/tsp/decode.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tsp::test {
namespace {

struct Decoded {
  std::vector<Token> text;
  std::vector<std::vector<double>> logits;  // after the prompt and after each token
  std::vector<std::uint64_t> bytes;         // received by all ranks for each token after the prompt
};

/// Greedy text of `count` tokens after a prompt.
Decoded decode(const ModelCase& of, int ranks, std::span<const Token> prompt, std::size_t count) {
  Decoded result;
  result.bytes.assign(count, 0);
  std::mutex mutex;
  run_ranks(ranks, [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), MeshShape::tsp(context.size()));
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
    model.parameters().fill_fresh(of.config.layers, of.seed);
    disturb(model.parameters());
    TspDecoder decoder(rank, model, prompt.size() + count);
    ConstTensor logits = decoder.prompt(prompt);
    for (std::size_t i = 0; i < count; ++i) {
      const Token token = sample(logits, {.temperature = 0}, i);
      if (context.rank() == 0) {
        result.text.push_back(token);
        std::vector<double> values(of.config.vocabulary);
        for (std::size_t v = 0; v < values.size(); ++v) values[v] = element(buffer_of(logits), v);
        result.logits.push_back(std::move(values));
      }
      const TrafficCounters before = context.traffic();
      logits = decoder.step(token);
      const TrafficCounters after = context.traffic();
      const std::lock_guard lock(mutex);
      for (int p = 0; p < kPurposes; ++p) result.bytes[i] += after.received[p] - before.received[p];
    }
  });
  return result;
}

/// Logits of the last position, by the forward pass on one rank.
std::vector<double> last_logits(const ModelCase& of, std::span<const Token> ids) {
  std::vector<double> last(of.config.vocabulary);
  run_ranks(1, [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), MeshShape::tsp(context.size()));
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
    model.parameters().fill_fresh(of.config.layers, of.seed);
    disturb(model.parameters());
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

TEST(TspDecoder, LogitsEqualThoseOfTheForwardPass) {
  for (const auto& config : {small_config(24, 2, 8, 4, 4, 21, 41), small_config(16, 2, 12, 6, 4, 13, 17, true),
                             small_gpt2_config(2, 4, 5, 21, 41), small_gpt2_config(1, 8, 2, 13, 17, false)}) {
    const ModelCase of{.config = config, .sequence = 9};
    const std::vector<Token> prompt = some_ids(9, config.vocabulary);
    for (const int ranks : {1, 2, 4}) {
      const Decoded decoded = decode(of, ranks, prompt, 4);
      std::vector<Token> ids = prompt;
      for (std::size_t i = 0; i < decoded.text.size(); ++i) {
        const std::vector<double> expected = last_logits(of, ids);
        for (std::size_t v = 0; v < expected.size(); ++v) {
          EXPECT_NEAR(decoded.logits[i][v], expected[v], 1e-10) << "token " << i << ", D " << ranks << ", " << of.describe();
        }
        ids.push_back(decoded.text[i]);
      }
    }
  }
}

TEST(TspDecoder, GreedyTextIsTheSameOnAnyNumberOfRanks) {
  const ModelCase of{.config = small_config(24, 2, 8, 1, 4, 21, 41), .sequence = 1};
  for (const std::size_t length : {1U, 2U, 7U, 20U}) {
    const std::vector<Token> prompt = some_ids(length, of.config.vocabulary);
    const Decoded one = decode(of, 1, prompt, 12);
    for (const int ranks : {2, 4, 8}) EXPECT_EQ(decode(of, ranks, prompt, 12).text, one.text) << ranks << ", " << length;
  }
}

TEST(TspDecoder, RefusesMoreTokensThanThereAreLearnedPositions) {
  const ModelCase of{.config = small_gpt2_config(1, 2, 4, 8, 9)};
  EXPECT_THROW(decode(of, 1, some_ids(60, 9), 5), std::exception);
  EXPECT_EQ(decode(of, 1, some_ids(60, 9), 4).text.size(), 4U);
}

TEST(TspDecoder, BytesOfATokenDependNeitherOnThePositionNorOnTheLengthOfThePrompt) {
  const ModelCase of{.config = small_config(24, 2, 8, 4, 4, 21, 41), .sequence = 1};
  const Decoded after_few = decode(of, 4, some_ids(3, 41), 8);
  const Decoded after_many = decode(of, 4, some_ids(40, 41), 8);
  // The embedding's row has one owner, who receives nothing: with all owners the same.
  EXPECT_EQ(after_few.bytes, after_many.bytes);
  EXPECT_EQ(std::ranges::min(after_few.bytes), std::ranges::max(after_few.bytes));
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
  EXPECT_NEAR(counts[0], kDraws / 8, 120);
  EXPECT_NEAR(counts[1], kDraws / 4, 160);
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  std::vector<double> logits{0, 4, 2, 3};
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Token of_two = sample(Tensor(std::span(logits), {4}), {.temperature = 5, .top_k = 2}, i);
    EXPECT_TRUE(of_two == 1 || of_two == 3);
    EXPECT_EQ(sample(Tensor(std::span(logits), {4}), {.top_p = 0.1}, i), 1);
  }
}

TEST(Sampling, RefusesNaN) {
  std::vector<double> logits{0, std::nan(""), 2};
  EXPECT_THROW(sample(Tensor(std::span(logits), {3}), {}, 0), Error);
}

}  // namespace
}  // namespace tsp::test
