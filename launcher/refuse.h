// Refuses a request that can't be carried out, before ranks start: exit code 2, and the message as the user sees it.
#pragma once

#include "transport/cause.h"

#include <string>

namespace tsprun::detail::launcher {

/// Throws Error(Cause::refused, message).
[[noreturn]] inline void refuse(const std::string& message) { throw Error(Cause::refused, message); }

}  // namespace tsprun::detail::launcher
