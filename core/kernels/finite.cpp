// Finds infinities and NaNs by their exponent bits, a piece of a row at a time, so that the compiler can vectorise the search.
#include "core/kernels/finite.h"

#include "core/kernels/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace tsprun::detail::kernels {

namespace {

/// Exponent bits of a float type. If all are set, the value is infinite or NaN.
template <class Bits>
constexpr Bits kExponent = sizeof(Bits) == 8   ? static_cast<Bits>(0x7ff0000000000000)
                           : sizeof(Bits) == 4 ? static_cast<Bits>(0x7f800000)
                                               : static_cast<Bits>(0x7f80);

/// Returns the index of the first infinite or NaN element of a row, or `count` if there is none.
template <class Bits>
std::size_t first_in_row(const std::byte* row, std::size_t count) {
  constexpr std::size_t kPiece = 1024;
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t size = std::min(kPiece, count - begin);
    Bits piece[kPiece];
    std::memcpy(piece, row + begin * sizeof(Bits), size * sizeof(Bits));
    Bits found = 0;
    for (std::size_t i = 0; i < size; ++i) {
      found = static_cast<Bits>(found | ((piece[i] & kExponent<Bits>) == kExponent<Bits> ? 1 : 0));
    }
    if (found == 0) continue;
    for (std::size_t i = 0;; ++i) {
      if ((piece[i] & kExponent<Bits>) == kExponent<Bits>) return begin + i;
    }
  }
  return count;
}

std::size_t first_in_row(DType dtype, const std::byte* row, std::size_t count) {
  switch (dtype) {
    case DType::f64: return first_in_row<std::uint64_t>(row, count);
    case DType::f32: return first_in_row<std::uint32_t>(row, count);
    default: return first_in_row<std::uint16_t>(row, count);
  }
}

}  // namespace

std::optional<std::size_t> first_not_finite(const ConstTensor& view) {
  if (view.empty()) return std::nullopt;
  require(dense_rows(view) && computes(view.dtype()), "first_not_finite", "the view must have dense rows of a float type", view);
  const std::size_t width = view.size(view.dims() - 1);
  for (std::size_t row = 0; row < row_count(view); ++row) {
    const std::size_t at = first_in_row(view.dtype(), row_of(view, row).data, width);
    if (at < width) return row * width + at;
  }
  return std::nullopt;
}

std::string describe_element(const ConstTensor& view, std::size_t number) {
  const std::size_t width = view.size(view.dims() - 1);
  const auto value = element<double>(row_of(view, number / width), number % width);
  std::string where;
  for (std::size_t dim = view.dims(); dim-- > 0;) {
    where = fmt::format("{}{}{}", number % view.size(dim), where.empty() ? "" : ", ", where);
    number /= view.size(dim);
  }
  const std::string text = std::isnan(value) ? "nan" : fmt::format("{}", value);
  return fmt::format("{} at [{}]", text, where);
}

}  // namespace tsprun::detail::kernels
