// Element types (DType), and views of contiguous elements whose type is known at run time (Buffer, ConstBuffer): the arguments of
// communicators.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tsprun {

/// Type of the elements of a buffer or tensor. `byte` is for data without arithmetic.
enum class DType : std::uint8_t { byte, bf16, f32, f64 };

/// Returns the size of an element in bytes.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::byte: return 1;
    case DType::bf16: return 2;
    case DType::f32: return 4;
    case DType::f64: return 8;
  }
  return 0;
}
/// Returns "bytes", "bf16", "f32" or "f64".
std::string_view name(DType dtype);
/// Returns the type with this name; none if there is no such type.
std::optional<DType> dtype_from_name(std::string_view text);

/// Brain floating point (bfloat16): the upper 16 bits of an f32. For storage only; kernels compute in f32.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value);  ///< rounds to nearest, ties to even; NaN becomes a quiet NaN
  explicit operator float() const;
  bool operator==(const bf16&) const = default;  ///< compares bits
};
static_assert(sizeof(bf16) == 2);

/// C++ types that have a DType; one-byte types stand for DType::byte.
template <class T>
concept Element = std::same_as<T, std::byte> || std::same_as<T, unsigned char> || std::same_as<T, char> ||
    std::same_as<T, bf16> || std::same_as<T, float> || std::same_as<T, double>;

/// Returns the DType of a C++ type.
template <Element T>
constexpr DType dtype_of() {
  if constexpr (sizeof(T) == 1) return DType::byte;
  else if constexpr (std::same_as<T, bf16>) return DType::bf16;
  else if constexpr (std::same_as<T, float>) return DType::f32;
  else return DType::f64;
}

/// A view of contiguous elements to read. Owns nothing; the memory must outlive it.
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
  /// Returns the view of `n` elements from element `first` on; doesn't check bounds.
  ConstBuffer slice(std::size_t first, std::size_t n) const { return {data + first * size_of(dtype), n, dtype}; }
};

/// A view of contiguous elements to write. Owns nothing; the memory must outlive it.
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
  /// Returns the view of `n` elements from element `first` on; doesn't check bounds.
  Buffer slice(std::size_t first, std::size_t n) const { return {data + first * size_of(dtype), n, dtype}; }
};

}  // namespace tsprun
