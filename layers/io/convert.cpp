// Converts elements through double, rounding once; f16 and bf16 conversions are written out.
#include "layers/io/convert.h"

#include "core/tensor/tensor.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace tsprun::detail {

static_assert(std::endian::native == std::endian::little, "files are little-endian and are read as they lie");

namespace {

struct TypeText {
  std::string_view name;
  std::size_t bytes;
};
constexpr TypeText kTypes[] = {
#define TSP_X(name, bytes) {#name, bytes},
    TSP_STORED_TYPES(TSP_X)
#undef TSP_X
};

/// IEEE 754 half precision as files store it.
struct Half {
  std::uint16_t bits;

  explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fU;
    const std::uint32_t fraction = bits & 0x3ffU;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
    const float subnormal = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
  }
};
static_assert(sizeof(Half) == 2);

template <class From>
double widen(From value) {
  if constexpr (std::is_same_v<From, double>) return value;
  else return static_cast<double>(static_cast<float>(value));
}

template <class To>
To narrow(double value) {
  if constexpr (std::is_same_v<To, bf16>) return bf16_from(value);
  else return static_cast<To>(value);
}

template <class From, class To>
void convert_elements(const std::byte* source, std::byte* target, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, source + i * sizeof(From), sizeof(From));
    const To to = narrow<To>(widen(from));
    std::memcpy(target + i * sizeof(To), &to, sizeof(To));
  }
}

template <class From>
void convert_to(const std::byte* source, DType to, std::byte* target, std::size_t count) {
  switch (to) {
    case DType::f64: return convert_elements<From, double>(source, target, count);
    case DType::f32: return convert_elements<From, float>(source, target, count);
    case DType::bf16: return convert_elements<From, bf16>(source, target, count);
    default: return;
  }
}

}  // namespace

std::size_t size_of(StoredType type) { return kTypes[static_cast<std::size_t>(type)].bytes; }
std::string_view name(StoredType type) { return kTypes[static_cast<std::size_t>(type)].name; }

std::optional<StoredType> stored_type_from_name(std::string_view text) {
  const auto at = std::find_if(std::begin(kTypes), std::end(kTypes), [text](const TypeText& type) { return type.name == text; });
  if (at == std::end(kTypes)) return std::nullopt;
  return static_cast<StoredType>(at - std::begin(kTypes));
}

bool is_readable(StoredType type) { return type <= StoredType::BF16; }

StoredType stored_type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return StoredType::F64;
    case DType::f32: return StoredType::F32;
    case DType::bf16: return StoredType::BF16;
    default: return StoredType::U8;
  }
}

bf16 bf16_from(double value) {
  const auto near = static_cast<float>(value);
  const auto back = static_cast<double>(near);
  if (back == value || std::isnan(value)) return bf16(near);
  // Rounding to f32 first could create a tie that doesn't exist. So truncate toward zero instead and set the last bit (round to
  // odd): it keeps the truncated part visible when the result is rounded to bf16.
  auto bits = std::bit_cast<std::uint32_t>(near);
  if (std::abs(back) > std::abs(value)) --bits;
  return bf16(std::bit_cast<float>(bits | 1U));
}

void convert_from_stored(StoredType from, const std::byte* source, DType to, std::byte* target, std::size_t count) {
  if (!is_readable(from) || !computes(to)) {
    throw Error(Cause::refused, fmt::format("elements of type {} can't be converted to {}", name(from), tsprun::name(to)));
  }
  if (from == stored_type_of(to)) {
    if (count != 0) std::memcpy(target, source, count * size_of(from));
    return;
  }
  switch (from) {
    case StoredType::F64: return convert_to<double>(source, to, target, count);
    case StoredType::F32: return convert_to<float>(source, to, target, count);
    case StoredType::F16: return convert_to<Half>(source, to, target, count);
    case StoredType::BF16: return convert_to<bf16>(source, to, target, count);
    default: return;
  }
}

}  // namespace tsprun::detail
