// Level of vector instructions that the kernels use. Machines of one architecture that compute at the same level get
// bit-identical results. Another level gives other bits, within rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tsprun::detail::kernels {

/// Levels, those of one architecture from slow to fast. `baseline` is whatever the machine has below AVX2. Its bits are alike on
/// all x86 machines that have SSSE3: below AVX2, multiplying and adding rounds twice. On aarch64 it is `neon`, which all such
/// processors have. `avx512_bf16` is avx512 with products of bf16 matrices and
/// flash attention of bf16 operands in bf16 units (pair_panels.h). An f32 matrix beside a bf16 one is rounded to bf16, and so are
/// attention's probabilities and their gradients (flash.h). `amx_bf16` is avx512_bf16 with those products in AMX's tiles, which
/// add up in another order (amx_product.h). Where all is f32 or f64, the bits are avx512's.
enum class Level : std::uint8_t { baseline, neon, avx2, avx512, avx512_bf16, amx_bf16 };

std::string_view name(Level level);  ///< returns the enumerator's name
/// Returns the level of that name, or nothing if there is none.
std::optional<Level> level_from_name(std::string_view text);

/// Returns the best level that this machine offers.
Level best_level();
/// Returns whether this machine offers the level. It offers none of another architecture.
bool offers(Level level);
/// Fixes the level of this process. Must be called before the first kernel runs, or results would be of two levels. Throws
/// std::invalid_argument if the machine doesn't offer the level.
void set_level(Level level);
/// Returns the level given to set_level(), or the best one if set_level() wasn't called.
Level level();

}  // namespace tsprun::detail::kernels
