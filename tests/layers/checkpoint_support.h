// A small model whose every element is known, cut over ranks in unpleasant ways, and the folders it is saved in.
#pragma once

#include "layers/checkpoints/checkpoint.h"
#include "tests/layers/temporary_folder.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tsprun::detail::test {

inline ModelConfig checkpoint_config() {
  ModelConfig config;
  config.name = "tiny";
  config.hidden = 12;
  config.layers = 2;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.intermediate = 10;
  config.vocabulary = 21;
  config.max_positions = 64;
  return config;
}

inline CheckpointState checkpoint_state(std::uint64_t step, DType dtype = DType::f32) {
  CheckpointState state;
  state.step = step;
  state.seed = 18446744073709551557U;
  state.dtype = dtype;
  state.batch = 3;
  state.sequence = 31;
  state.data_tokens = 987654321;
  state.learning_rate = 0.1 + 0.2;  // needs all digits
  state.epochs = 2.7;
  state.warmup = 17;
  state.schedule = RateSchedule::wsd;
  state.least_rate = 0.3 - 0.1;
  state.decay_steps = 5;
  state.steps = 1'000'000'000'000;
  state.epsilon = 5e-324;
  state.layout = Layout::parse("tp=2,sp=2").with(TensorExchange::sequence).with(SequenceExchange::ring);
  state.kernels = "avx512";
  return state;
}

inline CheckpointState of_run(char digit, CheckpointState state) {
  state.run = std::string(32, digit);
  return state;
}

/// Rows for most; transposed columns for W_O and W_2; W_K whole on one rank and empty on the others; W_V and gains as copies of
/// which one counts.
inline std::vector<PackPlan> checkpoint_plan(const ModelConfig& config, int ranks, int rank) {
  std::vector<PackPlan> packs;
  const auto d = static_cast<std::size_t>(ranks);
  const auto r = static_cast<std::size_t>(rank);
  std::size_t number = 0;
  for (const Parameter& parameter : model_parameters(config)) {
    ++number;
    PartPlan part{.parameter = parameter, .block = {0, parameter.rows(), 0, parameter.columns()}};
    const auto cut = [&](std::size_t n, std::size_t& first, std::size_t& count) {
      first = n * r / d;
      count = n * (r + 1) / d - first;
    };
    switch (parameter.role) {
      case ParameterRole::output:
      case ParameterRole::down:
        part.transposed = true;
        cut(parameter.columns(), part.block.first_column, part.block.columns);
        break;
      case ParameterRole::key:
        if (r != number % d) part.block.rows = 0;
        break;
      case ParameterRole::value:
      case ParameterRole::attention_norm:
      case ParameterRole::mlp_norm:
      case ParameterRole::final_norm: part.counted = r == number % d; break;
      default: cut(parameter.rows(), part.block.first_row, part.block.rows);
    }
    packs.push_back({{part}});
  }
  return packs;
}

/// Returns what `kind` (value, m, …) of a parameter holds at an element of the whole tensor: exact in bf16.
inline double element_of(const std::string& parameter, int kind, std::uint64_t salt, std::size_t index) {
  const std::uint64_t hash =
      std::hash<std::string>()(parameter) + 31 * index + static_cast<std::uint64_t>(kind) * 1009 + salt * 7919;
  return (static_cast<double>(hash % 251) - 125) / 64;
}

/// Calls body(kind, expected value, pointer to the element, dtype) for every element that the rank holds.
template <class Body>
void for_elements(ParameterStore& store, std::uint64_t salt, Body&& body) {
  for (const ParameterPart& part : store.parts()) {
    const Tensor* tensors[] = {&part.value, &part.m, &part.v, &part.master};
    for (int kind = 0; kind < 4; ++kind) {
      const Tensor& tensor = *tensors[kind];
      if (kind == 3 && store.dtype() != DType::bf16) continue;
      const PartPlan& plan = part.plan;
      for (std::size_t i = 0; i < plan.rows(); ++i) {
        for (std::size_t j = 0; j < plan.width(); ++j) {
          const std::size_t row = plan.block.first_row + (plan.transposed ? j : i);
          const std::size_t column = plan.block.first_column + (plan.transposed ? i : j);
          // Master weights have bits that their rounded copies lack.
          double value = element_of(plan.parameter.name, kind, salt, row * plan.parameter.columns() + column);
          if (kind == 3) value += 1.0 / (1 << 16);
          body(plan.parameter.name, kind, value, tensor.data() + (i * plan.width() + j) * size_of(tensor.dtype()),
               tensor.dtype());
        }
      }
    }
  }
}

inline void fill_elements(ParameterStore& store, std::uint64_t salt) {
  for_elements(store, salt, [](const std::string&, int, double value, std::byte* at, DType dtype) {
    switch (dtype) {
      case DType::f64: *reinterpret_cast<double*>(at) = value; break;
      case DType::f32: *reinterpret_cast<float*>(at) = static_cast<float>(value); break;
      default: *reinterpret_cast<bf16*>(at) = bf16(static_cast<float>(value));
    }
  });
}

/// How many elements aren't what they should be.
inline std::size_t wrong_elements(ParameterStore& store, std::uint64_t salt) {
  std::size_t wrong = 0;
  for_elements(store, salt, [&](const std::string&, int, double value, std::byte* at, DType dtype) {
    double found = 0;
    switch (dtype) {
      case DType::f64: found = *reinterpret_cast<double*>(at); break;
      case DType::f32: found = *reinterpret_cast<float*>(at); break;
      default: found = static_cast<float>(*reinterpret_cast<bf16*>(at));
    }
    wrong += found == value ? 0 : 1;
  });
  return wrong;
}

/// Saves DIR/step-… with `ranks` ranks; returns how each ended.
inline std::vector<RankOutcome> try_save(const std::filesystem::path& dir, int ranks, const CheckpointState& state,
                                         std::uint64_t salt,
                                         const std::function<void(int rank, std::string_view part)>& on_part = {},
                                         std::size_t keep = 0) {
  return try_ranks(ranks, [&](Context& context) {
    Rank rank(context);
    const ModelConfig config = checkpoint_config();
    ParameterStore store(rank, state.dtype, checkpoint_plan(config, ranks, rank.rank()), true);
    fill_elements(store, salt);
    SaveOptions options{.keep = keep};
    if (on_part) options.on_part = [&](std::string_view part) { on_part(rank.rank(), part); };
    save_checkpoint(rank, rank.world(), store, config, state, dir, options);
  });
}

inline void save(const std::filesystem::path& dir, int ranks, const CheckpointState& state, std::uint64_t salt,
                 std::size_t keep = 0) {
  const std::vector<RankOutcome> outcomes = try_save(dir, ranks, state, salt, {}, keep);
  for (const RankOutcome& outcome : outcomes) ASSERT_FALSE(outcome.failed) << describe(outcomes);
}

/// Loads with `ranks` ranks: wrong elements in all.
inline std::size_t load_and_count_wrong(const FoundCheckpoint& found, int ranks, std::uint64_t salt) {
  std::vector<std::size_t> wrong(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Context& context) {
    Rank rank(context);
    ParameterStore store(rank, found.state.dtype, checkpoint_plan(found.config, ranks, rank.rank()), true);
    store.fill_fresh(2, 5);
    load_checkpoint(rank, rank.world(), store, found);
    wrong[static_cast<std::size_t>(rank.rank())] = wrong_elements(store, salt);
  });
  std::size_t sum = 0;
  for (const std::size_t count : wrong) sum += count;
  return sum;
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace tsprun::detail::test
