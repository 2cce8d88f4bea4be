// Computes a block's forward and backward pass from the operations of operations.h.
#include "tests/reference/block.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <cmath>

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

AttentionSizes attention_sizes(const ModelConfig& config, std::size_t layer, std::size_t batch, std::size_t sequence) {
  const LayerSpec& spec = config.layer(layer);
  const LayerSizes sizes(config, layer);
  return {batch,       sequence,      config.query_heads, sizes.kv_heads, sizes.head_dim, config.attention_multiplier,
          spec.window, spec.score_cap};
}

/// Returns how a layer that rotates does so with its queries or its keys.
Rope rope_of(const ModelConfig& config, std::size_t layer, bool of_queries) {
  const auto dims =
      static_cast<std::size_t>(std::floor(config.rotary_fraction * static_cast<double>(LayerSizes(config, layer).head_dim)));
  if (config.layer(layer).local_rotary) return {config.local_rope_theta, {}, dims, config.interleaved_rotary, of_queries};
  return {config.rope_theta, config.rope_scaling, dims, config.interleaved_rotary, of_queries};
}

template <class T>
void check_size(const char* what, const std::vector<T>& x, std::size_t expected) {
  if (x.size() == expected) return;
  throw Error(Cause::refused, fmt::format("reference: {} has {} elements; expected B·S·h = {}", what, x.size(), expected));
}

/// Returns what is added to the residual of a sublayer's result y, m·(factors ∘ y); with a gradient for y, that of the result.
template <class T>
std::vector<T> residual_part(const ModelConfig& config, const std::vector<T>& factors, const std::vector<T>& y) {
  std::vector<T> result(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) result[i] = static_cast<T>(config.residual_multiplier) * factors[i] * y[i];
  return result;
}

template <class T>
std::vector<T> product(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] * b[i];
  return result;
}

bool is_geglu(const ModelConfig& config) { return config.mlp == Mlp::geglu || config.mlp == Mlp::geglu_tanh; }

template <class T>
std::vector<T> sum(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] + b[i];
  return result;
}

}  // namespace

