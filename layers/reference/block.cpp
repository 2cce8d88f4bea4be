// Reference block: Llama's forward and backward, and the checks of sizes that both families share.
#include "layers/reference/block.h"

#include "transport/cause.h"

#include <fmt/format.h>

namespace tsprun::detail::reference {

template <class T>
void check_tensors(const Tensors<T>& tensors, const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    const auto at = tensors.find(parameter.name);
    if (at == tensors.end()) throw Error(Cause::refused, fmt::format("reference: there is no tensor {}", parameter.name));
    if (at->second.size() != parameter.elements()) {
      throw Error(Cause::refused, fmt::format("reference: {} has {} elements; expected {}", parameter.name, at->second.size(),
                                              parameter.elements()));
    }
  }
}

template <class T>
Tensors<T> zeros(const std::vector<Parameter>& parameters) {
  Tensors<T> tensors;
  for (const Parameter& parameter : parameters) tensors[parameter.name].resize(parameter.elements());
  return tensors;
}

namespace {

/// Names of a block's weights.
struct Names {
  std::string norm1, q, k, v, o, norm2, gate, up, down;
};
Names names_of(const ModelConfig& config, std::size_t layer) {
  Names names;
  for (const Parameter& parameter : block_parameters(config, layer)) {
    switch (parameter.role) {
      case ParameterRole::attention_norm: names.norm1 = parameter.name; break;
      case ParameterRole::query: names.q = parameter.name; break;
      case ParameterRole::key: names.k = parameter.name; break;
      case ParameterRole::value: names.v = parameter.name; break;
      case ParameterRole::output: names.o = parameter.name; break;
      case ParameterRole::mlp_norm: names.norm2 = parameter.name; break;
      case ParameterRole::gate: names.gate = parameter.name; break;
      case ParameterRole::up: names.up = parameter.name; break;
      case ParameterRole::down: names.down = parameter.name; break;
      default: break;
    }
  }
  return names;
}

AttentionSizes attention_sizes(const ModelConfig& config, std::size_t batch, std::size_t sequence) {
  return {batch, sequence, config.query_heads, config.kv_heads, config.head_dim};
}

template <class T>
void check_size(const char* what, const std::vector<T>& x, std::size_t expected) {
  if (x.size() == expected) return;
  throw Error(Cause::refused, fmt::format("reference: {} has {} elements; expected B·S·h = {}", what, x.size(), expected));
}

template <class T>
std::vector<T> sum(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] + b[i];
  return result;
}

}  // namespace

template <class T>
BlockActivations<T> block_forward(const ModelConfig& config, std::size_t layer, std::size_t batch, std::size_t sequence,
                                  const Tensors<T>& weights, const std::vector<T>& x, const DropoutDraw& draw) {
  check_tensors(weights, block_parameters(config, layer));
  const std::size_t h = config.hidden;
  const std::size_t a = config.query_width();
  const std::size_t k = config.kv_width();
  const std::size_t f = config.intermediate;
  const std::size_t d = config.head_dim;
  check_size("x", x, batch * sequence * h);
  if (config.family == ModelFamily::gpt2) return gpt2_block_forward(config, layer, batch, sequence, weights, x, draw);
  const Names names = names_of(config, layer);
  const auto w = [&](const std::string& name) -> const std::vector<T>& { return weights.at(name); };

  BlockActivations<T> s{};
  s.batch = batch;
  s.sequence = sequence;
  s.x = x;
  s.norm1 = rms_norm(s.x, w(names.norm1), config.norm_epsilon);
  s.q = rope(linear(s.norm1, w(names.q), h, a), sequence, config.query_heads, d, config.rope_theta);
  s.k = rope(linear(s.norm1, w(names.k), h, k), sequence, config.kv_heads, d, config.rope_theta);
  s.v = linear(s.norm1, w(names.v), h, k);
  s.attention = attention(s.q, s.k, s.v, attention_sizes(config, batch, sequence));
  s.x2 = sum(s.x, linear(s.attention.output, w(names.o), a, h));

  s.norm2 = rms_norm(s.x2, w(names.norm2), config.norm_epsilon);
  s.gate = linear(s.norm2, w(names.gate), h, f);
  s.up = linear(s.norm2, w(names.up), h, f);
  s.act = swiglu(s.gate, s.up);
  s.y = sum(s.x2, linear(s.act, w(names.down), f, h));
  return s;
}

