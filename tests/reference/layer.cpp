// Finds matrices, biases and gradients by role, also where Q, K and V, or gate and up, lie in one matrix.
#include "tests/reference/layer.h"

#include "tests/reference/operations.h"

namespace tsprun::detail::reference {

namespace {

/// Stands for the bias of a matrix that never has one: no vector of weights has this role.
constexpr auto kNoBias = static_cast<ParameterRole>(-1);

ParameterRole bias_of_norm(ParameterRole gain) { return static_cast<ParameterRole>(static_cast<int>(gain) + 1); }

}  // namespace

LayerSizes::LayerSizes(const ModelConfig& config, std::size_t layer)
    : kv_heads(config.kv_heads), head_dim(config.head_dim), intermediate(config.intermediate) {
  const LayerSpec& spec = config.layer(layer);
  if (spec.kv_heads > 0) kv_heads = spec.kv_heads;
  if (spec.head_dim > 0) head_dim = spec.head_dim;
  if (spec.intermediate > 0) intermediate = spec.intermediate;
}

template <class T>
Layer<T>::Layer(const ModelConfig& config, const std::vector<Parameter>& parameters, const Tensors<T>& weights,
                Tensors<T>* gradients)
    : config_(config), sizes_(config, parameters.front().layer), weights_(weights), gradients_(gradients) {
  for (const Parameter& parameter : parameters) names_.emplace(parameter.role, parameter.name);
}

template <class T>
const std::vector<T>& Layer<T>::weight(ParameterRole role) const {
  const auto name = names_.find(role);
  return name == names_.end() ? none_ : weights_.find(name->second)->second;
}

template <class T>
std::vector<T>& Layer<T>::gradient(ParameterRole role) {
  const auto name = names_.find(role);
  return name == names_.end() ? none_ : gradients_->find(name->second)->second;
}

template <class T>
std::vector<T> Layer<T>::gain(ParameterRole role) const {
  std::vector<T> values = weight(role);
  if (config_.gains_from_one) {
    for (T& value : values) value += 1;
  }
  return values;
}

template <class T>
std::vector<T> Layer<T>::norm(const std::vector<T>& x, ParameterRole gain) const {
  const std::vector<T> g = this->gain(gain);
  if (config_.norm == Norm::rms) return rms_norm(x, g, config_.norm_epsilon);
  const bool has_bias = config_.norm == Norm::layer;
  return layer_norm(x, g, has_bias ? weight(bias_of_norm(gain)) : std::vector<T>(g.size()), config_.norm_epsilon);
}

template <class T>
void Layer<T>::norm_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, ParameterRole gain) {
  const std::vector<T> g = this->gain(gain);
  if (config_.norm == Norm::rms) return rms_norm_backward(dx, gradient(gain), dy, x, g, config_.norm_epsilon);
  std::vector<T> unused(g.size());
  std::vector<T>& dbias = config_.norm == Norm::layer ? gradient(bias_of_norm(gain)) : unused;
  layer_norm_backward(dx, gradient(gain), dbias, dy, x, g, config_.norm_epsilon);
}

template <class T>
typename Layer<T>::Place Layer<T>::place(ParameterRole matrix) const {
  const std::size_t h = config_.hidden;
  const std::size_t a = config_.query_heads * sizes_.head_dim;
  const std::size_t k = sizes_.kv_heads * sizes_.head_dim;
  const std::size_t f = sizes_.intermediate;
  const bool of_head = matrix == ParameterRole::head;
  // Else W_Q, W_K and W_V lie in one matrix, and their biases likewise, or gate and up do.
  const bool alone = of_head || names_.contains(matrix);
  const bool of_mlp = matrix == ParameterRole::gate || matrix == ParameterRole::up;
  const auto projection = [&](std::size_t out, ParameterRole bias, std::size_t before) -> Place {
    return alone ? Place{h, out, bias} : Place{h, out, ParameterRole::query_key_value_bias, before};
  };
  const auto of = [&]() -> Place {
    switch (matrix) {
      case ParameterRole::query: return projection(a, ParameterRole::query_bias, 0);
      case ParameterRole::key: return projection(k, ParameterRole::key_bias, a);
      case ParameterRole::value: return projection(k, ParameterRole::value_bias, a + k);
      case ParameterRole::output: return {a, h, ParameterRole::output_bias};
      case ParameterRole::up: return {h, f, ParameterRole::up_bias};
      case ParameterRole::down: return {f, h, ParameterRole::down_bias};
      case ParameterRole::head: return {h, config_.vocabulary, ParameterRole::head_bias};
      default: return {h, f, kNoBias};
    }
  };
  Place at = of();
  at.matrix = of_head && config_.tied_embeddings ? ParameterRole::embedding : matrix;
  at.first = at.first_bias;
  at.width = at.out;
  if (!alone && of_mlp) {
    at.matrix = ParameterRole::gate_up;
    at.first = matrix == ParameterRole::up ? f : 0;
    at.width = 2 * f;
  } else if (!alone) {
    at.matrix = ParameterRole::query_key_value;
    at.width = a + 2 * k;
  }
  at.inputs_first = config_.type->inputs_first && !of_head;
  return at;
}

template <class T>
std::vector<T> Layer<T>::linear(const std::vector<T>& x, ParameterRole matrix) const {
  const Place at = place(matrix);
  const std::vector<T>& w = weight(at.matrix);
  const std::vector<T>& bias = weight(at.bias);
  const std::size_t rows = x.size() / at.in;
  std::vector<T> y(rows * at.out);
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t o = 0; o < at.out; ++o) {
      T sum = bias.empty() ? 0 : bias[at.first_bias + o];
      for (std::size_t i = 0; i < at.in; ++i) sum += x[n * at.in + i] * w[at.index(o, i)];
      y[n * at.out + o] = sum;
    }
  }
  return y;
}

template <class T>
void Layer<T>::linear_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, ParameterRole matrix) {
  const Place at = place(matrix);
  const std::vector<T>& w = weight(at.matrix);
  std::vector<T>& dw = gradient(at.matrix);
  std::vector<T>& dbias = gradient(at.bias);
  const std::size_t rows = x.size() / at.in;
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t o = 0; o < at.out; ++o) {
      const T d = dy[n * at.out + o];
      if (!dbias.empty()) dbias[at.first_bias + o] += d;
      for (std::size_t i = 0; i < at.in; ++i) {
        dx[n * at.in + i] += d * w[at.index(o, i)];
        dw[at.index(o, i)] += d * x[n * at.in + i];
      }
    }
  }
}

template class Layer<float>;
template class Layer<double>;

}  // namespace tsprun::detail::reference