template <class T>
BlockActivations<T> block_forward(const ModelConfig& config, std::size_t layer, std::size_t batch, std::size_t sequence,
                                  const Tensors<T>& weights, const std::vector<T>& x, const DropoutDraw& draw,
                                  const BlockActivations<T>* lender) {
  const std::vector<Parameter> parameters = block_parameters(config, layer);
  check_tensors(weights, parameters);
  check_size("x", x, batch * sequence * config.hidden);
  const Layer<T> of(config, parameters, weights);
  const auto drop = [&](DropoutSite site, const std::vector<T>& y) {
    return residual_part(config, dropout_factors<T>(draw, config.residual_dropout, layer, site, batch * sequence, config.hidden),
                         y);
  };

  BlockActivations<T> s{};
  s.batch = batch;
  s.sequence = sequence;
  s.draw = draw;
  s.x = x;
  const LayerSizes sizes(config, layer);
  const NormPlaces norms = config.layer(layer).norms;
  const auto behind = [&](const std::vector<T>& y, ParameterRole gain) {
    return norms == NormPlaces::after || norms == NormPlaces::around ? of.norm(y, gain) : y;
  };
  s.norm1 = norms == NormPlaces::after ? s.x : of.norm(s.x, ParameterRole::attention_norm);
  s.q = of.linear(s.norm1, ParameterRole::query);
  const bool own = config.layer(layer).layers_to_lender == 0;
  s.k = own ? of.linear(s.norm1, ParameterRole::key) : lender->k;
  s.v = own ? of.linear(s.norm1, ParameterRole::value) : lender->v;
  if (config.layer(layer).norms_queries_and_keys()) {
    s.q_product = s.q;
    s.q = rms_norm(s.q_product, of.gain(ParameterRole::query_norm), config.norm_epsilon);
    if (own) {
      s.k_product = s.k;
      s.k = rms_norm(s.k_product, of.gain(ParameterRole::key_norm), config.norm_epsilon);
    }
  }
  if (config.layer(layer).rotary_positions) {
    s.q = rope(s.q, sequence, config.query_heads, sizes.head_dim, rope_of(config, layer, true));
    if (own) s.k = rope(s.k, sequence, sizes.kv_heads, sizes.head_dim, rope_of(config, layer, false));
  }
  s.attention =
      attention(s.q, s.k, s.v, attention_sizes(config, layer, batch, sequence),
                attention_dropout_factors<T>(draw, config.attention_dropout, layer, batch, config.query_heads, sequence));
  s.attention_result = of.linear(s.attention.output, ParameterRole::output);
  s.x2 = sum(s.x, drop(DropoutSite::attention, behind(s.attention_result, ParameterRole::post_attention_norm)));

  if (norms == NormPlaces::after) s.norm2 = s.x2;
  else if (norms == NormPlaces::shared) s.norm2 = s.norm1;
  else s.norm2 = of.norm(s.x2, ParameterRole::mlp_norm);
  s.up = of.linear(s.norm2, ParameterRole::up);
  if (config.mlp == Mlp::swiglu) {
    s.gate = of.linear(s.norm2, ParameterRole::gate);
    s.act = swiglu(s.gate, s.up);
  } else if (is_geglu(config)) {
    s.gate = of.linear(s.norm2, ParameterRole::gate);
    s.act = product(gelu(s.gate, config.mlp == Mlp::geglu), s.up);
  } else {
    s.act = gelu(s.up, config.mlp == Mlp::gelu);
  }
  s.mlp_result = of.linear(s.act, ParameterRole::down);
  s.y = sum(s.x2, drop(DropoutSite::mlp, behind(s.mlp_result, ParameterRole::post_mlp_norm)));
  return s;
}

