// Plain loops, each forward followed by its backward.
#include "tests/reference/operations.h"

#include <algorithm>
#include <cmath>

namespace tsprun::detail::reference {

namespace {

/// Returns 1/√(mean(x²) + ε) of one row.
template <class T>
T inverse_rms(const T* x, std::size_t h, double epsilon) {
  T squares = 0;
  for (std::size_t i = 0; i < h; ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares / static_cast<T>(h) + static_cast<T>(epsilon));
}

}  // namespace

template <class T>
std::vector<T> rms_norm(const std::vector<T>& x, const std::vector<T>& gain, double epsilon) {
  const std::size_t h = gain.size();
  std::vector<T> y(x.size());
  for (std::size_t row = 0; row < x.size(); row += h) {
    const T r = inverse_rms(&x[row], h, epsilon);
    for (std::size_t i = 0; i < h; ++i) y[row + i] = gain[i] * x[row + i] * r;
  }
  return y;
}

template <class T>
void rms_norm_backward(std::vector<T>& dx, std::vector<T>& dgain, const std::vector<T>& dy, const std::vector<T>& x,
                       const std::vector<T>& gain, double epsilon) {
  const std::size_t h = gain.size();
  for (std::size_t row = 0; row < x.size(); row += h) {
    const T r = inverse_rms(&x[row], h, epsilon);
    T mean = 0;  // of dy ∘ gain ∘ x·r
    for (std::size_t i = 0; i < h; ++i) mean += dy[row + i] * gain[i] * x[row + i] * r;
    mean /= static_cast<T>(h);
    for (std::size_t i = 0; i < h; ++i) {
      dx[row + i] += r * (dy[row + i] * gain[i] - x[row + i] * r * mean);
      dgain[i] += dy[row + i] * x[row + i] * r;
    }
  }
}

namespace {

template <class T>
struct Moments {
  T mean;
  T rate;  // 1/√(var + ε)
};

template <class T>
Moments<T> moments(const T* x, std::size_t h, double epsilon) {
  T mean = 0;
  for (std::size_t i = 0; i < h; ++i) mean += x[i];
  mean /= static_cast<T>(h);
  T variance = 0;
  for (std::size_t i = 0; i < h; ++i) variance += (x[i] - mean) * (x[i] - mean);
  variance /= static_cast<T>(h);
  return {mean, 1 / std::sqrt(variance + static_cast<T>(epsilon))};
}

}  // namespace

template <class T>
std::vector<T> layer_norm(const std::vector<T>& x, const std::vector<T>& gain, const std::vector<T>& bias, double epsilon) {
  const std::size_t h = gain.size();
  std::vector<T> y(x.size());
  for (std::size_t row = 0; row < x.size(); row += h) {
    const auto [mean, rate] = moments(&x[row], h, epsilon);
    for (std::size_t i = 0; i < h; ++i) y[row + i] = gain[i] * (x[row + i] - mean) * rate + bias[i];
  }
  return y;
}

template <class T>
void layer_norm_backward(std::vector<T>& dx, std::vector<T>& dgain, std::vector<T>& dbias, const std::vector<T>& dy,
                         const std::vector<T>& x, const std::vector<T>& gain, double epsilon) {
  const std::size_t h = gain.size();
  for (std::size_t row = 0; row < x.size(); row += h) {
    const auto [mean, rate] = moments(&x[row], h, epsilon);
    T mean_d = 0;        // of gain ∘ dy
    T mean_product = 0;  // of gain ∘ dy ∘ x̂
    for (std::size_t i = 0; i < h; ++i) {
      mean_d += gain[i] * dy[row + i];
      mean_product += gain[i] * dy[row + i] * (x[row + i] - mean) * rate;
    }
    mean_d /= static_cast<T>(h);
    mean_product /= static_cast<T>(h);
    for (std::size_t i = 0; i < h; ++i) {
      const T normal = (x[row + i] - mean) * rate;
      dx[row + i] += rate * (gain[i] * dy[row + i] - mean_d - normal * mean_product);
      dgain[i] += dy[row + i] * normal;
      dbias[i] += dy[row + i];
    }
  }
}

namespace {

/// Returns the share of a pair's plain frequency that yarn keeps: the paper's ramp (arXiv 2309.00071, section 3.2) over the
/// number of the pair, in words of turns in the original context.
double kept_by_yarn(std::size_t i, std::size_t dims, double theta, const RopeScaling& scaling) {
  const double tau = 2 * std::acos(-1.0);
  // A pair p turns original·θ^(−2p/r)/2π times, so the p that turns n times is r/2·log_θ(original/(2π·n)).
  const auto pair_of = [&](double turns) {
    const auto original = static_cast<double>(scaling.original_positions);
    return 0.5 * static_cast<double>(dims) * (std::log(original / tau / turns) / std::log(theta));
  };
  double from = pair_of(scaling.beta_fast);
  double to = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    from = std::floor(from);
    to = std::ceil(to);
  }
  if (from < 0) from = 0;
  if (to > static_cast<double>(dims) - 1) to = static_cast<double>(dims) - 1;
  if (from == to) to += 0.001;
  const auto p = static_cast<double>(i);
  return p <= from ? 1 : p >= to ? 0 : (to - p) / (to - from);
}

/// Returns θ^(−2i/r) as the scaling changes it for sequences of so many tokens. That of Llama 3.1 is in Meta's words: by the
/// length of the wave, in tokens.
double frequency_of(std::size_t i, std::size_t dims, double theta, const RopeScaling& scaling, std::size_t sequence) {
  const double plain = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
  if (scaling.kind == RopeScaling::Kind::none) return plain;
  if (scaling.kind == RopeScaling::Kind::linear) return plain / scaling.factor;
  if (scaling.kind == RopeScaling::Kind::longrope)
    return plain / (sequence <= scaling.original_positions ? scaling.short_factors[i] : scaling.long_factors[i]);
  if (scaling.kind == RopeScaling::Kind::yarn) {
    const double kept = kept_by_yarn(i, dims, theta, scaling);
    return kept * plain + (1 - kept) * (plain / scaling.factor);
  }
  const double wave = 2 * std::acos(-1.0) / plain;
  const auto original = static_cast<double>(scaling.original_positions);
  if (wave < original / scaling.high_frequency_factor) return plain;
  if (wave > original / scaling.low_frequency_factor) return plain / scaling.factor;
  const double smooth =
      (original / wave - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * plain / scaling.factor + smooth * plain;
}

/// Adds the heads of x, rotated forward (direction 1) or back (−1), to y.
template <class T>
void add_turned(std::vector<T>& y, const std::vector<T>& x, std::size_t sequence, std::size_t heads, std::size_t head_dim,
                const Rope& of, double direction) {
  const std::size_t dims = of.dims == 0 ? head_dim : of.dims;
  const std::size_t tokens = x.size() / (heads * head_dim);
  for (std::size_t token = 0; token < tokens; ++token) {
    const std::size_t position = token % sequence;
    double factor = of.scaling.attention_factor;
    if (of.of_queries && of.scaling.query_growth > 0)
      factor *=
          1 + of.scaling.query_growth *
                  std::log(1.0 + std::floor(static_cast<double>(position) / static_cast<double>(of.scaling.original_positions)));
    for (std::size_t i = 0; i < dims / 2; ++i) {
      const double angle = direction * static_cast<double>(position) * frequency_of(i, dims, of.theta, of.scaling, sequence);
      const T cosine = static_cast<T>(factor * std::cos(angle));
      const T sine = static_cast<T>(factor * std::sin(angle));
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t begin = (token * heads + head) * head_dim;
        const std::size_t first = begin + (of.interleaved ? 2 * i : i);
        const std::size_t second = begin + (of.interleaved ? 2 * i + 1 : i + dims / 2);
        y[first] += x[first] * cosine - x[second] * sine;
        y[second] += x[second] * cosine + x[first] * sine;
      }
    }
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t i = dims; i < head_dim; ++i) {
        const std::size_t at = (token * heads + head) * head_dim + i;
        y[at] += x[at];
      }
    }
  }
}

}  // namespace

