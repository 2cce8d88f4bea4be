// Estimates the kernel's next retry from TCP_INFO, and moves TCP_USER_TIMEOUT.
#include "transport/tcp/pacing.h"

#include "transport/posix.h"
#include "transport/signals_blocked.h"
#include "transport/tcp/dial.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <system_error>

namespace tsprun::detail::tcp {

namespace {

/// Shortest and longest retry interval. By default TCP never sends again earlier than after 0.2 s.
constexpr std::uint64_t kShortestStep_ns = 500'000'000;
constexpr std::uint64_t kLongestStep_ns = 5'000'000'000;
constexpr std::uint64_t kMillisecond_ns = 1'000'000;
/// TCP_CA_Open of the kernel's enum tcp_ca_state: nothing was lost, no packet is being sent again.
constexpr unsigned kCongestionOpen = 0;

bool ask(int socket, tcp_info& info) {
  socklen_t bytes = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0;
}

/// Returns how long the kernel would wait between the last unanswered attempt and the next if the option didn't bound it; 0: no
/// attempt is unanswered.
std::uint64_t wait_ns(int socket, const tcp_info& info) {
  const std::uint64_t base_ns = std::uint64_t{info.tcpi_rto} * 1000;
  if (info.tcpi_unacked > 0) return info.tcpi_retransmits > 0 ? base_ns : 0;
  // The other end closed its window, and doesn't answer zero-window probes. A first probe is often about to be answered. Without
  // data to send, probes are keep-alives, whose interval doesn't grow.
  int unsent = 0;
  if (info.tcpi_probes < 2 || ::ioctl(socket, SIOCOUTQNSD, &unsent) != 0 || unsent == 0) return 0;
  return base_ns << std::min<unsigned>(info.tcpi_backoff, 16);
}

}  // namespace

bool is_unanswered(int socket) {
  tcp_info info{};
  return ask(socket, info) && wait_ns(socket, info) != 0;
}

Pacing::Pacing(std::uint64_t deadline_ns)
    : deadline_ns_(deadline_ns), step_ns_(std::clamp(deadline_ns / kStepsOfDeadline, kShortestStep_ns, kLongestStep_ns)) {}

void Pacing::add(int socket) {
  if (bound_retransmission(socket, deadline_ns_) || !leaves_machine(socket)) return;
  Paced paced;
  socklen_t bytes = sizeof paced.usual_ms;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &paced.usual_ms, &bytes) != 0) return;
  paced.now_ms = paced.usual_ms;
  paced.well_ns = posix::now_ns();
  sockets_[socket] = paced;
}

void Pacing::look() {
  if (sockets_.empty()) return;
  const std::uint64_t now = posix::now_ns();
  if (now - looked_ns_ < pause_ns()) return;
  looked_ns_ = now;
  outage_ = false;
  for (auto& [socket, paced] : sockets_) outage_ = look_at(socket, paced, now) || outage_;
}

/// Moves one socket's TCP_USER_TIMEOUT. Returns true if data waits to be sent again.
bool Pacing::look_at(int socket, Paced& paced, std::uint64_t now) {
  tcp_info info{};
  if (!ask(socket, info)) return false;
  const std::uint64_t next_ns = wait_ns(socket, info);
  std::uint32_t want_ms = paced.usual_ms;
  if (next_ns == 0) {
    // The kernel's count may begin in any earlier trouble that isn't over yet.
    if (info.tcpi_ca_state == kCongestionOpen && info.tcpi_backoff == 0 && info.tcpi_probes == 0) {
      paced.well_ns = now;
      paced.oldest_ns = 2 * std::uint64_t{info.tcpi_rto} * 1000;
    }
  } else {
    // Zero-window probes are counted, and the last one ends the connection, so their interval isn't bounded.
    const std::uint64_t step_ns = info.tcpi_unacked > 0 ? step_ns_ : std::max(step_ns_, deadline_ns_ / kStepsOfDeadline);
    // The limit is never below what the kernel counts: from its first attempt, or, where one failed on this machine, from when
    // the data was first sent.
    const std::uint64_t passed_ns = now - paced.well_ns + paced.oldest_ns;
    const std::uint64_t limit_ns = paced.usual_ms != 0 ? paced.usual_ms * kMillisecond_ns : deadline_ns_;
    if (2 * next_ns > step_ns && passed_ns + step_ns < limit_ns)
      want_ms = static_cast<std::uint32_t>((passed_ns + step_ns) / kMillisecond_ns);
  }
  if (want_ms != paced.now_ms) {
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(want_ms));
    paced.now_ms = want_ms;
  }
  return next_ns != 0;
}

// --- the thread --------------------------------------------------------------------------------------------------------------

PacingThread::~PacingThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    over_ = true;
  }
  over_changed_.notify_all();
  thread_.join();
}

void PacingThread::add(int socket) {
  const std::lock_guard<std::mutex> guard(mutex_);
  pacing_.add(socket);
  if (pacing_.empty() || thread_.joinable()) return;
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& reason) {
    pacing_.remove(socket);
    spdlog::warn("no thread to keep TCP sending during outages: {}", reason.what());
  }
}

void PacingThread::remove(int socket) {
  const std::lock_guard<std::mutex> guard(mutex_);
  pacing_.remove(socket);
}

void PacingThread::run() {
  ::pthread_setname_np(::pthread_self(), "tsp-pacing");
  std::unique_lock<std::mutex> guard(mutex_);
  while (!over_) {
    pacing_.look();
    over_changed_.wait_for(guard, std::chrono::nanoseconds(pacing_.pause_ns()));
  }
}

}  // namespace tsprun::detail::tcp
