// Element types that files store, and conversions to and from the element types of memory.
#pragma once

#include "tsprun/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tsprun::detail {

// X(name in safetensors headers, bytes an element)
#define TSP_STORED_TYPES(X) \
  X(F64, 8)                 \
  X(F32, 4)                 \
  X(F16, 2)                 \
  X(BF16, 2) X(F8_E4M3, 1) X(F8_E5M2, 1) X(I64, 8) X(U64, 8) X(I32, 4) X(U32, 4) X(I16, 2) X(U16, 2) X(I8, 1) X(U8, 1) X(BOOL, 1)

/// Element types of safetensors files. Only the first four can be read as numbers.
enum class StoredType : std::uint8_t {
#define TSP_X(name, bytes) name,
  TSP_STORED_TYPES(TSP_X)
#undef TSP_X
};

/// Returns the bytes of an element.
std::size_t size_of(StoredType type);
/// Returns the type's name in safetensors headers.
std::string_view name(StoredType type);
/// Returns the type with that name in safetensors headers; nothing if there is none.
std::optional<StoredType> stored_type_from_name(std::string_view text);
/// Returns whether the type can be read as numbers: F64, F32, F16, BF16.
bool is_readable(StoredType type);
/// Returns the type in which a file stores elements of f64, f32 or bf16. Returns U8, which isn't readable, for bytes.
StoredType stored_type_of(DType dtype);

/// Converts `count` elements. Each is rounded once, to nearest, ties to even; NaN stays NaN. The addresses need no alignment.
/// Throws Error(refused) unless is_readable(from) and `to` is f64, f32 or bf16.
void convert_from_stored(StoredType from, const std::byte* source, DType to, std::byte* target, std::size_t count);

/// Returns the nearest bf16, rounded once.
bf16 bf16_from(double value);

}  // namespace tsprun::detail
