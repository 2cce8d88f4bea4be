// How a request that can't be carried out is refused before ranks start: exit code 2, the message as the user sees it.
#pragma once

#include "transport/cause.h"

#include <string>

namespace tsprun::launcher {

[[noreturn]] inline void refuse(const std::string& message) { throw Error(Cause::refused, message); }

}  // namespace tsprun::launcher
