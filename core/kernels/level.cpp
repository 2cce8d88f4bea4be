// Maps levels to Highway's targets. The level is a property of the process, like the instruction set of its machine.
#include "core/kernels/level.h"

#include "core/kernels/amx_product.h"
#include "core/kernels/pair_panels.h"
#include "transport/names.h"

#include <hwy/targets.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

namespace tsprun::detail::kernels {

namespace {
constexpr std::array<std::string_view, 6> kNames = {"baseline", "neon", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
// All targets that are better than AVX2, also those that newer versions of Highway have, count as one level: they differ in
// instructions that change no result here. Better targets have lower bits.
constexpr std::int64_t kAvx512 = HWY_AVX2 - 1;

/// Level given to set_level(); −1: none, so the best one applies.
std::atomic<int>& held() {
  static std::atomic<int> level{-1};
  return level;
}

Level detect() {
#ifdef __aarch64__
  return Level::neon;
#else
  const std::int64_t targets = hwy::SupportedTargets();
  if ((targets & kAvx512) != 0) {
    if (!pairs::offered()) return Level::avx512;
    return amx::offered() ? Level::amx_bf16 : Level::avx512_bf16;
  }
  return (targets & HWY_AVX2) != 0 ? Level::avx2 : Level::baseline;
#endif
}
}  // namespace

std::string_view name(Level level) { return name_in(kNames, level); }
std::optional<Level> level_from_name(std::string_view text) { return value_in<Level>(kNames, text); }

Level best_level() {
  // Asked once, before any target is disabled: SupportedTargets() of Highway 1.0 makes later kernels run on the best target
  // again.
  static const Level best = detect();
  return best;
}

bool offers(Level level) {
  const Level best = best_level();
  if (level == Level::baseline) return true;
  return level <= best && (level >= Level::avx2) == (best >= Level::avx2);
}

void set_level(Level wanted) {
  if (!offers(wanted)) {
    throw std::invalid_argument("kernel level " + std::string(name(wanted)) + ": this machine offers " +
                                std::string(name(best_level())) + " at most");
  }
  held().store(static_cast<int>(wanted));
  std::int64_t disabled = 0;
  if (wanted < Level::avx512) disabled |= kAvx512;
  if (wanted < Level::avx2) disabled |= HWY_AVX2;
  hwy::DisableTargets(disabled);
}

Level level() {
  const int value = held().load();
  return value < 0 ? best_level() : static_cast<Level>(value);
}

}  // namespace tsprun::detail::kernels
