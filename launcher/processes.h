// Looks up processes in /proc and by pidfd, and ends those that tsprun is left with.
#pragma once

#include "transport/posix.h"

#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns what /proc shows of all processes.
std::vector<posix::ProcessStat> all_processes();

/// Returns this process's children, whoever started them.
std::vector<pid_t> children();

/// Returns the first child of a process, for a process that has only one; 0 if none is visible.
pid_t only_child(pid_t parent);

/// Opens a pidfd: a handle that stays with the process even if its number is reused, and is readable once the process has ended.
/// Empty if the kernel gives none (errno says why).
posix::UniqueFd open_process(pid_t pid);

/// Returns the error with which waitid(2) refuses to look at a process that is no child of this one, given by its pidfd, though
/// it may look; 0: it works.
int why_no_waitid(const posix::UniqueFd& no_child);

/// Returns how long, in nanoseconds, the main thread of a process was ready to run without having a core. Works for a process
/// that has ended and isn't reaped yet, too. 0 if the kernel doesn't tell (/proc/PID/schedstat).
std::uint64_t waited_for_core_ns(pid_t pid);

/// Returns true if a process handles a signal: it has a handler, or blocks it for more than a moment, to read it in
/// another way. False if /proc doesn't tell, and of a process that still runs tsprun's own program, before exec().
bool handles(pid_t pid, int signal);

/// Returns a signal's name: "SIGKILL", or "signal 77" if it has none.
std::string signal_name(int signal);

/// Sends a signal to a process group, or to the process alone if it hasn't made its group yet. Returns false if neither exists.
bool signal_group(pid_t leader, int signal);

/// Kills and reaps all children of this process but those in `spare` and in the process groups `spare_groups`; their children
/// too, which become children of this process (a subreaper). Children that are spared aren't reaped, so that their numbers stay
/// theirs. Returns when none is left, or after a second, since a process that sleeps in the kernel can't be killed.
void kill_children(std::span<const pid_t> spare, std::span<const pid_t> spare_groups = {});

/// Closes every descriptor of this process but those in `keep`.
void close_descriptors_except(std::vector<int> keep);

/// Gives all signals their default action and unblocks them, as a fresh program expects; signals in `ignored` are ignored
/// instead.
void reset_signals(std::span<const int> ignored = {});

/// Returns why the shell wouldn't run `program` (a path, or a name to be found in PATH) and what would help; empty: it would.
std::string why_not_run(const std::string& program);

}  // namespace tsprun::detail::launcher
