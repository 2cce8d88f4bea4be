// CommunicatorState::start(): makes the operation of a call whose arguments were checked, and runs it. The operation of a
// blocking call lives on the stack, that of a posted call is owned by the engine.
#pragma once

#include "core/collectives/communicator_state.h"
#include "core/collectives/operations.h"
#include "core/collectives/point_to_point.h"

#include <memory>
#include <utility>

namespace tsprun::detail {

template <class Operation, class... Arguments>
Work CommunicatorState::start(Mode mode, const CallOptions& options, const OperationInfo& info, Arguments&&... arguments) {
  Engine& engine = *group.engine;
  if (mode == Mode::posted) {
    const Call call{.group = &group, .keep = {shared_from_this(), &group}, .stream = options.stream, .info = info};
    const std::uint64_t held = group.heap->use().total;
    auto operation = std::make_unique<Operation>(call, std::forward<Arguments>(arguments)...);
    if (group.heap->use().total != held) operation->set_holds_memory();
    return engine.post(options.stream, std::move(operation));
  }
  const Call call{.group = &group, .keep = nullptr, .stream = options.stream, .info = info};
  Operation operation(call, std::forward<Arguments>(arguments)...);
  engine.run(options.stream, operation);
  return {};
}

}  // namespace tsprun::detail
