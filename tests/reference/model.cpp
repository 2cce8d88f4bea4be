// Reference model in plain loops: passes over all layers, greedy generation, AdamW.
#include "tests/reference/model.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace tsprun::detail::reference {

namespace {

template <class Integer>
void check_tokens(const char* what, std::span<const Integer> tokens, std::size_t count, Integer lowest, std::size_t vocabulary) {
  if (tokens.size() != count) {
    throw Error(Cause::refused, fmt::format("reference: there are {} {}; expected B·S = {}", tokens.size(), what, count));
  }
  for (const Integer token : tokens) {
    if (token >= lowest && (token < 0 || static_cast<std::size_t>(token) < vocabulary)) continue;
    throw Error(Cause::refused, fmt::format("reference: {}: {} is not in a vocabulary of {}", what, token, vocabulary));
  }
}

void check_positions(const ModelConfig& config, std::size_t sequence) {
  if (!config.learned_positions || sequence <= config.max_positions) return;
  throw Error(Cause::refused,
              fmt::format("reference: sequences of {} tokens; the model has {} positions", sequence, config.max_positions));
}

/// All intermediate results of a forward pass that backward needs.
template <class T>
struct Activations {
  std::vector<BlockActivations<T>> blocks;
  std::vector<T> last;    // [N, h], out of the last block
  std::vector<T> normed;  // [N, h]
  std::vector<T> logits;  // [N, V]
};

/// Adds row t of the table [P, h] to token t of each sequence.
template <class T>
void add_positions(std::vector<T>& x, const std::vector<T>& table, std::size_t sequence, std::size_t h) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += table[i / h % sequence * h + i % h];
}
template <class T>
void positions_backward(std::vector<T>& dtable, const std::vector<T>& dx, std::size_t sequence, std::size_t h) {
  for (std::size_t i = 0; i < dx.size(); ++i) dtable[i / h % sequence * h + i % h] += dx[i];
}

template <class T>
void multiply(std::vector<T>& x, double factor) {
  for (T& element : x) element *= static_cast<T>(factor);
}

double embedding_multiplier(const ModelConfig& config) {
  return config.embedding_multiplier * (config.embedding_times_root ? std::sqrt(static_cast<double>(config.hidden)) : 1);
}

template <class T>
std::vector<T> embedding_factors(const ModelConfig& config, std::size_t tokens, const DropoutDraw& draw) {
  return dropout_factors<T>(draw, config.embedding_dropout, 0, DropoutSite::embedding, tokens, config.hidden);
}

template <class T>
Activations<T> forward(const ModelConfig& config, std::size_t batch, std::size_t sequence, const Tensors<T>& weights,
                       std::span<const std::int32_t> ids, const DropoutDraw& draw = {}) {
  const Layer<T> of(config, model_parameters(config), weights);
  Activations<T> s;
  s.last = embedding(of.weight(ParameterRole::embedding), ids, config.hidden);
  multiply(s.last, embedding_multiplier(config));
  if (config.learned_positions) {
    add_positions(s.last, of.weight(ParameterRole::positions), sequence, config.hidden);
  }
  const std::vector<T> factors = embedding_factors<T>(config, ids.size(), draw);
  for (std::size_t i = 0; i < s.last.size(); ++i) s.last[i] *= factors[i];
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    const std::size_t back = config.layer(layer).layers_to_lender;
    const BlockActivations<T>* const lender = back > 0 ? &s.blocks[layer - back] : nullptr;
    s.blocks.push_back(block_forward(config, layer, batch, sequence, weights, s.last, draw, lender));
    s.last = s.blocks.back().y;
  }
  s.normed = of.norm(s.last, ParameterRole::final_norm);
  s.logits = of.linear(s.normed, ParameterRole::head);
  multiply(s.logits, config.logits_multiplier / config.logits_divisor);
  const auto cap = static_cast<T>(config.logit_cap);
  for (std::size_t i = 0; cap > 0 && i < s.logits.size(); ++i) s.logits[i] = cap * std::tanh(s.logits[i] / cap);
  return s;
}

template <class T>
Tensors<T> backward(const ModelConfig& config, const Tensors<T>& weights, std::span<const std::int32_t> ids,
                    std::span<const std::int64_t> labels, const Activations<T>& s, std::size_t sequence,
                    const DropoutDraw& draw) {
  const std::vector<Parameter> parameters = model_parameters(config);
  Tensors<T> gradients = zeros<T>(parameters);
  Layer<T> of(config, parameters, weights, &gradients);
  std::vector<T> dlogits(s.logits.size());
  std::vector<T> dnormed(s.normed.size());
  std::vector<T> dx(s.last.size());
  cross_entropy_backward(dlogits, s.logits, labels, config.vocabulary);
  const auto cap = static_cast<T>(config.logit_cap);
  for (std::size_t i = 0; cap > 0 && i < dlogits.size(); ++i) dlogits[i] *= 1 - s.logits[i] / cap * (s.logits[i] / cap);
  multiply(dlogits, config.logits_multiplier / config.logits_divisor);
  of.linear_backward(dnormed, dlogits, s.normed, ParameterRole::head);
  of.norm_backward(dx, dnormed, s.last, ParameterRole::final_norm);
  std::vector<LentGradients<T>> lent(config.layers);  // by the layer whose k and v they are of
  for (std::size_t layer = config.layers; layer-- > 0;) {
    LentGradients<T>& of_lender = lent[layer - config.layer(layer).layers_to_lender];
    dx = block_backward(config, layer, weights, s.blocks[layer], dx, gradients, &of_lender);
  }
  const std::vector<T> factors = embedding_factors<T>(config, ids.size(), draw);
  for (std::size_t i = 0; i < dx.size(); ++i) dx[i] *= factors[i];
  if (config.learned_positions) {
    positions_backward(of.gradient(ParameterRole::positions), dx, sequence, config.hidden);
  }
  multiply(dx, embedding_multiplier(config));
  embedding_backward(of.gradient(ParameterRole::embedding), dx, ids, config.hidden);
  return gradients;
}

}  // namespace

