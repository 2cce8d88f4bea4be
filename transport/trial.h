// Common part of the trials of transports (Factory::attempt): two ends of one process, of which one sends the other a message
// within a deadline.
#pragma once

#include "transport/posix.h"
#include "transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace tsprun::detail::trial {

inline constexpr std::uint64_t kDeadline_ns = 5'000'000'000;
inline constexpr std::size_t kTrialBytes = std::size_t{1} << 20;

/// Maps memory for the message at both ends, 2 * kTrialBytes. Throws Error(out_of_memory).
posix::Mapping map();

/// Waits until the condition holds. Throws Error(stalled) that names `what` after the deadline.
void until(const std::function<bool()>& condition, const std::string& what);

/// One end of the connection under trial, and its number for the other end.
struct End {
  Transport& transport;
  int peer;
};
/// Moves one half of the memory from one end into the other half at the other, and compares. Throws Error.
void exchange(End sender, End receiver, const posix::Mapping& memory);

}  // namespace tsprun::detail::trial
