// Runs sequence attention on D ranks that are threads, on random q, k, v and dO, and puts what the ranks have together, in
// natural order and f64.
#pragma once

#include "core/kernels/check.h"
#include "layers/layout/heads.h"
#include "layers/schedules/sp/sequence_attention.h"
#include "layers/theory/traffic.h"
#include "tests/layers/model_run.h"
#include "tests/reference/operations.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test {

struct AttentionCase {
  SequenceExchange exchange = SequenceExchange::gather;
  int ranks = 1;
  std::size_t batch = 1;
  std::size_t sequence = 1;
  std::size_t query_heads = 1;  ///< n_h of the whole
  std::size_t kv_heads = 1;
  std::size_t head_dim = 2;
  HeadRange queries{0, 0};  ///< those that the axis has; none: all
  DType dtype = DType::f64;
  Recompute recompute = Recompute::none;
  std::size_t bucket_heads = 0;
  std::uint64_t seed = 1;
  bool begins = true;  ///< k and v begin to move early
  std::string algorithms = {};
  std::size_t threads = 1;
  double keys_of_queries = 0;  ///< not 0: k is q times this, where both have as many heads
  std::size_t window = 0;
  int only_of = -1;  ///< not negative: outputs of other ranks' tokens have no gradient

  std::size_t group() const { return query_heads / kv_heads; }
  HeadRange own_queries() const { return queries.count == 0 ? HeadRange{0, query_heads} : queries; }
  HeadRange own_kv() const {
    const std::size_t first = own_queries().first / group();
    return {first, (own_queries().end() - 1) / group() + 1 - first};
  }
  std::string describe() const {
    static constexpr const char* kNames[] = {"gather", "ring", "ulysses"};
    return std::string(kNames[static_cast<int>(exchange)]) + ", D " + std::to_string(ranks) + ", B " + std::to_string(batch) +
           ", S " + std::to_string(sequence) + ", heads " + std::to_string(query_heads) + "/" + std::to_string(kv_heads) + " x " +
           std::to_string(head_dim) + ", from " + std::to_string(own_queries().first) + " " +
           std::to_string(own_queries().count) + ", recompute " + std::to_string(static_cast<int>(recompute)) + ", bucket " +
           std::to_string(bucket_heads) + ", window " + std::to_string(window) + ", " + std::string(name(dtype)) + ", seed " +
           std::to_string(seed);
  }
};

/// Returns the rank that has each position.
inline std::vector<int> owners_of(const AttentionCase& of) {
  const Zigzag cut(of.sequence, of.ranks);
  std::vector<int> owners(of.sequence);
  for (int rank = 0; rank < of.ranks; ++rank)
    for (const std::int64_t position : cut.positions(rank)) owners[static_cast<std::size_t>(position)] = rank;
  return owners;
}

/// Natural order: [B, S, heads, d].
struct AttentionData {
  std::vector<double> q, k, v, d_o;

  explicit AttentionData(const AttentionCase& of) {
    std::mt19937_64 random(of.seed * 9176 + 5);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<double>& values, std::size_t heads) {
      values.resize(of.batch * of.sequence * heads * of.head_dim);
      for (double& value : values) {
        value = normal(random);
        if (of.dtype != DType::f64) value = static_cast<double>(static_cast<float>(value));
        if (of.dtype == DType::bf16) value = static_cast<double>(static_cast<float>(bf16(static_cast<float>(value))));
      }
    };
    fill(q, of.query_heads);
    fill(k, of.kv_heads);
    fill(v, of.kv_heads);
    fill(d_o, of.query_heads);
    for (std::size_t i = 0; i < k.size() && of.keys_of_queries != 0; ++i) {
      const auto narrow = static_cast<float>(of.keys_of_queries * q[i]);
      k[i] = static_cast<double>(of.dtype == DType::bf16 ? static_cast<float>(bf16(narrow)) : narrow);
    }
    if (of.only_of < 0) return;
    const std::vector<int> owners = owners_of(of);
    for (std::size_t i = 0; i < d_o.size(); ++i)
      if (owners[i / (of.query_heads * of.head_dim) % of.sequence] != of.only_of) d_o[i] = 0;
  }
};

