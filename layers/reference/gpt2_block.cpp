// Reference block of GPT-2, forward and backward. The formulas are in block.h.
#include "layers/reference/block.h"

#include <fmt/format.h>

namespace tsprun::detail::reference {

namespace {

AttentionSizes gpt2_attention_sizes(const ModelConfig& config, std::size_t batch, std::size_t sequence) {
  return {batch, sequence, config.query_heads, config.query_heads, config.head_dim};
}

/// Returns columns [which·h, (which + 1)·h) of `all` [N, 3h]; put_third() writes them.
template <class T>
std::vector<T> third(const std::vector<T>& all, std::size_t which, std::size_t h) {
  std::vector<T> part(all.size() / 3);
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = all[i / h * 3 * h + which * h + i % h];
  return part;
}
template <class T>
void put_third(std::vector<T>& all, std::size_t which, std::size_t h, const std::vector<T>& part) {
  for (std::size_t i = 0; i < part.size(); ++i) all[i / h * 3 * h + which * h + i % h] = part[i];
}

template <class T>
std::vector<T> product(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] * b[i];
  return result;
}

template <class T>
std::vector<T> added(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] + b[i];
  return result;
}

}  // namespace

template <class T>
BlockActivations<T> gpt2_block_forward(const ModelConfig& config, std::size_t layer, std::size_t batch, std::size_t sequence,
                                       const Tensors<T>& weights, const std::vector<T>& x, const DropoutDraw& draw) {
  const std::size_t h = config.hidden;
  const auto w = [&](std::string_view name) -> const std::vector<T>& {
    return weights.find(fmt::format("h.{}.{}", layer, name))->second;
  };
  const auto factors = [&](DropoutSite site) {
    return dropout_factors<T>(draw, config.residual_dropout, layer, site, batch * sequence, h);
  };

  BlockActivations<T> s{};
  s.batch = batch;
  s.sequence = sequence;
  s.draw = draw;
  s.x = x;
  s.norm1 = layer_norm(s.x, w("ln_1.weight"), w("ln_1.bias"), config.norm_epsilon);
  const std::vector<T> qkv = conv1d(s.norm1, w("attn.c_attn.weight"), w("attn.c_attn.bias"));
  s.q = third(qkv, 0, h);
  s.k = third(qkv, 1, h);
  s.v = third(qkv, 2, h);
  s.attention =
      attention(s.q, s.k, s.v, gpt2_attention_sizes(config, batch, sequence),
                attention_dropout_factors<T>(draw, config.attention_dropout, layer, batch, config.query_heads, sequence));
  s.x2 = added(
      s.x, product(factors(DropoutSite::attention), conv1d(s.attention.output, w("attn.c_proj.weight"), w("attn.c_proj.bias"))));

  s.norm2 = layer_norm(s.x2, w("ln_2.weight"), w("ln_2.bias"), config.norm_epsilon);
  s.up = conv1d(s.norm2, w("mlp.c_fc.weight"), w("mlp.c_fc.bias"));
  s.act = gelu(s.up, config.exact_gelu);
  s.y = added(s.x2, product(factors(DropoutSite::mlp), conv1d(s.act, w("mlp.c_proj.weight"), w("mlp.c_proj.bias"))));
  return s;
}

template <class T>
std::vector<T> gpt2_block_backward(const ModelConfig& config, std::size_t layer, const Tensors<T>& weights,
                                   const BlockActivations<T>& s, const std::vector<T>& dy, Tensors<T>& gradients) {
  const std::size_t h = config.hidden;
  const auto name = [&](std::string_view part) { return fmt::format("h.{}.{}", layer, part); };
  const auto w = [&](std::string_view part) -> const std::vector<T>& { return weights.find(name(part))->second; };
  const auto dw = [&](std::string_view part) -> std::vector<T>& { return gradients.find(name(part))->second; };
  const auto like = [](const std::vector<T>& x) { return std::vector<T>(x.size()); };
  const auto factors = [&](DropoutSite site) {
    return dropout_factors<T>(s.draw, config.residual_dropout, layer, site, s.batch * s.sequence, h);
  };

  std::vector<T> dact = like(s.act);
  std::vector<T> dup = like(s.up);
  std::vector<T> dnorm2 = like(s.norm2);
  std::vector<T> dx2 = dy;
  conv1d_backward(dact, dw("mlp.c_proj.weight"), dw("mlp.c_proj.bias"), product(factors(DropoutSite::mlp), dy), s.act,
                  w("mlp.c_proj.weight"));
  gelu_backward(dup, dact, s.up, config.exact_gelu);
  conv1d_backward(dnorm2, dw("mlp.c_fc.weight"), dw("mlp.c_fc.bias"), dup, s.norm2, w("mlp.c_fc.weight"));
  layer_norm_backward(dx2, dw("ln_2.weight"), dw("ln_2.bias"), dnorm2, s.x2, w("ln_2.weight"), config.norm_epsilon);

  std::vector<T> doutput = like(s.attention.output);
  std::vector<T> dq = like(s.q);
  std::vector<T> dk = like(s.k);
  std::vector<T> dv = like(s.v);
  std::vector<T> dqkv(3 * s.q.size());
  std::vector<T> dnorm1 = like(s.norm1);
  std::vector<T> dx = dx2;
  conv1d_backward(doutput, dw("attn.c_proj.weight"), dw("attn.c_proj.bias"), product(factors(DropoutSite::attention), dx2),
                  s.attention.output, w("attn.c_proj.weight"));
  attention_backward(
      dq, dk, dv, doutput, s.attention.probabilities, s.q, s.k, s.v, gpt2_attention_sizes(config, s.batch, s.sequence),
      attention_dropout_factors<T>(s.draw, config.attention_dropout, layer, s.batch, config.query_heads, s.sequence));
  put_third(dqkv, 0, h, dq);
  put_third(dqkv, 1, h, dk);
  put_third(dqkv, 2, h, dv);
  conv1d_backward(dnorm1, dw("attn.c_attn.weight"), dw("attn.c_attn.bias"), dqkv, s.norm1, w("attn.c_attn.weight"));
  layer_norm_backward(dx, dw("ln_1.weight"), dw("ln_1.bias"), dnorm1, s.x, w("ln_1.weight"), config.norm_epsilon);
  return dx;
}

#define TSP_INSTANTIATE(T)                                                                                                      \
  template BlockActivations<T> gpt2_block_forward(const ModelConfig&, std::size_t, std::size_t, std::size_t, const Tensors<T>&, \
                                                  const std::vector<T>&, const DropoutDraw&);                                   \
  template std::vector<T> gpt2_block_backward(const ModelConfig&, std::size_t, const Tensors<T>&, const BlockActivations<T>&,   \
                                              const std::vector<T>&, Tensors<T>&);

TSP_INSTANTIATE(float)
TSP_INSTANTIATE(double)
#undef TSP_INSTANTIATE

}  // namespace tsprun::detail::reference
