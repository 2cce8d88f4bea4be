// Names of watched tensors, and the search for infinity and NaN in them.
#include "core/rank/finite_watch.h"

#include "core/kernels/finite.h"

#include <fmt/format.h>

#include <utility>

namespace tsprun::detail {

namespace {

/// Distance between the orders of two stages; orders within a stage are smaller.
constexpr std::uint64_t kStageStep = std::uint64_t{1} << 20;

const char* name(Watched what) {
  switch (what) {
    case Watched::input: return "input (the residual)";
    case Watched::queries: return "queries";
    case Watched::keys: return "keys";
    case Watched::values: return "values";
    case Watched::attention_output: return "attention output";
    case Watched::log_sum_exp: return "log-sum-exp of scores (which are too large for this type, or not numbers)";
    case Watched::gate: return "gate";
    case Watched::up: return "up";
    case Watched::result: return "result";
    case Watched::head_statistics: return "log-sum-exp of logits";
    case Watched::result_gradient: return "gradient of the result";
    case Watched::input_gradient: return "gradient of the input";
  }
  return "tensor";
}

}  // namespace

void FiniteWatch::enter(std::string stage) {
  stage_ = std::move(stage);
  ++stages_;
}

void FiniteWatch::look(Watched what, const ConstTensor& tensor) { look(static_cast<std::uint64_t>(what), name(what), tensor); }

void FiniteWatch::look(std::uint64_t order, const std::string& name, const ConstTensor& tensor) {
  const std::uint64_t when = stages_ * kStageStep + order;
  if (found_ && found_->order <= when) return;
  const std::optional<std::size_t> at = kernels::first_not_finite(tensor);
  if (!at) return;
  found_ = {when, fmt::format("{}: {}, {}, {}", stage_, name, tensor.describe(), kernels::describe_element(tensor, *at))};
}

}  // namespace tsprun::detail
