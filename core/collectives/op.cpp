// Names of operations and reductions.
#include "tsprun/types.h"

#include <array>

namespace tsprun {

namespace {
constexpr std::array<std::string_view, kOps> kOpNames = {"send",       "recv",           "send_recv",  "broadcast",
                                                         "all_gather", "reduce_scatter", "all_reduce", "reduce",
                                                         "all_to_all", "gather",         "scatter",    "barrier"};
constexpr std::array<std::string_view, kReductionCount> kReductionNames = {
#define TSPRUN_X(reduction, text) text,
    TSPRUN_REDUCTIONS(TSPRUN_X)
#undef TSPRUN_X
};
}  // namespace

std::string_view name(Op op) {
  const auto index = static_cast<std::size_t>(op);
  return index < kOpNames.size() ? kOpNames[index] : "unknown";
}

std::optional<Op> op_from_name(std::string_view text) {
  for (std::size_t i = 0; i < kOpNames.size(); ++i) {
    if (text == kOpNames[i]) return static_cast<Op>(i);
  }
  return std::nullopt;
}

std::string_view name(Reduction reduction) {
  const auto index = static_cast<std::size_t>(reduction);
  return index < kReductionNames.size() ? kReductionNames[index] : "unknown";
}

std::optional<Reduction> reduction_from_name(std::string_view text) {
  for (std::size_t i = 0; i < kReductionNames.size(); ++i) {
    if (text == kReductionNames[i]) return static_cast<Reduction>(i);
  }
  return std::nullopt;
}

}  // namespace tsprun
