// Reductions of several arrays into one, element by element: the arithmetic of the collectives.
//
// Each output element is computed on its own, sequentially over the terms in the order given, so its bits depend neither on the
// machine's vector width nor on where an array is cut into pieces. bf16 and f16 are accumulated in f32 and rounded once; an
// average is divided by the number of terms before that. A NaN among two or more terms gives the canonical quiet NaN (0x7FC00000,
// 0x7FF8000000000000, 0x7FC0, 0x7E00), whatever the reduction. For max and min, equal terms (such as +0 and −0) give the first.
// Integers wrap around. All functions are pure: no allocation, no globals. Precondition of all: reduces(reduction, dtype).
#pragma once

#include "tsprun/types.h"

#include <cstddef>
#include <span>

namespace tsprun::detail::kernels {

/// Mode of writing results to memory.
enum class Stores : std::uint8_t {
  cached,    ///< through the cache, for outputs that are read again soon
  streaming  ///< past the cache, for outputs much larger than it: doesn't read lines that are overwritten whole
};

/// Returns the dtype of partial results: f32 for bf16 and f16, otherwise `dtype` itself.
constexpr DType accumulator_of(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype; }

/// Computes out[i] = terms[0][i] ⊕ terms[1][i] ⊕ … for i < count. All arrays have `dtype`. There is at least one term; a single
/// term is copied bit for bit, NaNs included. `out` may be one of the terms (the same address), but must not overlap a term
/// otherwise. Integers ignore `stores`.
void reduce(Reduction reduction, DType dtype, std::span<const std::byte* const> terms, std::byte* out, std::size_t count,
            Stores stores = Stores::cached);

/// Computes one step of the same reduction as it travels round a ring: out[i] = partial[i] ⊕ term[i]. `partial` has
/// accumulator_of(dtype), `term` has `dtype`. `last_of` is 0, and `out` has accumulator_of(dtype); or, if this is the last term,
/// the number of all terms, and `out` has `dtype`. `out` may be `partial` or `term` where the dtypes are equal.
void reduce_term(Reduction reduction, DType dtype, const std::byte* partial, const std::byte* term, std::byte* out,
                 std::size_t count, std::size_t last_of, Stores stores = Stores::cached);

/// Converts the first term of such a reduction: out[i] = term[i] in accumulator_of(dtype).
void widen(DType dtype, const std::byte* term, std::byte* out, std::size_t count);

}  // namespace tsprun::detail::kernels
