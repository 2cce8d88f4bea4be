// Compares the bytes that both ways move.
#include "layers/schedules/head_plan.h"

namespace tsprun::detail {

HeadPlan head_plan(const Setting& setting) {
  const std::uint64_t h = setting.model.hidden;
  const std::uint64_t moved = 2 * setting.bytes.element + setting.bytes.accumulated;
  const bool gather = setting.tokens() * (h * moved + 2 * setting.bytes.lse) < setting.model.vocabulary * h * moved;
  return gather ? HeadPlan::gather_activations : HeadPlan::rotate_weights;
}

}  // namespace tsprun::detail
