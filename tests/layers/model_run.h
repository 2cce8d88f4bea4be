// Runs a model on D ranks that are threads, and puts the shards of its gradients together, in natural order and f64.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/model.h"
#include "layers/parameters/init.h"
#include "layers/theory/peaks.h"
#include "tests/layers/norm_places.h"
#include "tests/layers/unlike_layers.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::test {

/// A model, its input, and how it is computed.
struct ModelCase {
  ModelConfig config;
  std::size_t batch = 1;
  std::size_t sequence = 1;
  DType dtype = DType::f64;
  Recompute recompute = Recompute::none;
  std::size_t kv_bucket_heads = 0;
  std::uint64_t seed = 1;
  std::string algorithms = {};
  std::size_t threads = 1;
  std::size_t micro_batches = 1;
  TaskList tasks = {};  ///< of the step; empty: training_tasks()
  std::optional<Token> document_end = {};

  Setting setting() const {
    return {.model = config,
            .batch = batch,
            .sequence = sequence,
            .bytes = ElementBytes::of(dtype),
            .recompute = recompute,
            .micro_batches = micro_batches};
  }
  std::string describe() const {
    return "h " + std::to_string(config.hidden) + ", L " + std::to_string(config.layers) + ", heads " +
           std::to_string(config.query_heads) + "/" + std::to_string(config.kv_heads) + " x " + std::to_string(config.head_dim) +
           ", f " + std::to_string(config.intermediate) + ", V " + std::to_string(config.vocabulary) + ", B " +
           std::to_string(batch) + ", S " + std::to_string(sequence) + ", recompute " +
           std::to_string(static_cast<int>(recompute)) + (config.tied_embeddings ? ", tied" : "") + ", bucket " +
           std::to_string(kv_bucket_heads) + ", " + std::string(name(dtype)) + ", M " + std::to_string(micro_batches);
  }
};

inline ModelConfig small_config(std::size_t hidden, std::size_t layers, std::size_t query_heads, std::size_t kv_heads,
                                std::size_t head_dim, std::size_t intermediate, std::size_t vocabulary, bool tied = false) {
  ModelConfig config;
  config.name = "test";
  config.hidden = hidden;
  config.layers = layers;
  config.query_heads = query_heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.intermediate = intermediate;
  config.vocabulary = vocabulary;
  config.max_positions = 4096;
  config.norm_epsilon = 1e-5;
  config.tied_embeddings = tied;
  return config;
}

/// Returns a model of these sizes of another family.
inline ModelConfig as_family(std::string_view name, ModelConfig config) {
  config.become(model_type(name));
  return config;
}

/// Returns a small configuration of three unlike layers and a soft cap of logits.
inline ModelConfig small_unlike_config(std::size_t kv_heads, bool tied = false) {
  ModelConfig config = small_config(16, 3, 8, kv_heads, 4, 13, 17, tied);
  config.specs = unlike_layers();
  config.local_rope_theta = 20;
  config.logit_cap = 3;
  return config;
}

/// Returns a small configuration of seven layers, some of which take k and v of others.
inline ModelConfig small_lending_config(std::size_t kv_heads, bool tied = false) {
  ModelConfig config = small_config(16, 7, 8, kv_heads, 4, 13, 17, tied);
  config.specs = lending_layers();
  return config;
}

/// Returns a small configuration of a family whose config.json says all that layers may be unlike in: six layers, the third and
/// the sixth of which have heads of their own size and number, and no W_V, and the last three of which take k and v of the second
/// and the third; outputs are scaled. `inputs`: elements of the input of its own that each layer gets; 0: none.
inline ModelConfig small_lending_family(std::size_t inputs) {
  std::string text = R"({
    "model_type": "gemma4_text", "hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 4, "global_head_dim": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": true, "intermediate_size": 13,
    "vocab_size": 17, "vocab_size_per_layer_input": 17, "num_kv_shared_layers": 3, "use_double_wide_mlp": true,
    "sliding_window": 5, "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                                         "sliding_attention", "full_attention"],
    "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000.0}},
    "hidden_size_per_layer_input": )";
  return parse_config(text + std::to_string(inputs) + "}", "test").config;
}

/// Returns a model with these windows, one for each layer.
inline ModelConfig with_windows(const std::vector<std::size_t>& of, ModelConfig config) {
  config.specs = windows(of);
  return config;
}

/// Returns a small configuration of four layers whose norms stand in unlike places; with biases of norms the head has one, too.
inline ModelConfig small_norms_config(std::size_t kv_heads, Norm norm = Norm::rms, bool tied = false) {
  ModelConfig config = small_config(16, 4, 8, kv_heads, 4, 13, 17, tied);
  config.type = &every_role();
  config.norm = norm;
  config.head_bias = norm == Norm::layer;
  config.specs = unlike_norms();
  return config;
}