inline void set_element(const Tensor& tensor, std::size_t i, double value) {
  switch (tensor.dtype()) {
    case DType::f64: tensor.as<double>()[i] = value; break;
    case DType::f32: tensor.as<float>()[i] = static_cast<float>(value); break;
    default: tensor.as<bf16>()[i] = bf16(static_cast<float>(value)); break;
  }
}

/// Calls body(index among the rank's [B, S_p, heads.count, d], index in the whole [B, S, all, d]).
template <class Body>
void for_elements(const AttentionCase& of, const TokenLayout& tokens, const HeadRange& heads, std::size_t all, Body&& body) {
  const std::vector<std::int64_t> positions = tokens.cut().positions(tokens.part());
  std::size_t local = 0;
  for (std::size_t b = 0; b < of.batch; ++b) {
    for (const std::int64_t position : positions) {
      for (std::size_t head = heads.first; head < heads.end(); ++head) {
        for (std::size_t e = 0; e < of.head_dim; ++e) {
          body(local++, ((b * of.sequence + static_cast<std::size_t>(position)) * all + head) * of.head_dim + e);
        }
      }
    }
  }
}

struct AttentionRun {
  Tensors results;  ///< o, dq, dk, dv; of heads that the axis hasn't, zeros
  theory::PurposeBytes forward;
  theory::PurposeBytes backward;
};

inline theory::PurposeBytes received_between(const TrafficCounters& before, const TrafficCounters& after) {
  theory::PurposeBytes bytes;
  for (int i = 0; i < kPurposes; ++i) bytes[static_cast<Purpose>(i)] = after.received[i] - before.received[i];
  return bytes;
}

