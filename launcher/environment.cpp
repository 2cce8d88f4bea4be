#include "launcher/environment.h"

#include "core/collectives/choice.h"
#include "core/kernels/level.h"
#include "launcher/refuse.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>

namespace tsprun::launcher {

namespace {

void check_algorithms() {
  const char* text = std::getenv("TSP_ALGORITHMS");
  if (text == nullptr) return;
  try {
    const ChoiceTable table(text);
  } catch (const Error& error) {
    refuse(fmt::format("TSP_ALGORITHMS={}: {}", text, error.what()));
  }
}

void check_kernel_level() {
  const char* text = std::getenv("TSP_KERNELS");
  if (text == nullptr) return;
  const std::optional<kernels::Level> level = kernels::level_from_name(text);
  if (!level) refuse(fmt::format("TSP_KERNELS={}: baseline, avx2 and avx512 work", text));
  if (*level > kernels::best_level()) {
    refuse(fmt::format("TSP_KERNELS={}: this machine offers {} at most", text, kernels::name(kernels::best_level())));
  }
}

}  // namespace

void check_environment() {
  check_algorithms();
  check_kernel_level();
}

}  // namespace tsprun::launcher
