// Reductions of several arrays into one, element by element: what the collectives add up with.
//
// Every output element is computed on its own, sequentially over the terms in the order given, so the bits depend neither on the
// vector width of the machine nor on where an array is cut into pieces. bf16 is accumulated in f32 and rounded once. Any NaN
// among the terms gives the canonical quiet NaN (0x7FC00000, 0x7FF8000000000000, 0x7FC0), for sum as for max and min; equal terms
// of max and min (such as +0 and −0) give the first. Pure functions: no allocation, no globals.
#pragma once

#include "core/collectives/op.h"
#include "core/tensor/dtype.h"

#include <cstddef>
#include <span>

namespace tsprun::kernels {

/// How results are written.
enum class Stores : std::uint8_t {
  cached,    ///< into the cache: the next reader is near
  streaming  ///< past the cache, for outputs much larger than it: saves reading lines that are about to be overwritten whole
};

/// The type that partial results have: f32 for bf16, else the type itself.
constexpr DType accumulator_of(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

/// out[i] = terms[0][i] ⊕ terms[1][i] ⊕ …, for i < count. All arrays have `dtype` (bf16, f32 or f64); at least one term; a single
/// term is copied bit for bit. `out` may be one of the terms (the same address), but not overlap one otherwise.
void reduce(Reduction reduction, DType dtype, std::span<const std::byte* const> terms, std::byte* out, std::size_t count,
            Stores stores = Stores::cached);

/// The same sum, one term at a time, as it travels round a ring: out[i] = partial[i] ⊕ term[i]. `partial` has
/// accumulator_of(dtype), `term` has dtype; `out` has dtype if this is the last term, else accumulator_of(dtype). `out` may be
/// `partial` or `term` where the element types are equal.
void reduce_term(Reduction reduction, DType dtype, const std::byte* partial, const std::byte* term, std::byte* out,
                 std::size_t count, bool last, Stores stores = Stores::cached);

/// The first term of such a sum: out[i] = term[i] in accumulator_of(dtype).
void widen(DType dtype, const std::byte* term, std::byte* out, std::size_t count);

}  // namespace tsprun::kernels