inline AttentionRun run_attention(const AttentionCase& of) {
  const AttentionData data(of);
  const HeadRange queries = of.own_queries();
  const HeadRange kv = of.own_kv();
  AttentionRun run;
  run.results["o"].resize(data.q.size());
  run.results["dq"].resize(data.q.size());
  run.results["dk"].resize(data.k.size());
  run.results["dv"].resize(data.k.size());
  std::mutex mutex;
  const auto body = [&](Context& context) {
    tsprun::detail::RankOptions options;
    options.threads = of.threads;
    Rank rank(context, options);
    Communicator& axis = context.world();
    const DType sums = kernels::summed_in(of.dtype);
    const std::unique_ptr<SequenceAttention> attention =
        make_sequence_attention(of.exchange, rank, axis, of.dtype,
                                {.queries = queries.count,
                                 .kv = kv.count,
                                 .head_dim = of.head_dim,
                                 .map = {of.group(), queries.first, kv.first},
                                 .scale = 1 / std::sqrt(static_cast<double>(of.head_dim)),
                                 .bucket_heads = of.bucket_heads});
    const ModelConfig config = small_config(1, 1, of.query_heads, of.kv_heads, of.head_dim, 1, 1);
    TokenLayout tokens(rank, config, of.dtype, of.batch, of.sequence, axis.rank(), axis.size());
    const auto room = [&](const HeadRange& heads, DType dtype) {
      return rank.tensor(Category::workspace, dtype, {of.batch, tokens.local(), heads.count, of.head_dim}, "test tensor");
    };
    const auto filled = [&](const HeadRange& heads, std::size_t all, const std::vector<double>& from) {
      OwnedTensor tensor = room(heads, of.dtype);
      for_elements(of, tokens, heads, all,
                   [&](std::size_t local, std::size_t whole) { set_element(tensor, local, from[whole]); });
      return tensor;
    };
    {
      const OwnedTensor q = filled(queries, of.query_heads, data.q);
      const OwnedTensor k = filled(kv, of.kv_heads, data.k);
      const OwnedTensor v = filled(kv, of.kv_heads, data.v);
      const OwnedTensor d_o = filled(queries, of.query_heads, data.d_o);
      const OwnedTensor o = room(queries, of.dtype);
      const SavedSizes sizes = attention->sizes(tokens);
      const LogSumExps lse(rank, Category::workspace, sums, sizes.lse, "test log-sum-exp");
      AttentionHeads visit;
      visit.q = q;
      visit.k = k;
      visit.v = v;
      visit.o = o;
      visit.lse = lse;
      visit.window = of.window;
      const auto exchange = [&] {
        visit.q = visit.q_memory = rank.tensor(Category::workspace, of.dtype, sizes.q, "test queries");
        visit.k = visit.k_memory = rank.tensor(Category::workspace, of.dtype, sizes.kv, "test keys");
        visit.v = visit.v_memory = rank.tensor(Category::workspace, of.dtype, sizes.kv, "test values");
        attention->exchange(tokens, visit, q, k, v);
      };
      SequencePass pass;
      // Two layers, as a model would: the same object serves both.
      TrafficCounters start;
      theory::PurposeBytes forward;
      theory::PurposeBytes backward;
      for (int layer = 0; layer < 2; ++layer) {
        start = context.traffic();
        if (of.begins) attention->begin(pass, tokens, of.window, k, v);
        if (attention->exchanges()) exchange();
        attention->forward(pass, tokens, visit);
        forward = received_between(start, context.traffic());
      }
      for_elements(of, tokens, queries, of.query_heads, [&](std::size_t local, std::size_t whole) {
        const std::lock_guard lock(mutex);
        run.results["o"][whole] = element(buffer_of(ConstTensor(o.view())), local);
      });
      if (of.recompute == Recompute::full) {
        for (const Tensor& lost : {o.view(), lse.view()}) std::fill_n(lost.data(), lost.bytes(), std::byte{0xff});  // NaN
      }
      const OwnedTensor dq = room(queries, sums);
      const OwnedTensor dk = room(kv, sums);
      const OwnedTensor dv = room(kv, sums);
      for (int layer = 0; layer < 2; ++layer) {
        start = context.traffic();
        if (of.begins) attention->begin(pass, tokens, of.window, k, v);
        if (attention->exchanges() && of.recompute != Recompute::none) exchange();
        int told = 0;
        attention->backward(
            pass, tokens, visit, {.d_o = d_o, .dq = dq, .dk = dk, .dv = dv},
            of.recompute == Recompute::full ? SequenceAttention::Outputs::made_again : SequenceAttention::Outputs::kept,
            [&] { ++told; });
        EXPECT_EQ(told, 1) << of.describe();
        backward = received_between(start, context.traffic());
      }
      const std::lock_guard lock(mutex);
      for (int i = 0; i < kPurposes; ++i) {
        run.forward[static_cast<Purpose>(i)] += forward[static_cast<Purpose>(i)];
        run.backward[static_cast<Purpose>(i)] += backward[static_cast<Purpose>(i)];
      }
      const auto collect = [&](const char* what, const OwnedTensor& from, const HeadRange& heads, std::size_t all) {
        for_elements(of, tokens, heads, all, [&](std::size_t local, std::size_t whole) {
          run.results[what][whole] = element(buffer_of(ConstTensor(from.view())), local);
        });
      };
      collect("dq", dq, queries, of.query_heads);
      collect("dk", dk, kv, of.kv_heads);
      collect("dv", dv, kv, of.kv_heads);
    }
    // The object may go while others still read what it sent.
    rank.wait(axis.post_barrier({.stream = Stream::kv}));
  };
  run_ranks(of.ranks, body, {.algorithms = of.algorithms});
  return run;
}

/// Returns what the plain loops say. Heads that the axis hasn't get no gradient of their outputs.
inline Tensors reference_attention(const AttentionCase& of) {
  AttentionData data(of);
  const reference::AttentionSizes sizes{of.batch, of.sequence, of.query_heads, of.kv_heads, of.head_dim, 0, of.window};
  reference::Attention<double> forward = reference::attention(data.q, data.k, data.v, sizes);
  const HeadRange queries = of.own_queries();
  for (std::size_t i = 0; i < data.d_o.size(); ++i) {
    const std::size_t head = i / of.head_dim % of.query_heads;
    if (head >= queries.first && head < queries.end()) continue;
    data.d_o[i] = 0;
    forward.output[i] = 0;
  }
  Tensors results;
  results["o"] = forward.output;
  results["dq"].resize(data.q.size());
  results["dk"].resize(data.k.size());
  results["dv"].resize(data.v.size());
  reference::attention_backward(results["dq"], results["dk"], results["dv"], data.d_o, forward.probabilities, data.q, data.k,
                                data.v, sizes);
  return results;
}

}  // namespace tsprun::detail::test
