// Names of element types, and conversions between bf16 and f32.
#include "tsprun/types.h"

#include <array>
#include <bit>

namespace tsprun {

namespace {
constexpr std::array<std::string_view, 4> kNames = {"bytes", "bf16", "f32", "f64"};
}  // namespace

std::string_view name(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::optional<DType> dtype_from_name(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bf16::bf16(float value) {
  const auto wide = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (wide & 0x7fffffffU) > 0x7f800000U;
  // Adding just under half of the last kept bit's value, and one more if that bit is 1, rounds to nearest with ties to even.
  const std::uint32_t rounded = is_nan ? wide | 0x00400000U : wide + 0x7fffU + ((wide >> 16) & 1U);
  bits = static_cast<std::uint16_t>(rounded >> 16);
}

bf16::operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace tsprun