template <class T>
std::vector<T> rope(const std::vector<T>& x, std::size_t sequence, std::size_t heads, std::size_t head_dim, const Rope& of) {
  std::vector<T> y(x.size());
  add_turned(y, x, sequence, heads, head_dim, of, 1);
  return y;
}

template <class T>
void rope_backward(std::vector<T>& dx, const std::vector<T>& dy, std::size_t sequence, std::size_t heads, std::size_t head_dim,
                   const Rope& of) {
  add_turned(dx, dy, sequence, heads, head_dim, of, -1);
}

namespace {

/// Offsets of the vectors of tokens and heads.
struct Places {
  const AttentionSizes& sizes;

  std::size_t query(std::size_t b, std::size_t t, std::size_t head) const {
    return ((b * sizes.sequence + t) * sizes.query_heads + head) * sizes.head_dim;
  }
  /// Returns the offset of the K/V head that this query head reads.
  std::size_t key(std::size_t b, std::size_t t, std::size_t head) const {
    const std::size_t group = sizes.query_heads / sizes.kv_heads;
    return ((b * sizes.sequence + t) * sizes.kv_heads + head / group) * sizes.head_dim;
  }
  std::size_t probability(std::size_t b, std::size_t head, std::size_t t) const {
    return ((b * sizes.query_heads + head) * sizes.sequence + t) * sizes.sequence;
  }
  /// Returns the first key that query t sees.
  std::size_t first_key(std::size_t t) const { return sizes.window == 0 || t < sizes.window ? 0 : t - sizes.window + 1; }
};

/// Returns tanh(score / cap) for a score before the cap, q·k/√d.
template <class T>
T capped(const T* query, const T* key, std::size_t d, T scale, double cap) {
  T score = 0;
  for (std::size_t i = 0; i < d; ++i) score += query[i] * key[i];
  return std::tanh(score * scale / static_cast<T>(cap));
}

}  // namespace