template <class T>
std::vector<T> block_backward(const ModelConfig& config, std::size_t layer, const Tensors<T>& weights,
                              const BlockActivations<T>& s, const std::vector<T>& dy, Tensors<T>& gradients,
                              LentGradients<T>* lent) {
  const std::vector<Parameter> parameters = block_parameters(config, layer);
  check_tensors(weights, parameters);
  check_tensors(gradients, parameters);
  check_size("dy", dy, s.y.size());
  Layer<T> of(config, parameters, weights, &gradients);
  const auto like = [](const std::vector<T>& x) { return std::vector<T>(x.size()); };
  const auto drop = [&](DropoutSite site, const std::vector<T>& d) {
    return residual_part(
        config, dropout_factors<T>(s.draw, config.residual_dropout, layer, site, s.batch * s.sequence, config.hidden), d);
  };

  const LayerSizes sizes(config, layer);
  std::vector<T> dact = like(s.act);
  std::vector<T> dgate = like(s.gate);
  std::vector<T> dup = like(s.up);
  std::vector<T> dnorm2 = like(s.norm2);
  std::vector<T> dx2 = dy;
  const NormPlaces norms = config.layer(layer).norms;
  const auto before_norm = [&](const std::vector<T>& d, const std::vector<T>& result, ParameterRole gain) {
    if (norms != NormPlaces::after && norms != NormPlaces::around) return d;
    std::vector<T> dresult = like(d);
    of.norm_backward(dresult, d, result, gain);
    return dresult;
  };
  of.linear_backward(dact, before_norm(drop(DropoutSite::mlp, dy), s.mlp_result, ParameterRole::post_mlp_norm), s.act,
                     ParameterRole::down);
  if (config.mlp == Mlp::swiglu) {
    swiglu_backward(dgate, dup, dact, s.gate, s.up);
    of.linear_backward(dnorm2, dgate, s.norm2, ParameterRole::gate);
  } else if (is_geglu(config)) {
    dup = product(dact, gelu(s.gate, config.mlp == Mlp::geglu));
    gelu_backward(dgate, product(dact, s.up), s.gate, config.mlp == Mlp::geglu);
    of.linear_backward(dnorm2, dgate, s.norm2, ParameterRole::gate);
  } else {
    gelu_backward(dup, dact, s.up, config.mlp == Mlp::gelu);
  }
  of.linear_backward(dnorm2, dup, s.norm2, ParameterRole::up);
  if (norms == NormPlaces::after) dx2 = sum(dx2, dnorm2);
  else if (norms != NormPlaces::shared) of.norm_backward(dx2, dnorm2, s.x2, ParameterRole::mlp_norm);

  std::vector<T> doutput = like(s.attention.output);
  std::vector<T> dq = like(s.q);
  std::vector<T> dk = like(s.k);
  std::vector<T> dv = like(s.v);
  std::vector<T> dnorm1 = norms == NormPlaces::shared ? dnorm2 : like(s.norm1);
  std::vector<T> dx = dx2;
  of.linear_backward(doutput,
                     before_norm(drop(DropoutSite::attention, dx2), s.attention_result, ParameterRole::post_attention_norm),
                     s.attention.output, ParameterRole::output);
  attention_backward(
      dq, dk, dv, doutput, s.attention.probabilities, s.q, s.k, s.v, attention_sizes(config, layer, s.batch, s.sequence),
      attention_dropout_factors<T>(s.draw, config.attention_dropout, layer, s.batch, config.query_heads, s.sequence));
  const bool own = config.layer(layer).layers_to_lender == 0;
  if (lent != nullptr && !lent->dk.empty()) {
    dk = sum(dk, lent->dk);
    dv = sum(dv, lent->dv);
  }
  if (!own) *lent = {dk, dv};
  if (config.layer(layer).rotary_positions) {
    std::vector<T> dq_turned = like(dq);
    std::vector<T> dk_turned = like(dk);
    dq.swap(dq_turned);
    dk.swap(dk_turned);
    rope_backward(dq, dq_turned, s.sequence, config.query_heads, sizes.head_dim, rope_of(config, layer, true));
    rope_backward(dk, dk_turned, s.sequence, sizes.kv_heads, sizes.head_dim, rope_of(config, layer, false));
  }
  if (config.layer(layer).norms_queries_and_keys()) {
    const auto through_norm = [&](std::vector<T>& d, const std::vector<T>& product, ParameterRole gain) {
      std::vector<T> dx_of_norm = like(d);
      rms_norm_backward(dx_of_norm, of.gradient(gain), d, product, of.gain(gain), config.norm_epsilon);
      d.swap(dx_of_norm);
    };
    through_norm(dq, s.q_product, ParameterRole::query_norm);
    if (own) through_norm(dk, s.k_product, ParameterRole::key_norm);
  }
  of.linear_backward(dnorm1, dq, s.norm1, ParameterRole::query);
  if (own) {
    of.linear_backward(dnorm1, dk, s.norm1, ParameterRole::key);
    of.linear_backward(dnorm1, dv, s.norm1, ParameterRole::value);
  }
  if (norms == NormPlaces::after) return sum(dx, dnorm1);
  of.norm_backward(dx, dnorm1, s.x, ParameterRole::attention_norm);
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
                                             const std::vector<T>&, const DropoutDraw&, const BlockActivations<T>*);       \
  template std::vector<T> block_backward(const ModelConfig&, std::size_t, const Tensors<T>&, const BlockActivations<T>&,   \
                                         const std::vector<T>&, Tensors<T>&, LentGradients<T>*);                           \
  template BlockResult<T> block(const ModelConfig&, std::size_t, std::size_t, const Tensors<T>&, const std::vector<T>&,    \
                                const std::vector<T>&);

TSP_INSTANTIATE(float)
TSP_INSTANTIATE(double)
#undef TSP_INSTANTIATE

}  // namespace tsprun::detail::reference