/// Returns a small configuration of GPT-2's kind, with dropout everywhere and 64 positions.
inline ModelConfig small_gpt2_config(std::size_t layers, std::size_t heads, std::size_t head_dim, std::size_t intermediate,
                                     std::size_t vocabulary, bool tied = true) {
  ModelConfig config = small_config(heads * head_dim, layers, heads, heads, head_dim, intermediate, vocabulary, tied);
  config.become(model_type("gpt2"));
  config.max_positions = 64;
  config.residual_dropout = 0.2;
  config.embedding_dropout = 0.1;
  config.attention_dropout = 0.25;
  return config;
}

/// The step that a batch is of, for dropout.
inline constexpr std::uint64_t kTestStep = 3;

/// Ids and labels of a batch; some labels are missing.
struct BatchData {
  std::vector<Token> ids;
  std::vector<std::int64_t> labels;

  explicit BatchData(const ModelCase& of) {
    std::mt19937_64 random(of.seed * 7919 + 13);
    std::uniform_int_distribution<Token> id(0, static_cast<Token>(of.config.vocabulary) - 1);
    for (std::size_t i = 0; i < of.batch * of.sequence; ++i) {
      ids.push_back(id(random));
      labels.push_back(random() % 11 == 0 ? -1 : id(random));
    }
    labels.back() = 0;
    if (of.document_end) unlabel_ends(labels, ids, *of.document_end);
  }
  TokenBatch view(const ModelCase& of) const {
    return {.batch = of.batch,
            .sequence = of.sequence,
            .ids = ids,
            .labels = labels,
            .document_end = of.document_end,
            .seed = of.seed,
            .step = kTestStep,
            .micro_batches = of.micro_batches};
  }
};

using Tensors = std::map<std::string, std::vector<double>, std::less<>>;

struct ModelRun {
  double loss = 0;
  double gradient_norm = 0;
  Tensors gradients;  ///< by parameter, natural order
  std::vector<TrafficCounters> forward;
  std::vector<TrafficCounters> backward;
  std::vector<CategoryBytes> peaks;
  std::vector<theory::Traffic> counted;  ///< by a phantom of each rank
  std::vector<CategoryBytes> forecast;   ///< peaks of a phantom of each rank
};

inline double element(ConstBuffer buffer, std::size_t i) {
  switch (buffer.dtype) {
    case DType::f64: return reinterpret_cast<const double*>(buffer.data)[i];
    case DType::f32: return static_cast<double>(reinterpret_cast<const float*>(buffer.data)[i]);
    default: return static_cast<double>(static_cast<float>(reinterpret_cast<const bf16*>(buffer.data)[i]));
  }
}

/// Writes rows of values, which lie one behind the other, into a matrix.
template <class T>
void put_rows(const safetensors::Rectangle& block, const T* values, double* matrix, std::size_t columns) {
  for (std::size_t i = 0; i < block.rows; ++i) {
    double* const row = matrix + (block.first_row + i) * columns + block.first_column;
    for (std::size_t j = 0; j < block.columns; ++j) {
      if constexpr (sizeof(T) == 2) row[j] = static_cast<double>(static_cast<float>(*values++));
      else row[j] = static_cast<double>(*values++);
    }
  }
}

/// Puts this rank's part of a tensor where it belongs in the whole.
inline void collect(Rank& rank, const PartPlan& plan, const Tensor& tensor, Tensors& whole, std::mutex& mutex) {
  for_natural_blocks(rank, plan, tensor, [&](const safetensors::Rectangle& block, ConstBuffer values) {
    const std::lock_guard lock(mutex);
    std::vector<double>& all = whole[plan.parameter.name];
    all.resize(plan.parameter.elements(), std::numeric_limits<double>::quiet_NaN());
    const std::size_t columns = plan.parameter.columns();
    switch (values.dtype) {
      case DType::f64: put_rows(block, reinterpret_cast<const double*>(values.data), all.data(), columns); break;
      case DType::f32: put_rows(block, reinterpret_cast<const float*>(values.data), all.data(), columns); break;
      default: put_rows(block, reinterpret_cast<const bf16*>(values.data), all.data(), columns); break;
    }
  });
}

/// Makes matrices that aren't near zero, biases that aren't zero, and gains of unlike elements, so that every term of a gradient
/// matters, and no vector is like another.
inline void disturb(const ParameterStore& store) {
  for (const ParameterPart& part : store.parts()) {
    const Fresh fresh = traits_of(part.plan.parameter.role).fresh;
    if (fresh == Fresh::zeros || fresh == Fresh::ones) {  // every rank has all of these
      const auto shift = static_cast<double>(name_hash(part.plan.parameter.name) % 100);
      for (std::size_t i = 0; i < part.value.elements(); ++i) {
        const double wave = std::cos(static_cast<double>(i) + shift);
        const double value = fresh == Fresh::ones ? 0.7 + wave / 50 : wave / 2;
        if (part.value.dtype() == DType::f64) part.value.as<double>()[i] = value;
        if (part.value.dtype() == DType::f32) part.value.as<float>()[i] = static_cast<float>(value);
        if (part.value.dtype() == DType::bf16) part.value.as<bf16>()[i] = bf16(static_cast<float>(value));
      }
      continue;
    }
    constexpr double factor = 10;
    for (std::size_t i = 0; i < part.value.elements(); ++i) {
      if (part.value.dtype() == DType::f64) part.value.as<double>()[i] *= factor;
      if (part.value.dtype() == DType::f32) part.value.as<float>()[i] *= static_cast<float>(factor);
      if (part.value.dtype() == DType::bf16) {
        part.value.as<bf16>()[i] = bf16(static_cast<float>(part.value.as<bf16>()[i]) * static_cast<float>(factor));
      }
    }
  }
}