template <class T>
Attention<T> attention(const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v, const AttentionSizes& sizes,
                       const std::vector<T>& factors) {
  const Places at{sizes};
  const std::size_t d = sizes.head_dim;
  const T scale = sizes.scale > 0 ? static_cast<T>(sizes.scale) : 1 / std::sqrt(static_cast<T>(d));
  Attention<T> result{std::vector<T>(q.size()),
                      std::vector<T>(sizes.batch * sizes.query_heads * sizes.sequence * sizes.sequence)};
  for (std::size_t b = 0; b < sizes.batch; ++b) {
    for (std::size_t head = 0; head < sizes.query_heads; ++head) {
      for (std::size_t t = 0; t < sizes.sequence; ++t) {
        const T* query = &q[at.query(b, t, head)];
        T* output = &result.output[at.query(b, t, head)];
        T* p = &result.probabilities[at.probability(b, head, t)];
        const std::size_t first = at.first_key(t);
        for (std::size_t u = first; u <= t; ++u) {
          const T* key = &k[at.key(b, u, head)];
          for (std::size_t i = 0; i < d; ++i) p[u] += query[i] * key[i];
          p[u] *= scale;
          if (sizes.cap > 0) p[u] = static_cast<T>(sizes.cap) * capped(query, key, d, scale, sizes.cap);
        }
        const T largest = *std::max_element(p + first, p + t + 1);
        T sum = 0;
        for (std::size_t u = first; u <= t; ++u) sum += p[u] = std::exp(p[u] - largest);
        for (std::size_t u = first; u <= t; ++u) {
          p[u] /= sum;
          const T kept = factors.empty() ? p[u] : p[u] * factors[at.probability(b, head, t) + u];
          const T* value = &v[at.key(b, u, head)];
          for (std::size_t i = 0; i < d; ++i) output[i] += kept * value[i];
        }
      }
    }
  }
  return result;
}

