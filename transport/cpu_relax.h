// The instruction for loops that wait for another core.
#pragma once

namespace tsprun::detail {

/// Gives the core's other thread, or its power, a rest of some ten nanoseconds, and the loop an end soon after the awaited store.
/// Elsewhere than on x86-64 and aarch64 it does nothing.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` is made for this, but ARM's own cores take it for no operation. `isb` refills their pipelines, about what pause
  // costs.
  __asm__ volatile("isb" ::: "memory");
#endif
}

}  // namespace tsprun::detail
