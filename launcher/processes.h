// What /proc and the kernel tell about processes, and how to end those that nobody else would end.
#pragma once

#include "transport/posix.h"

#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tsprun::launcher {

/// Of all processes that /proc shows.
std::vector<posix::ProcessStat> all_processes();

/// This process's children, whoever started them.
std::vector<pid_t> children();

/// The child of a process that has one; 0 if none is to be seen.
pid_t only_child(pid_t parent);

/// A handle that stays with the process even if its number is given to another; readable once it has ended. Empty if the kernel
/// has none (errno says why).
posix::UniqueFd open_process(pid_t pid);

/// For how long the main thread of a process was ready to run while its core was busy with others, in nanoseconds; also of one
/// that has ended and isn't reaped yet. 0 if the kernel doesn't tell (/proc/PID/schedstat).
std::uint64_t waited_for_core_ns(pid_t pid);

/// "SIGKILL"; "signal 77" if it has no name.
std::string signal_name(int signal);

/// Sends a signal to a process group, or to the process alone if it hasn't made its group yet. False if neither exists.
bool signal_group(pid_t leader, int signal);

/// Kills all children of this process but those in `spare`, and theirs as they become children of this process (a subreaper), and
/// reaps them; of those in `spare` nothing is reaped, so that their numbers stay theirs. Returns when none is left, or after a
/// second (a process that sleeps in the kernel can't be killed).
void kill_children(std::span<const pid_t> spare);

/// Closes every descriptor of this process but those in `keep`.
void close_descriptors_except(std::vector<int> keep);

/// All signals get their default action and none is blocked, as a fresh program expects; but those in `ignored` are ignored from
/// the first moment on.
void reset_signals(std::span<const int> ignored = {});

/// Why the shell wouldn't run `program` (a path, or a name to be looked up in PATH), and what would help; empty: it would.
std::string why_not_run(const std::string& program);

}  // namespace tsprun::launcher