template <class T>
void attention_backward(std::vector<T>& dq, std::vector<T>& dk, std::vector<T>& dv, const std::vector<T>& doutput,
                        const std::vector<T>& probabilities, const std::vector<T>& q, const std::vector<T>& k,
                        const std::vector<T>& v, const AttentionSizes& sizes, const std::vector<T>& factors) {
  const Places at{sizes};
  const std::size_t d = sizes.head_dim;
  const T scale = sizes.scale > 0 ? static_cast<T>(sizes.scale) : 1 / std::sqrt(static_cast<T>(d));
  std::vector<T> dp(sizes.sequence);
  for (std::size_t b = 0; b < sizes.batch; ++b) {
    for (std::size_t head = 0; head < sizes.query_heads; ++head) {
      for (std::size_t t = 0; t < sizes.sequence; ++t) {
        const std::size_t query = at.query(b, t, head);
        const T* p = &probabilities[at.probability(b, head, t)];
        T mean = 0;  // Σ p∘dp
        for (std::size_t u = at.first_key(t); u <= t; ++u) {
          const std::size_t key = at.key(b, u, head);
          const T factor = factors.empty() ? T{1} : factors[at.probability(b, head, t) + u];
          dp[u] = 0;
          for (std::size_t i = 0; i < d; ++i) {
            dp[u] += factor * doutput[query + i] * v[key + i];
            dv[key + i] += factor * p[u] * doutput[query + i];
          }
          mean += p[u] * dp[u];
        }
        for (std::size_t u = at.first_key(t); u <= t; ++u) {
          const std::size_t key = at.key(b, u, head);
          T dscore = p[u] * (dp[u] - mean) * scale;
          if (sizes.cap > 0) {
            const T tanh = capped(&q[query], &k[key], d, scale, sizes.cap);
            dscore *= 1 - tanh * tanh;
          }
          for (std::size_t i = 0; i < d; ++i) {
            dq[query + i] += dscore * k[key + i];
            dk[key + i] += dscore * q[query + i];
          }
        }
      }
    }
  }
}

template <class T>
std::vector<T> swiglu(const std::vector<T>& gate, const std::vector<T>& up) {
  std::vector<T> y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const T sigmoid = 1 / (1 + std::exp(-gate[i]));
    y[i] = gate[i] * sigmoid * up[i];
  }
  return y;
}

template <class T>
void swiglu_backward(std::vector<T>& dgate, std::vector<T>& dup, const std::vector<T>& dy, const std::vector<T>& gate,
                     const std::vector<T>& up) {
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const T sigmoid = 1 / (1 + std::exp(-gate[i]));
    dgate[i] += dy[i] * up[i] * sigmoid * (1 + gate[i] * (1 - sigmoid));
    dup[i] += dy[i] * gate[i] * sigmoid;
  }
}

namespace {

constexpr double kGeluCubic = 0.044715;
const double kGeluLinear = std::sqrt(2 / std::acos(-1.0));

/// Returns Φ(x), the standard normal distribution function.
template <class T>
T normal_distribution(T x) {
  return std::erfc(-x / std::sqrt(T{2})) / 2;
}

}  // namespace

template <class T>
std::vector<T> gelu(const std::vector<T>& x, bool exact) {
  std::vector<T> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (exact) {
      y[i] = x[i] * normal_distribution(x[i]);
      continue;
    }
    const T inner = static_cast<T>(kGeluLinear) * (x[i] + static_cast<T>(kGeluCubic) * x[i] * x[i] * x[i]);
    y[i] = x[i] * (1 + std::tanh(inner)) / 2;
  }
  return y;
}

template <class T>
void gelu_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, bool exact) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (exact) {
      const T density = std::exp(-x[i] * x[i] / 2) / std::sqrt(static_cast<T>(2 * std::acos(-1.0)));
      dx[i] += dy[i] * (normal_distribution(x[i]) + x[i] * density);
      continue;
    }
    const T inner = static_cast<T>(kGeluLinear) * (x[i] + static_cast<T>(kGeluCubic) * x[i] * x[i] * x[i]);
    const T slope = static_cast<T>(kGeluLinear) * (1 + 3 * static_cast<T>(kGeluCubic) * x[i] * x[i]);
    const T t = std::tanh(inner);
    dx[i] += dy[i] * ((1 + t) / 2 + x[i] * (1 - t * t) * slope / 2);
  }
}

template <class T>
std::vector<T> embedding(const std::vector<T>& table, std::span<const std::int32_t> ids, std::size_t h) {
  std::vector<T> y(ids.size() * h);
  for (std::size_t n = 0; n < ids.size(); ++n) {
    for (std::size_t i = 0; i < h; ++i) y[n * h + i] = table[static_cast<std::size_t>(ids[n]) * h + i];
  }
  return y;
}

template <class T>
void embedding_backward(std::vector<T>& dtable, const std::vector<T>& dy, std::span<const std::int32_t> ids, std::size_t h) {
  for (std::size_t n = 0; n < ids.size(); ++n) {
    for (std::size_t i = 0; i < h; ++i) dtable[static_cast<std::size_t>(ids[n]) * h + i] += dy[n * h + i];
  }
}

