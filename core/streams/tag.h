// Envelope tags: 32 bits that say which operation a message belongs to. Both ends compare them; error messages decode them.
//
//   bits 0–7 op · 8–11 dtype · 12–15 reduction · 16–31 step of the algorithm (ring: which hop; phases: which phase)
#pragma once

#include "tsprun/types.h"

#include <cstdint>
#include <string>

namespace tsprun::detail {

/// Returns the tag of a message; only the lower 16 bits of `step` are kept.
constexpr std::uint32_t make_tag(Op op, DType dtype, Reduction reduction, std::uint32_t step) {
  return static_cast<std::uint32_t>(op) | static_cast<std::uint32_t>(dtype) << 8 | static_cast<std::uint32_t>(reduction) << 12 |
         (step & 0xffff) << 16;
}

/// Returns a description of an envelope's tag: "all_reduce of f32 (sum)"; an invalid one is given as a number.
std::string describe_tag(std::uint32_t tag);

}  // namespace tsprun::detail
