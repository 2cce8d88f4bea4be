// Internal helpers for Error and Cause. Error is the exception that crosses room boundaries; core's flight board keeps the same
// facts as plain data (struct Failure).
#pragma once

#include "tsprun/error.h"

#include <cstdint>
#include <string>

namespace tsprun::detail {

/// Returns false if no cause has this number (which may come from shared memory or a packet).
bool is_cause(std::uint8_t value);

/// Returns an Error of the given cause with the message "what: strerror(errno_value)".
Error system_error(Cause cause, const std::string& what, int errno_value);

}  // namespace tsprun::detail
