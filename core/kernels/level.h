// Which vector instructions the kernels use. Results are bit-identical between machines that compute at the same level.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tsprun::kernels {

/// From slow to fast. `baseline` is whatever the machine has below AVX2.
enum class Level : std::uint8_t { baseline, avx2, avx512 };

std::string_view name(Level level);  ///< "baseline", "avx2", "avx512"
std::optional<Level> level_from_name(std::string_view text);

/// The best level that this machine offers.
Level best_level();
/// Holds this process at `level`. Once, before the first kernel runs. Throws std::invalid_argument if the machine doesn't offer
/// the level, std::logic_error if the BLAS library is already loaded for another one.
void set_level(Level level);
/// What set_level was given; without it the best level.
Level level();

}  // namespace tsprun::kernels
