// Finds the first tensor of a pass that holds infinity or NaN. It is used only when a pass gave a result that isn't finite: the
// pass runs a second time, and the code that computes tensors shows them to the watch (Rank::look).
//
// All ranks must agree on what comes first, because a NaN reaches other ranks with the next message. So a pass has stages (a
// sublayer of a block, forward or backward), which all ranks enter in the same order, and within a stage tensors are ordered by
// how they depend on each other. Comparing the orders of the ranks' findings gives the first one of the job. Ranks that enter
// other stages, those of a pipeline, say where in a common order theirs stand.
#pragma once

#include "core/tensor/tensor.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tsprun::detail {

/// The tensors of a stage, ordered so that each depends on earlier ones.
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

/// Examines the tensors of one pass on one rank.
class FiniteWatch {
 public:
  /// A tensor with infinity or NaN.
  struct Finding {
    std::uint64_t order;  ///< position in the pass, comparable between ranks: smaller is earlier
    std::string text;     ///< "layer 1, attention, forward: keys, f32 [1, 32, 4, 16], nan at [0, 17, 0, 5]"
  };

  /// Says how many stages of the common order stand before the one that is entered next, fewer than 2^32.
  void skip_to(std::uint64_t stages) { stages_ = stages; }
  /// Enters the next stage, with a name for people: "layer 1, attention, forward".
  void enter(std::string stage);
  /// Examines a tensor of the stage; notes it if it holds infinity or NaN and no earlier one was found.
  void look(Watched what, const ConstTensor& tensor);
  /// Does the same for a tensor that Watched doesn't list. `order`: its position within the stage, less than 2^20.
  void look(std::uint64_t order, const std::string& name, const ConstTensor& tensor);

  /// Returns the earliest finding so far, if any.
  const std::optional<Finding>& found() const { return found_; }

 private:
  std::string stage_;
  std::uint64_t stages_ = 0;
  std::optional<Finding> found_;
};

}  // namespace tsprun::detail
