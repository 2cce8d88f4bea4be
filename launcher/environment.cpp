#include "launcher/environment.h"

#include "core/collectives/choice.h"
#include "core/kernels/level.h"
#include "launcher/refuse.h"
#include "transport/cause.h"
#include "transport/environment.h"

#include <fmt/format.h>

#include <optional>

namespace tsprun::detail::launcher {

namespace {

void check_algorithms(const Environment& environment) {
  const std::string text = environment.algorithms();
  if (text.empty()) return;
  try {
    const ChoiceTable table(text);
  } catch (const Error& error) {
    refuse(fmt::format("TSP_ALGORITHMS={}: {}", text, error.what()));
  }
}

void check_kernel_level(const Environment& environment) {
  const std::optional<std::string_view> text = environment.kernels();
  if (!text) return;
  const std::optional<kernels::Level> level = kernels::level_from_name(*text);
  if (!level) refuse(fmt::format("TSP_KERNELS={}: baseline, avx2 and avx512 work", *text));
  if (*level > kernels::best_level()) {
    refuse(fmt::format("TSP_KERNELS={}: this machine offers {} at most", *text, kernels::name(kernels::best_level())));
  }
}

}  // namespace

void check_environment(std::string_view command) {
  const Environment environment;
  check_algorithms(environment);
  check_kernel_level(environment);
  if (command != "run") refuse_ignored_variables(environment, command);
}

}  // namespace tsprun::detail::launcher
