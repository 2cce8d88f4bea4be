// Wraps signalfd(2).
#include "launcher/signals.h"

#include "transport/cause.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

bool asks_to_end(int signal) { return std::find(kEndingSignals.begin(), kEndingSignals.end(), signal) != kEndingSignals.end(); }

bool EndingRequest::take(int signal, std::uint64_t now_ns) {
  if (signal_ != 0 && now_ns - when_ns_ < kOneRequest_ns) return false;
  signal_ = signal;
  when_ns_ = now_ns;
  return true;
}

namespace {

std::atomic<std::uint64_t> ignored_until_ns = 0;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a signal handler reads it");

extern "C" void end_unless_too_early(int signal) {
  if (posix::now_ns() < ignored_until_ns.load()) return;
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void outlive(const EndingRequest& request) {
  if (request.signal() == 0) return;
  ignored_until_ns = request.when_ns() + kOneRequest_ns;
  for (const int signal : kEndingSignals) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = end_unless_too_early;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
}

namespace {
int& kept() {
  static int signal = 0;
  return signal;
}
}  // namespace

void keep_late_signal(int signal) { kept() = signal; }

int late_signal() { return kept(); }

void end_by_late_signal() {
  if (late_signal() == 0) return;
  std::signal(late_signal(), SIG_DFL);
  ::raise(late_signal());
}

SignalReader::SignalReader() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGCHLD}) ::sigaddset(&wanted, signal);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaddset(&wanted, SIGHUP);

  ::sigprocmask(SIG_BLOCK, &wanted, &before_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
  // An ignored SIGCHLD (some parents leave it so) would make the kernel reap ranks before their end was read.
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &standard, &child_before_);
  descriptor_ = posix::UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) throw system_error(Cause::refused, "signalfd", errno);
}

SignalReader::~SignalReader() {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalReader::next() const {
  signalfd_siginfo information{};
  if (::read(descriptor_.get(), &information, sizeof information) != static_cast<ssize_t>(sizeof information))
    return std::nullopt;
  return static_cast<int>(information.ssi_signo);
}

std::optional<int> SignalReader::next_within(int milliseconds) const {
  pollfd event{descriptor_.get(), POLLIN, 0};
  ::poll(&event, 1, milliseconds);
  return next();
}

}  // namespace tsprun::detail::launcher