namespace {

std::size_t count_labels(std::span<const std::int64_t> labels) {
  return static_cast<std::size_t>(std::count_if(labels.begin(), labels.end(), [](std::int64_t label) { return label >= 0; }));
}

/// Returns the log-sum-exp of one row.
template <class T>
T log_sum_exp(const T* row, std::size_t count) {
  const T largest = *std::max_element(row, row + count);
  T sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

}  // namespace

template <class T>
double cross_entropy(const std::vector<T>& logits, std::span<const std::int64_t> labels, std::size_t vocabulary) {
  const std::size_t predicted = count_labels(labels);
  if (predicted == 0) return 0;
  double sum = 0;
  for (std::size_t n = 0; n < labels.size(); ++n) {
    if (labels[n] < 0) continue;
    const T* row = &logits[n * vocabulary];
    sum += static_cast<double>(log_sum_exp(row, vocabulary) - row[labels[n]]);
  }
  return sum / static_cast<double>(predicted);
}

template <class T>
void cross_entropy_backward(std::vector<T>& dlogits, const std::vector<T>& logits, std::span<const std::int64_t> labels,
                            std::size_t vocabulary) {
  const T predicted = static_cast<T>(count_labels(labels));
  for (std::size_t n = 0; n < labels.size(); ++n) {
    if (labels[n] < 0) continue;
    const T* row = &logits[n * vocabulary];
    const T all = log_sum_exp(row, vocabulary);
    for (std::size_t i = 0; i < vocabulary; ++i) {
      const T target = i == static_cast<std::size_t>(labels[n]) ? 1 : 0;
      dlogits[n * vocabulary + i] += (std::exp(row[i] - all) - target) / predicted;
    }
  }
}

#define TSP_INSTANTIATE(T)                                                                                                     \
  template std::vector<T> rms_norm(const std::vector<T>&, const std::vector<T>&, double);                                      \
  template void rms_norm_backward(std::vector<T>&, std::vector<T>&, const std::vector<T>&, const std::vector<T>&,              \
                                  const std::vector<T>&, double);                                                              \
  template std::vector<T> layer_norm(const std::vector<T>&, const std::vector<T>&, const std::vector<T>&, double);             \
  template void layer_norm_backward(std::vector<T>&, std::vector<T>&, std::vector<T>&, const std::vector<T>&,                  \
                                    const std::vector<T>&, const std::vector<T>&, double);                                     \
  template std::vector<T> rope(const std::vector<T>&, std::size_t, std::size_t, std::size_t, const Rope&);                     \
  template void rope_backward(std::vector<T>&, const std::vector<T>&, std::size_t, std::size_t, std::size_t, const Rope&);     \
  template Attention<T> attention(const std::vector<T>&, const std::vector<T>&, const std::vector<T>&, const AttentionSizes&,  \
                                  const std::vector<T>&);                                                                      \
  template void attention_backward(std::vector<T>&, std::vector<T>&, std::vector<T>&, const std::vector<T>&,                   \
                                   const std::vector<T>&, const std::vector<T>&, const std::vector<T>&, const std::vector<T>&, \
                                   const AttentionSizes&, const std::vector<T>&);                                              \
  template std::vector<T> swiglu(const std::vector<T>&, const std::vector<T>&);                                                \
  template void swiglu_backward(std::vector<T>&, std::vector<T>&, const std::vector<T>&, const std::vector<T>&,                \
                                const std::vector<T>&);                                                                        \
  template std::vector<T> gelu(const std::vector<T>&, bool);                                                                   \
  template void gelu_backward(std::vector<T>&, const std::vector<T>&, const std::vector<T>&, bool);                            \
  template std::vector<T> embedding(const std::vector<T>&, std::span<const std::int32_t>, std::size_t);                        \
  template void embedding_backward(std::vector<T>&, const std::vector<T>&, std::span<const std::int32_t>, std::size_t);        \
  template double cross_entropy(const std::vector<T>&, std::span<const std::int64_t>, std::size_t);                            \
  template void cross_entropy_backward(std::vector<T>&, const std::vector<T>&, std::span<const std::int64_t>, std::size_t);

TSP_INSTANTIATE(float)
TSP_INSTANTIATE(double)
#undef TSP_INSTANTIATE

}  // namespace tsprun::detail::reference
