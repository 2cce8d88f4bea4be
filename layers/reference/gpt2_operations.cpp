// Plain loops for GPT-2's operations, and for dropout's draws, independently of core/kernels/dropout.h.
#include "layers/reference/gpt2_operations.h"

#include <cmath>

namespace tsprun::detail::reference {

template <class T>
std::vector<T> conv1d(const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& bias) {
  const std::size_t out = bias.size();
  const std::size_t in = w.size() / out;
  const std::size_t rows = x.size() / in;
  std::vector<T> y(rows * out);
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t o = 0; o < out; ++o) {
      T sum = bias[o];
      for (std::size_t i = 0; i < in; ++i) sum += x[n * in + i] * w[i * out + o];
      y[n * out + o] = sum;
    }
  }
  return y;
}

template <class T>
void conv1d_backward(std::vector<T>& dx, std::vector<T>& dw, std::vector<T>& dbias, const std::vector<T>& dy,
                     const std::vector<T>& x, const std::vector<T>& w) {
  const std::size_t out = dbias.size();
  const std::size_t in = w.size() / out;
  const std::size_t rows = x.size() / in;
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t o = 0; o < out; ++o) {
      const T d = dy[n * out + o];
      dbias[o] += d;
      for (std::size_t i = 0; i < in; ++i) {
        dx[n * in + i] += d * w[i * out + o];
        dw[i * out + o] += d * x[n * in + i];
      }
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

namespace {

/// Returns number n, from 0, of SplitMix64 seeded by x, written as its authors publish it (prng.di.unimi.it/splitmix64.c).
std::uint64_t split_mix(std::uint64_t x, std::uint64_t n) {
  x += n * 0x9e3779b97f4a7c15U;
  std::uint64_t z = (x += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

}  // namespace

template <class T>
std::vector<T> dropout_factors(const DropoutDraw& draw, double probability, std::size_t layer, DropoutSite site,
                               std::size_t tokens, std::size_t h) {
  std::vector<T> factors(tokens * h, T{1});
  if (!draw.training || probability == 0) return factors;
  const std::uint64_t of_site = split_mix(split_mix(split_mix(draw.seed, draw.step), layer), static_cast<std::uint64_t>(site));
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::uint64_t of_token = split_mix(of_site, t);
    for (std::size_t i = 0; i < h; ++i) {
      const double fraction = static_cast<double>(split_mix(of_token, i) >> 11) / 9007199254740992.0;
      factors[t * h + i] = fraction >= probability ? static_cast<T>(1 / (1 - probability)) : T{0};
    }
  }
  return factors;
}

template <class T>
std::vector<T> attention_dropout_factors(const DropoutDraw& draw, double probability, std::size_t layer, std::size_t batch,
                                         std::size_t heads, std::size_t sequence) {
  std::vector<T> factors(batch * heads * sequence * sequence, T{1});
  if (!draw.training || probability == 0) return factors;
  const auto site = static_cast<std::uint64_t>(DropoutSite::probabilities);
  const std::uint64_t of_site = split_mix(split_mix(split_mix(draw.seed, draw.step), layer), site);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::size_t row = i / sequence;  // (b, n, query position)
    const std::uint64_t of_head = split_mix(split_mix(of_site, row / sequence / heads), row / sequence % heads);
    const double fraction =
        static_cast<double>(split_mix(split_mix(of_head, row % sequence), i % sequence) >> 11) / 9007199254740992.0;
    factors[i] = fraction >= probability ? static_cast<T>(1 / (1 - probability)) : T{0};
  }
  return factors;
}

#define TSP_INSTANTIATE(T)                                                                                                       \
  template std::vector<T> conv1d(const std::vector<T>&, const std::vector<T>&, const std::vector<T>&);                           \
  template void conv1d_backward(std::vector<T>&, std::vector<T>&, std::vector<T>&, const std::vector<T>&, const std::vector<T>&, \
                                const std::vector<T>&);                                                                          \
  template std::vector<T> layer_norm(const std::vector<T>&, const std::vector<T>&, const std::vector<T>&, double);               \
  template void layer_norm_backward(std::vector<T>&, std::vector<T>&, std::vector<T>&, const std::vector<T>&,                    \
                                    const std::vector<T>&, const std::vector<T>&, double);                                       \
  template std::vector<T> gelu(const std::vector<T>&, bool);                                                                     \
  template void gelu_backward(std::vector<T>&, const std::vector<T>&, const std::vector<T>&, bool);                              \
  template std::vector<T> dropout_factors(const DropoutDraw&, double, std::size_t, DropoutSite, std::size_t, std::size_t);       \
  template std::vector<T> attention_dropout_factors(const DropoutDraw&, double, std::size_t, std::size_t, std::size_t,           \
                                                    std::size_t);

TSP_INSTANTIATE(float)
TSP_INSTANTIATE(double)
#undef TSP_INSTANTIATE

}  // namespace tsprun::detail::reference
