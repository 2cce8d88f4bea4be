// Finds the first tensor of a pass that holds infinity or NaN. A pass is watched only when its result turned out not to be
// finite: it runs a second time, and the places that compute tensors show them (Rank::look).
//
// What comes first must be said alike on all ranks, because a NaN reaches the others with the next message. So a pass has stages,
// which all ranks enter in the same order (a sublayer of a block, forward or backward), and the tensors of a stage have an order
// of their own, that in which they depend on each other.
#pragma once

#include "core/tensor/tensor.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tsprun {

/// A tensor of a stage, in the order in which they depend on each other.
enum class Watched : std::uint8_t {
  input,
  queries,
  keys,
  values,
  attention_output,
  log_sum_exp,
  gate,
  up,
  result,
  head_statistics,
  result_gradient,
  input_gradient
};

class FiniteWatch {
 public:
  struct Finding {
    std::uint64_t order;  ///< smaller: computed earlier, on whatever rank
    std::string text;     ///< "layer 1, attention, forward: keys, f32 [1, 32, 4, 16], nan at [0, 17, 0, 5]"
  };

  /// The next stage, by name: "layer 1, attention, forward".
  void enter(std::string stage);
  /// Notes the tensor if it isn't finite and none was found that comes earlier.
  void look(Watched what, const ConstTensor& tensor);
  /// The same of a tensor with a name of its own; `order` counts within the stage.
  void look(std::uint64_t order, const std::string& name, const ConstTensor& tensor);

  const std::optional<Finding>& found() const { return found_; }

 private:
  std::string stage_;
  std::uint64_t stages_ = 0;
  std::optional<Finding> found_;
};

}  // namespace tsprun
