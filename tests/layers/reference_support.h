// What tests that hold something against the reference share: random configurations, weights, inputs, and distances.
#pragma once

#include "layers/parameters/parameters.h"
#include "tests/reference/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tsprun::detail::test {

struct ReferenceCase {
  ModelConfig config;
  std::size_t batch;
  std::size_t sequence;
  std::uint32_t seed;
};

/// A model; f and V are odd, so that they divide by nothing.
inline ModelConfig reference_config(std::size_t hidden, std::size_t layers, std::size_t query_heads, std::size_t kv_heads,
                                    std::size_t head_dim, bool tied = false) {
  ModelConfig config;
  config.name = "test";
  config.hidden = hidden;
  config.layers = layers;
  config.query_heads = query_heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.intermediate = 2 * hidden + 5;
  config.vocabulary = 19;
  config.max_positions = 64;
  config.norm_epsilon = 1e-5;
  config.rope_theta = 1000;
  config.tied_embeddings = tied;
  return config;
}

/// MHA, GQA, one K/V head, head_dim ≠ h/n_h, S = 1, B > 1, tied embeddings.
inline std::vector<ReferenceCase> reference_cases() {
  return {{reference_config(12, 1, 2, 2, 6), 1, 7, 1},       {reference_config(16, 2, 4, 2, 4), 2, 5, 2},
          {reference_config(8, 2, 4, 1, 6, true), 3, 3, 3},  {reference_config(10, 1, 6, 3, 2), 2, 1, 4},
          {reference_config(8, 3, 1, 1, 4, true), 1, 11, 5}, {reference_config(16, 2, 8, 4, 2), 1, 1, 6}};
}

/// A model of GPT-2's kind; f, V and the number of positions divide by nothing.
inline ModelConfig gpt2_reference_config(std::size_t layers, std::size_t heads, std::size_t head_dim, bool tied = true) {
  ModelConfig config = reference_config(heads * head_dim, layers, heads, heads, head_dim, tied);
  config.become(model_type("gpt2"));
  config.max_positions = 13;
  config.residual_dropout = 0.2;
  config.embedding_dropout = 0.3;
  config.attention_dropout = 0.25;
  return config;
}

/// Odd head_dim, one head, S = 1, B > 1, an untied head, the exact GeLU.
inline std::vector<ReferenceCase> gpt2_reference_cases() {
  ModelConfig exact_gelu = gpt2_reference_config(1, 2, 5);
  exact_gelu.mlp = Mlp::gelu;
  return {{gpt2_reference_config(1, 2, 6), 1, 7, 1},
          {gpt2_reference_config(2, 4, 3), 2, 5, 2},
          {gpt2_reference_config(2, 1, 8, false), 3, 13, 3},
          {gpt2_reference_config(1, 3, 4), 2, 1, 4},
          {exact_gelu, 1, 6, 5}};
}

template <class T>
std::vector<T> normal_values(std::size_t count, double deviation, std::mt19937& generator, double mean = 0) {
  std::normal_distribution<double> distribution(mean, deviation);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(distribution(generator));
  return values;
}

/// Weights large enough that attention isn't flat, gains around 1, biases around 0.
template <class T>
reference::Tensors<T> random_weights(const std::vector<Parameter>& parameters, std::mt19937& generator) {
  reference::Tensors<T> weights;
  for (const Parameter& parameter : parameters) {
    const double deviation = parameter.role == ParameterRole::embedding ? 1
                             : parameter.is_matrix() ? 1.5 / std::sqrt(static_cast<double>(parameter.columns()))
                                                     : 0.3;
    weights[parameter.name] = normal_values<T>(parameter.elements(), deviation, generator,
                                               parameter.is_matrix() || parameter.name.ends_with(".bias") ? 0 : 1);
  }
  return weights;
}

inline std::vector<std::int32_t> random_ids(std::size_t count, std::size_t vocabulary, std::mt19937& generator) {
  std::vector<std::int32_t> ids(count);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(generator() % vocabulary);
  return ids;
}

/// About one in five is −1, never all.
inline std::vector<std::int64_t> random_labels(std::size_t count, std::size_t vocabulary, std::mt19937& generator) {
  std::vector<std::int64_t> labels(count);
  for (std::int64_t& label : labels) label = generator() % 5 == 0 ? -1 : static_cast<std::int64_t>(generator() % vocabulary);
  labels.back() = 0;
  return labels;
}

template <class To, class From>
std::vector<To> converted(const std::vector<From>& values) {
  return std::vector<To>(values.begin(), values.end());
}
template <class To, class From>
reference::Tensors<To> converted(const reference::Tensors<From>& tensors) {
  reference::Tensors<To> result;
  for (const auto& [name, values] : tensors) {
    for (const From value : values) result[name].push_back(static_cast<To>(value));
  }
  return result;
}

template <class T>
double norm(const std::vector<T>& values) {
  double squares = 0;
  for (const T value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

/// The largest norm among tensors.
template <class T>
double largest_norm(const reference::Tensors<T>& tensors) {
  double largest = 0;
  for (const auto& [name, values] : tensors) largest = std::max(largest, norm(values));
  return largest;
}

/// ‖actual − expected‖ ≤ tolerance·max(‖expected‖, 1e-2·largest), where `largest` is the largest gradient norm of the layer for
/// gradients, and 0 for outputs. NaN never passes.
template <class A, class E>
void expect_close(const std::string& what, const std::vector<A>& actual, const std::vector<E>& expected, double tolerance,
                  double largest = 0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    squares += difference * difference;
  }
  const double scale = std::max(norm(expected), 1e-2 * largest);
  EXPECT_TRUE(std::sqrt(squares) <= tolerance * scale) << what << ": differs by " << std::sqrt(squares) << ", scale " << scale;
}

}  // namespace tsprun::detail::test
