// Plain loops for dropout's draws, independently of core/kernels/dropout.h.
#include "tests/reference/dropout.h"

namespace tsprun::detail::reference {

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

#define TSP_INSTANTIATE(T)                                                                                                 \
  template std::vector<T> dropout_factors(const DropoutDraw&, double, std::size_t, DropoutSite, std::size_t, std::size_t); \
  template std::vector<T> attention_dropout_factors(const DropoutDraw&, double, std::size_t, std::size_t, std::size_t,     \
                                                    std::size_t);

TSP_INSTANTIATE(float)
TSP_INSTANTIATE(double)
#undef TSP_INSTANTIATE

}  // namespace tsprun::detail::reference
