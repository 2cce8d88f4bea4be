// Applies dropout row by row: an element is kept if the upper 53 bits of its number are at least the threshold ⌈p·2⁵³⌉.
#include "core/kernels/dropout.h"

#include "core/kernels/check.h"

#include <cmath>
#include <stdexcept>
#include <type_traits>

namespace tsprun::detail::kernels {

namespace {

template <class To, class From>
void drop_row(To* to, const From* from, std::size_t width, std::uint64_t state, std::uint64_t threshold, double scale) {
  using T = std::conditional_t<std::is_same_v<To, double>, double, float>;
  constexpr int kUnusedBits = 11;
  const T factor = static_cast<T>(scale);
  for (std::size_t i = 0; i < width; ++i) {
    const bool stays = (split_mix(state, i) >> kUnusedBits) >= threshold;
    to[i] = static_cast<To>(stays ? static_cast<T>(from[i]) * factor : T{0});
  }
}

template <class To>
void drop_row_from(const Row& to, const ConstRow& from, std::size_t width, std::uint64_t state, std::uint64_t threshold,
                   double scale) {
  To* const out = reinterpret_cast<To*>(to.data);
  if constexpr (std::is_same_v<To, double>) {
    drop_row(out, reinterpret_cast<const double*>(from.data), width, state, threshold, scale);
  } else if (from.dtype == DType::bf16) {
    drop_row(out, reinterpret_cast<const bf16*>(from.data), width, state, threshold, scale);
  } else {
    drop_row(out, reinterpret_cast<const float*>(from.data), width, state, threshold, scale);
  }
}

}  // namespace

void dropout(const Compute& on, const Tensor& y, const ConstTensor& x, std::span<const std::uint64_t> rows, const Dropout& of) {
  require(dense_rows(x) && computes(x.dtype()) && x.dims() == 2 && x.size(0) == rows.size(), "dropout",
          "x must be [rows, h] with dense rows of a float type", x);
  check_like("dropout", "y must have x's shape and dense rows", y, x);
  if (!(of.probability >= 0 && of.probability < 1)) throw std::invalid_argument("dropout: the probability must be in [0, 1)");
  if (x.empty()) return;
  const std::size_t width = x.size(1);
  const auto threshold = static_cast<std::uint64_t>(std::ceil(of.probability * 0x1p53));
  const double scale = 1 / (1 - of.probability);
  for_rows(on, x.size(0), width, [&](std::size_t first, std::size_t end) {
    for (std::size_t r = first; r < end; ++r) {
      const std::uint64_t state = split_mix(of.key, rows[r]);
      const Row to = row_of(y, r);
      const ConstRow from = row_of(x, r);
      if (to.dtype == DType::f64) drop_row_from<double>(to, from, width, state, threshold, scale);
      else if (to.dtype == DType::f32) drop_row_from<float>(to, from, width, state, threshold, scale);
      else drop_row_from<bf16>(to, from, width, state, threshold, scale);
    }
  });
}

}  // namespace tsprun::detail::kernels