template <class T>
StepResult<T> model(const ModelConfig& config, std::size_t batch, std::size_t sequence, const Tensors<T>& weights,
                    std::span<const std::int32_t> ids, std::span<const std::int64_t> labels, bool with_gradients,
                    const DropoutDraw& draw) {
  check_tensors(weights, model_parameters(config));
  check_positions(config, sequence);
  check_tokens<std::int32_t>("ids", ids, batch * sequence, 0, config.vocabulary);
  check_tokens<std::int64_t>("labels", labels, batch * sequence, -1, config.vocabulary);
  Activations<T> s = forward(config, batch, sequence, weights, ids, draw);
  StepResult<T> result{cross_entropy(s.logits, labels, config.vocabulary), {}, {}};
  if (with_gradients) result.gradients = backward(config, weights, ids, labels, s, sequence, draw);
  result.logits = std::move(s.logits);
  return result;
}

template <class T>
std::vector<std::int32_t> generate_greedily(const ModelConfig& config, const Tensors<T>& weights,
                                            std::span<const std::int32_t> prompt, std::size_t count) {
  check_tensors(weights, model_parameters(config));
  check_tokens<std::int32_t>("ids", prompt, prompt.size(), 0, config.vocabulary);
  check_positions(config, prompt.size() + count - 1);
  std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<T> logits = forward(config, 1, ids.size(), weights, ids).logits;
    const auto last = logits.end() - static_cast<std::ptrdiff_t>(config.vocabulary);
    ids.push_back(static_cast<std::int32_t>(std::max_element(last, logits.end()) - last));
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()};
}

template <class T>
double adamw_step(const ModelConfig& config, const AdamWOptions& options, AdamWState<T>& state, Tensors<T>& weights,
                  const Tensors<T>& gradients) {
  const std::vector<Parameter> parameters = model_parameters(config);
  if (state.step == 0) {
    state.m = zeros<T>(parameters);
    state.v = zeros<T>(parameters);
  }
  check_tensors(weights, parameters);
  check_tensors(gradients, parameters);
  check_tensors(state.m, parameters);
  check_tensors(state.v, parameters);
  ++state.step;

  double squares = 0;
  for (const Parameter& parameter : parameters) {
    for (const T g : gradients.at(parameter.name)) squares += static_cast<double>(g) * static_cast<double>(g);
  }
  const double norm = std::sqrt(squares);
  const double scale = options.clip > 0 ? std::min(1.0, options.clip / (norm + 1e-6)) : 1.0;

  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(state.step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(state.step));
  for (const Parameter& parameter : parameters) {
    const double decay = parameter.is_matrix() ? options.weight_decay : 0;
    std::vector<T>& weight = weights.at(parameter.name);
    std::vector<T>& m = state.m.at(parameter.name);
    std::vector<T>& v = state.v.at(parameter.name);
    const std::vector<T>& gradient = gradients.at(parameter.name);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double g = scale * static_cast<double>(gradient[i]);
      const double m_i = options.beta1 * static_cast<double>(m[i]) + (1 - options.beta1) * g;
      const double v_i = options.beta2 * static_cast<double>(v[i]) + (1 - options.beta2) * g * g;
      const double step = (m_i / correction1) / (std::sqrt(v_i / correction2) + options.epsilon);
      const double kept = static_cast<double>(weight[i]) * (1 - options.learning_rate * decay);
      weight[i] = static_cast<T>(kept - options.learning_rate * step);
      m[i] = static_cast<T>(m_i);
      v[i] = static_cast<T>(v_i);
    }
  }
  return norm;
}

#define TSP_INSTANTIATE(T)                                                                                                     \
  template StepResult<T> model(const ModelConfig&, std::size_t, std::size_t, const Tensors<T>&, std::span<const std::int32_t>, \
                               std::span<const std::int64_t>, bool, const DropoutDraw&);                                       \
  template std::vector<std::int32_t> generate_greedily(const ModelConfig&, const Tensors<T>&, std::span<const std::int32_t>,   \
                                                       std::size_t);                                                           \
  template double adamw_step(const ModelConfig&, const AdamWOptions&, AdamWState<T>&, Tensors<T>&, const Tensors<T>&);

TSP_INSTANTIATE(float)
TSP_INSTANTIATE(double)
#undef TSP_INSTANTIATE

}  // namespace tsprun::detail::reference