template <class T>
std::vector<T> block_backward(const ModelConfig& config, std::size_t layer, const Tensors<T>& weights,
                              const BlockActivations<T>& s, const std::vector<T>& dy, Tensors<T>& gradients) {
  check_tensors(weights, block_parameters(config, layer));
  check_tensors(gradients, block_parameters(config, layer));
  check_size("dy", dy, s.y.size());
  if (config.family == ModelFamily::gpt2) return gpt2_block_backward(config, layer, weights, s, dy, gradients);
  const std::size_t h = config.hidden;
  const std::size_t a = config.query_width();
  const std::size_t k = config.kv_width();
  const std::size_t f = config.intermediate;
  const std::size_t d = config.head_dim;
  const Names names = names_of(config, layer);
  const auto w = [&](const std::string& name) -> const std::vector<T>& { return weights.at(name); };
  const auto dw = [&](const std::string& name) -> std::vector<T>& { return gradients.find(name)->second; };
  const auto like = [](const std::vector<T>& x) { return std::vector<T>(x.size()); };

  std::vector<T> dact = like(s.act);
  std::vector<T> dgate = like(s.gate);
  std::vector<T> dup = like(s.up);
  std::vector<T> dnorm2 = like(s.norm2);
  std::vector<T> dx2 = dy;
  linear_backward(dact, dw(names.down), dy, s.act, w(names.down), f, h);
  swiglu_backward(dgate, dup, dact, s.gate, s.up);
  linear_backward(dnorm2, dw(names.gate), dgate, s.norm2, w(names.gate), h, f);
  linear_backward(dnorm2, dw(names.up), dup, s.norm2, w(names.up), h, f);
  rms_norm_backward(dx2, dw(names.norm2), dnorm2, s.x2, w(names.norm2), config.norm_epsilon);

  std::vector<T> doutput = like(s.attention.output);
  std::vector<T> dq = like(s.q);
  std::vector<T> dk = like(s.k);
  std::vector<T> dv = like(s.v);
  std::vector<T> dq_unturned = like(s.q);
  std::vector<T> dk_unturned = like(s.k);
  std::vector<T> dnorm1 = like(s.norm1);
  std::vector<T> dx = dx2;
  linear_backward(doutput, dw(names.o), dx2, s.attention.output, w(names.o), a, h);
  attention_backward(dq, dk, dv, doutput, s.attention.probabilities, s.q, s.k, s.v, attention_sizes(config, s.batch, s.sequence));
  rope_backward(dq_unturned, dq, s.sequence, config.query_heads, d, config.rope_theta);
  rope_backward(dk_unturned, dk, s.sequence, config.kv_heads, d, config.rope_theta);
  linear_backward(dnorm1, dw(names.q), dq_unturned, s.norm1, w(names.q), h, a);
  linear_backward(dnorm1, dw(names.k), dk_unturned, s.norm1, w(names.k), h, k);
  linear_backward(dnorm1, dw(names.v), dv, s.norm1, w(names.v), h, k);
  rms_norm_backward(dx, dw(names.norm1), dnorm1, s.x, w(names.norm1), config.norm_epsilon);
  return dx;
}

template <class T>
BlockResult<T> block(const ModelConfig& config, std::size_t batch, std::size_t sequence, const Tensors<T>& weights,
                     const std::vector<T>& x, const std::vector<T>& dy) {
  const BlockActivations<T> saved = block_forward(config, 0, batch, sequence, weights, x);
  BlockResult<T> result{saved.y, {}, {}};
  if (!dy.empty()) {
    result.gradients = zeros<T>(block_parameters(config, 0));
    result.dx = block_backward(config, 0, weights, saved, dy, result.gradients);
  }
  return result;
}

#define TSP_INSTANTIATE(T)                                                                                                 \
  template void check_tensors(const Tensors<T>&, const std::vector<Parameter>&);                                           \
  template Tensors<T> zeros(const std::vector<Parameter>&);                                                                \
  template BlockActivations<T> block_forward(const ModelConfig&, std::size_t, std::size_t, std::size_t, const Tensors<T>&, \
                                             const std::vector<T>&, const DropoutDraw&);                                   \
  template std::vector<T> block_backward(const ModelConfig&, std::size_t, const Tensors<T>&, const BlockActivations<T>&,   \
                                         const std::vector<T>&, Tensors<T>&);                                              \
  template BlockResult<T> block(const ModelConfig&, std::size_t, std::size_t, const Tensors<T>&, const std::vector<T>&,    \
                                const std::vector<T>&);

TSP_INSTANTIATE(float)
TSP_INSTANTIATE(double)
#undef TSP_INSTANTIATE

}  // namespace tsprun::detail::reference
