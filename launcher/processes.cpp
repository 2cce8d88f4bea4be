// Reads /proc, and signals and reaps processes.
#include "launcher/processes.h"

#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kMoment_ns = 5'000'000;
constexpr std::uint64_t kKillDeadline_ns = 1'000'000'000;

std::string why_no_program(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return fmt::format("{}; try the path of an executable file", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return "it is no file; try the path of an executable file";
  if (::access(path.c_str(), X_OK) != 0)
    return fmt::format("{}: it isn't executable; try chmod +x {}", std::strerror(errno), path);
  return {};
}

}  // namespace

std::vector<posix::ProcessStat> all_processes() {
  std::vector<posix::ProcessStat> processes;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), &::closedir);
  if (!folder) return processes;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::optional<pid_t> pid = number_from<pid_t>(entry->d_name);
    if (!pid) continue;
    if (const auto stat = posix::process_stat(*pid)) processes.push_back(*stat);
  }
  return processes;
}

std::vector<pid_t> children() {
  // The usual case, without a look at every process of the machine.
  siginfo_t information{};
  if (::waitid(P_ALL, 0, &information, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return {};
  std::vector<pid_t> found;
  for (const posix::ProcessStat& process : all_processes()) {
    if (process.parent == ::getpid()) found.push_back(process.pid);
  }
  return found;
}

std::uint64_t waited_for_core_ns(pid_t pid) {
  std::uint64_t ran = 0;
  std::uint64_t waited = 0;
  std::ifstream file(fmt::format("/proc/{}/schedstat", pid));
  return file >> ran >> waited ? waited : 0;
}

pid_t only_child(pid_t parent) {
  pid_t child = 0;
  std::ifstream(fmt::format("/proc/{0}/task/{0}/children", parent)) >> child;
  return child;
}

posix::UniqueFd open_process(pid_t pid) {
  // The header of glibc 2.36 declares pidfd_open() as a C++ function, so the system call it is.
  return posix::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

namespace {
/// Returns whether a process still runs tsprun's own program: it was forked, and hasn't called exec() yet.
bool runs_tsprun(pid_t pid) {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  return !error && std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), error) == own;
}

/// How a process takes a signal.
struct Handling {
  bool caught = false;
  bool blocked = false;
};
Handling handling(pid_t pid, int signal) {
  Handling found;
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    const bool blocked = line.starts_with("SigBlk:");
    if (!blocked && !line.starts_with("SigCgt:")) continue;
    const std::uint64_t set = std::strtoull(line.c_str() + sizeof "SigBlk:" - 1, nullptr, 16);
    (blocked ? found.blocked : found.caught) = (set >> (signal - 1) & 1) != 0;
  }
  return found;
}
}  // namespace

bool handles(pid_t pid, int signal) {
  if (runs_tsprun(pid)) return false;  // it blocks what its program won't
  const Handling first = handling(pid, signal);
  if (first.caught || !first.blocked) return first.caught;
  // A program that waits for signals blocks them for good; a shell that forks or waits does for a moment.
  posix::sleep_ns(kMoment_ns);
  return handling(pid, signal).blocked;
}

int why_no_waitid(const posix::UniqueFd& no_child) {
  siginfo_t information{};
  const int result = ::waitid(P_PIDFD, static_cast<id_t>(no_child.get()), &information, WEXITED | WNOHANG | WNOWAIT);
  return result == 0 || errno == ECHILD ? 0 : errno;
}

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation != nullptr ? fmt::format("SIG{}", abbreviation) : fmt::format("signal {}", signal);
}

bool signal_group(pid_t leader, int signal) {
  if (leader <= 1) return false;
  return ::kill(-leader, signal) == 0 || ::kill(leader, signal) == 0;
}

void kill_children(std::span<const pid_t> spare, std::span<const pid_t> spare_groups) {
  const std::uint64_t deadline = posix::now_ns() + kKillDeadline_ns;
  while (true) {
    bool any = false;
    for (const pid_t child : children()) {
      if (std::ranges::find(spare, child) != spare.end()) continue;
      if (std::ranges::find(spare_groups, ::getpgid(child)) != spare_groups.end()) continue;
      any = true;
      ::kill(child, SIGKILL);  // has no effect on a process that has ended
      ::waitpid(child, nullptr, WNOHANG);
    }
    // Children of those just killed become ours when their parent's end is done, so a round that found some needs another.
    if (!any || posix::now_ns() > deadline) return;
    posix::sleep_ns(1'000'000);
  }
}

void close_descriptors_except(std::vector<int> keep) {
  std::sort(keep.begin(), keep.end());
  unsigned first = 0;
  for (const int fd : keep) {
    if (fd < 0) continue;
    const auto kept = static_cast<unsigned>(fd);
    if (kept > first) ::close_range(first, kept - 1, 0);
    first = std::max(first, kept + 1);
  }
  ::close_range(first, UINT_MAX, 0);
}

void reset_signals(std::span<const int> ignored) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  // Fails for SIGKILL, SIGSTOP and those that the C library keeps for itself, which need no reset.
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  action.sa_handler = SIG_IGN;
  for (const int signal : ignored) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

std::string why_not_run(const std::string& program) {
  if (program.empty()) return "an empty name; write a program after --, such as: tsprun run -- ./my_program";
  if (program.find('/') != std::string::npos) return why_no_program(program);
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (why_no_program((folder.empty() ? std::string(".") : folder) + "/" + program).empty()) return {};
  }
  return fmt::format("no such program in PATH; try ./{} if it lies here", program);
}

}  // namespace tsprun::detail::launcher
