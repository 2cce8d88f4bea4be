// Keeps TCP sending through an outage where the kernel can't bound the time between its attempts (TCP_RTO_MAX_MS, Linux 6.15).
//
// TCP doubles that time with every unacknowledged attempt, so that after an outage of 9 s it stays silent for 4 s more. But it
// never waits beyond TCP_USER_TIMEOUT, counted from the first attempt, and decides by the value that the option has when that
// time has passed whether to end the connection (Linux 4.19 and newer). So during an outage this class keeps the option one step
// ahead of the clock: the kernel tries again at least every step, and finds that it may go on. At the end of the deadline the
// option has its old value again, and ends the connection as usual.
//
// A connection also ends after 15 unanswered zero-window probes, whatever the option says.
//
// The option must not be moved later than a whole step: the kernel would take the step for the deadline. So it is moved at least
// four times a step (in ranks by a thread, since their own may compute), and only while the kernel's own next wait would exceed a
// step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>

namespace tsprun::detail::tcp {

/// Returns true if TCP sends what it has sent before, because the other end doesn't acknowledge it, or sends zero-window probes
/// in vain. Of two machines of which only one hears the other, this is so at both.
bool is_unanswered(int socket);

/// Sockets that are kept sending. Its owner calls look() until the sockets are removed. One thread at a time.
class Pacing {
 public:
  /// Makes an empty set. `deadline_ns`: longest outage that connections survive.
  explicit Pacing(std::uint64_t deadline_ns);

  /// Takes a connected socket, unless the kernel bounds its waits itself or the other end is on this machine. Its
  /// TCP_USER_TIMEOUT must have been set.
  void add(int socket);
  /// Forgets a socket, before it is closed.
  void remove(int socket) { sockets_.erase(socket); }
  bool empty() const { return sockets_.empty(); }

  /// Looks at all sockets and moves their TCP_USER_TIMEOUT. Does nothing if that isn't due yet.
  void look();
  /// Returns how long after a look the next one is due.
  std::uint64_t pause_ns() const { return outage_ ? step_ns_ / 8 : step_ns_ / 4; }

 private:
  struct Paced {
    std::uint32_t usual_ms = 0;   ///< TCP_USER_TIMEOUT outside outages; 0: the kernel never ends the connection
    std::uint32_t now_ms = 0;     ///< TCP_USER_TIMEOUT at present
    std::uint64_t well_ns = 0;    ///< when nothing was being sent again, as far as the last look knows
    std::uint64_t oldest_ns = 0;  ///< how old unacknowledged data may have been then
  };
  bool look_at(int socket, Paced& paced, std::uint64_t now);

  std::uint64_t deadline_ns_;
  std::uint64_t step_ns_;
  std::map<int, Paced> sockets_;
  std::uint64_t looked_ns_ = 0;
  bool outage_ = false;
};

/// Pacing by a thread, which exists from the first socket that needs it.
class PacingThread {
 public:
  explicit PacingThread(std::uint64_t deadline_ns) : pacing_(deadline_ns) {}
  PacingThread(const PacingThread&) = delete;
  PacingThread& operator=(const PacingThread&) = delete;
  ~PacingThread();

  /// See Pacing::add(). Logs if no thread can be had: the socket then sends as the kernel pleases.
  void add(int socket);
  /// See Pacing::remove(). When it returns, the thread doesn't use the socket any more.
  void remove(int socket);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable over_changed_;
  Pacing pacing_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace tsprun::detail::tcp