/// One step on the ranks of a mesh. `weights`, if not null, gets the parameters.
inline ModelRun run_model(const ModelCase& of, const Layout& layout, Tensors* weights = nullptr) {
  ModelRun result;
  const int ranks = layout.ranks();
  const auto count = static_cast<std::size_t>(ranks);
  result.forward.resize(count);
  result.backward.resize(count);
  result.peaks.resize(count);
  result.counted.resize(count);
  result.forecast.resize(count);
  const BatchData data(of);
  std::mutex mutex;
  run_ranks(ranks,
            [&](Context& context) {
              tsprun::detail::RankOptions options;
              options.threads = of.threads;
              Rank rank(context, options);
              Mesh mesh(context.world(), layout);
              Model model(rank, mesh,
                          {.config = of.config,
                           .dtype = of.dtype,
                           .recompute = of.recompute,
                           .training = true,
                           .kv_bucket_heads = of.kv_bucket_heads});
              model.parameters().fill_fresh(of.config.layers, of.seed);
              disturb(model.parameters());
              model.parameters().begin_optimizer();
              const Loss loss =
                  of.tasks.empty() ? model.forward_backward(data.view(of)) : model.forward_backward(data.view(of), of.tasks);
              const double norm = model.gradient_norm();
              // Changes no weight, but gathers those that replicas share.
              model.update({.learning_rate = 0, .weight_decay = 0}, norm);
              const CategoryBytes peaks = context.memory_peaks();
              for (const ParameterPart& part : model.parameters().states()) {
                if (!part.plan.counted) continue;
                collect(rank, part.plan, part.gradient, result.gradients, mutex);
                if (weights != nullptr) collect(rank, part.plan, part.value, *weights, mutex);
              }
              theory::RunPeaks phantom({.setting = of.setting(), .layout = layout}, context.rank(),
                                       {.kv_bucket_heads = of.kv_bucket_heads, .like = likeness(context)});
              phantom.pass(data.view(of));
              const std::lock_guard lock(mutex);
              const auto me = static_cast<std::size_t>(context.rank());
              if (me == 0) {
                result.loss = loss.mean;
                result.gradient_norm = norm;
              }
              result.forward[me] = model.forward_traffic();
              result.backward[me] = model.backward_traffic();
              result.peaks[me] = peaks;
              result.counted[me] = phantom.traffic();
              result.forecast[me] = phantom.peaks();
            },
            {.algorithms = of.algorithms});
  return result;
}

/// Expects that every rank received what its phantom counted.
inline void expect_counted(const ModelRun& run, const std::string& where) {
  for (std::size_t rank = 0; rank < run.counted.size(); ++rank) {
    const theory::Traffic measured = {.forward = theory::PurposeBytes::received(run.forward[rank]),
                                      .backward = theory::PurposeBytes::received(run.backward[rank])};
    for (int i = 0; i < kPurposes; ++i) {
      const auto purpose = static_cast<Purpose>(i);
      EXPECT_EQ(measured.forward[purpose], run.counted[rank].forward[purpose])
          << name(purpose) << " forward, rank " << rank << ", " << where;
      EXPECT_EQ(measured.backward[purpose], run.counted[rank].backward[purpose])
          << name(purpose) << " backward, rank " << rank << ", " << where;
    }
  }
}

/// Does the same under TSP.
inline ModelRun run_model(const ModelCase& of, int ranks, Tensors* weights = nullptr) {
  return run_model(of, Layout::tsp(ranks), weights);
}

inline double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// ‖a − b‖ ≤ tolerance·max(‖b‖, 1e-2·largest gradient norm), for every tensor.
inline void expect_close(const Tensors& actual, const Tensors& expected, double tolerance, const std::string& where) {
  double largest = 0;
  for (const auto& [name, values] : expected) largest = std::max(largest, norm_of(values));
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name << ", " << where;
    const std::vector<double>& found = actual.at(name);
    ASSERT_EQ(found.size(), values.size()) << name;
    std::vector<double> difference(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) difference[i] = found[i] - values[i];
    EXPECT_LE(norm_of(difference), tolerance * std::max(norm_of(values), 1e-2 * largest)) << name << ", " << where;
  }
}

}  // namespace tsprun::detail::test
