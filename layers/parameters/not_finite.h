// NaN and infinity: weights are checked before they are used or saved, and a pass whose result isn't finite is traced to the
// first tensor that isn't.
#pragma once

#include "core/rank/rank.h"
#include "layers/parameters/parameter_store.h"
#include "tsprun/communicator.h"

#include <functional>
#include <string>

namespace tsprun::detail {

/// Checks that all values, and with training also master weights and moments, of all ranks are finite. Collective over `ranks`.
/// Throws Error(refused) on all of them with rank, tensor, shape and element if one isn't. `where` returns how the message about
/// a parameter begins: a file name, say. A rank that knows its store to be finite says so by `known`, and doesn't look again.
void check_finite(Rank& rank, Communicator& ranks, const ParameterStore& store,
                  const std::function<std::string(const Parameter&)>& where, bool known = false);

/// A pass whose result wasn't finite.
struct FailedPass {
  std::string what;           ///< beginning of the message: "step 3: the loss is nan"
  std::string advice;         ///< what to do, or where to find out more
  bool gradients = false;     ///< the pass leaves gradients in the store
  std::function<void()> run;  ///< runs the same pass again
};

/// Runs the pass again with every tensor checked, and throws Error(refused) on all ranks with the first tensor that isn't finite:
/// a weight, else an activation, else a gradient, with the rank that has it as the culprit. Collective over `ranks`, after the
/// same failed pass.
[[noreturn]] void blame_not_finite(Rank& rank, Communicator& ranks, const ParameterStore& store, const FailedPass& pass);

}  // namespace tsprun::detail
