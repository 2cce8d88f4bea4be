// Element types and untyped views of contiguous elements.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tsprun {

enum class DType : std::uint8_t { byte, bf16, f32, f64 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::byte: return 1;
    case DType::bf16: return 2;
    case DType::f32: return 4;
    case DType::f64: return 8;
  }
  return 0;
}
std::string_view name(DType dtype);  ///< "bytes", "bf16", "f32", "f64"
std::optional<DType> dtype_from_name(std::string_view text);

/// Brain floating point: the upper half of an f32. Storage only; arithmetic is done in f32.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value);  ///< rounds to nearest, ties to even; NaN stays NaN (quiet)
  explicit operator float() const;
  bool operator==(const bf16&) const = default;  ///< compares bits
};
static_assert(sizeof(bf16) == 2);

template <class T>
concept Element = std::same_as<T, std::byte> || std::same_as<T, unsigned char> || std::same_as<T, char> ||
    std::same_as<T, bf16> || std::same_as<T, float> || std::same_as<T, double>;

template <Element T>
constexpr DType dtype_of() {
  if constexpr (sizeof(T) == 1) return DType::byte;
  else if constexpr (std::same_as<T, bf16>) return DType::bf16;
  else if constexpr (std::same_as<T, float>) return DType::f32;
  else return DType::f64;
}

/// Borrowed, contiguous elements to read.
struct ConstBuffer {
  const std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::byte;

  ConstBuffer() = default;
  ConstBuffer(const void* first, std::size_t elements, DType type)
      : data(static_cast<const std::byte*>(first)), count(elements), dtype(type) {}
  template <Element T>
  ConstBuffer(std::span<const T> elements) : ConstBuffer(elements.data(), elements.size(), dtype_of<T>()) {}
  template <Element T>
  ConstBuffer(std::span<T> elements) : ConstBuffer(elements.data(), elements.size(), dtype_of<T>()) {}

  std::size_t bytes() const { return count * size_of(dtype); }
  std::span<const std::byte> as_bytes() const { return {data, bytes()}; }
  ConstBuffer slice(std::size_t first, std::size_t n) const { return {data + first * size_of(dtype), n, dtype}; }
};

/// Borrowed, contiguous elements to write.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::byte;

  Buffer() = default;
  Buffer(void* first, std::size_t elements, DType type) : data(static_cast<std::byte*>(first)), count(elements), dtype(type) {}
  template <Element T>
  Buffer(std::span<T> elements) : Buffer(elements.data(), elements.size(), dtype_of<T>()) {}

  operator ConstBuffer() const { return {data, count, dtype}; }
  std::size_t bytes() const { return count * size_of(dtype); }
  std::span<std::byte> as_bytes() const { return {data, bytes()}; }
  Buffer slice(std::size_t first, std::size_t n) const { return {data + first * size_of(dtype), n, dtype}; }
};

}  // namespace tsprun
