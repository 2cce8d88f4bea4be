// Kills what the program leaves behind, and ends as the program did.
#include "launcher/guardian.h"

#include "launcher/processes.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

namespace {

constexpr const char* kGuardianName = "tsp-guardian";  // the kernel keeps 15 characters
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;

[[noreturn]] void become_program(const GuardedProgram& program, pid_t guardian) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guardian) ::_exit(kNotFound);
  std::vector<int> kept = program.inherited;
  kept.insert(kept.end(), {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO});
  close_descriptors_except(kept);
  for (const int descriptor : program.inherited) ::fcntl(descriptor, F_SETFD, 0);
  for (const auto& [key, value] : program.environment) ::setenv(key.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& argument : program.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  reset_signals();
  ::execvp(arguments[0], arguments.data());
  const int reason = errno;
  const std::string message =
      fmt::format("tsprun: starting '{}' for rank {}: {}\n", program.arguments[0], program.rank, std::strerror(reason));
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), message.size());
  ::_exit(reason == ENOENT ? kNotFound : kNotExecutable);
}

/// Ends as the program did. The signal is raised with core dumps disabled: the program has left one if that was wanted. Signals
/// that came to the whole group, and wait here, are dropped: the program has got them, and ended otherwise.
[[noreturn]] void end_like(int status) {
  if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (int other = 1; other < NSIG; ++other) std::signal(other, SIG_IGN);
  reset_signals();
  ::kill(::getpid(), signal);
  ::_exit(128 + signal);
}

/// Kills all processes below this one: the whole group by one signal, so that none in it can escape by forking, then those that
/// have left the group.
void end_descendants(pid_t launcher_group) {
  const pid_t own_group = ::getpid();
  // The signal must not hit the guardian, which has yet to end as its program did, so it moves to tsprun's group first. That
  // fails if tsprun's group is gone; then no launcher asks how the rank ended. A launcher_group of 0 has its leader outside this
  // PID namespace (or is init's own): setpgid(0, 0) would mean something else, and the signal would hit.
  if (launcher_group != 0 && ::setpgid(0, launcher_group) == 0) ::kill(-own_group, SIGKILL);
  kill_children({});
}

void to_null(int descriptor) {
  posix::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null) ::dup2(null.get(), descriptor);
}

}  // namespace

void guard_program(const GuardedProgram& program) {
  ::prctl(PR_SET_NAME, kGuardianName);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t child_ended;
  ::sigemptyset(&child_ended);
  ::sigaddset(&child_ended, SIGCHLD);
  const posix::UniqueFd signals(::signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK));

  const pid_t guardian = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) become_program(program, guardian);
  const int fork_error = errno;
  if (child < 0) {
    const std::string message = fmt::format("tsprun: fork for rank {}: {}\n", program.rank, std::strerror(fork_error));
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), message.size());
    ::_exit(kNotExecutable);
  }
  // The pipes belong to the program now, so that their end tells that the program has closed them.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) to_null(descriptor);

  while (true) {
    std::array<pollfd, 2> events{pollfd{program.launcher_pidfd, POLLIN, 0}, pollfd{signals.get(), POLLIN, 0}};
    ::poll(events.data(), events.size(), -1);
    signalfd_siginfo ignored{};
    while (::read(signals.get(), &ignored, sizeof ignored) > 0) {
    }
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended != child) continue;
      end_descendants(program.launcher_group);
      end_like(status);
    }
    if (events[0].revents != 0) {
      ::kill(child, SIGKILL);
      end_descendants(program.launcher_group);
      ::kill(-guardian, SIGKILL);
      ::_exit(1);
    }
  }
}

}  // namespace tsprun::detail::launcher
