// NaN and infinity: found in weights before they are used or saved, and traced to the first tensor of a pass that holds one.
#pragma once

#include "core/collectives/communicator.h"
#include "core/rank/rank.h"
#include "layers/model/parameter_store.h"

#include <functional>
#include <string>

namespace tsprun {

/// All ranks of the group call it. Throws Error(refused) on all of them if a value that any of them holds, or with training its
/// master or a moment, is infinite or NaN: names rank, tensor, shape, element. `where` says what comes before that, of a
/// parameter: a file, say.
void check_finite(Rank& rank, Communicator& ranks, const ParameterStore& store,
                  const std::function<std::string(const Parameter&)>& where);

/// A pass gave a result that isn't finite.
struct FailedPass {
  std::string what;           ///< begins the message: "step 3: the loss is nan"
  std::string advice;         ///< what may help, or tell more
  bool gradients = false;     ///< the pass ends with gradients in the store
  std::function<void()> run;  ///< the same pass again
};

/// All ranks of the group call it after the same failed pass. Runs it again, watched, and throws Error(refused) on all of them,
/// which names the first tensor that isn't finite: a weight, else an activation, else a gradient; with its rank as the culprit.
[[noreturn]] void blame_not_finite(Rank& rank, Communicator& ranks, const ParameterStore& store, const FailedPass& pass);

}  // namespace tsprun
