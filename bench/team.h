// Threads that stand on a core each, and what they need to agree: a barrier, a mailbox. Everything spins, since no two of them
// share a core.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tsprun::detail::bench {

/// A number on a cache line of its own (and its neighbour, which processors fetch along).
struct alignas(128) Flag {
  std::atomic<std::uint64_t> value{0};
};

/// Waits until the flag holds that number.
void await(const Flag& flag, std::uint64_t number);

class Team {
 public:
  explicit Team(int size);

  int size() const { return size_; }
  /// All threads of the team have come.
  void barrier(int thread);
  /// Hands values over; returns when they were taken. One message at a time between two threads.
  void send(int from, int to, std::span<const double> values);
  void receive(int from, int to, std::span<double> values);
  /// `trips` round trips of a bare flag between threads 0 and 1.
  void flag_pingpong(int thread, std::uint64_t trips);

  /// Runs body(thread) on every thread, thread 0 being the caller, pinned to the allowed cores one by one. Returns when all have
  /// returned.
  void run(const std::function<void(int)>& body);

 private:
  struct Mailbox {
    Flag sent;
    Flag taken;
    const double* values = nullptr;
  };
  Mailbox& mailbox(int from, int to) {
    return mailboxes_[static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(to)];
  }

  int size_;
  std::vector<Flag> arrived_;  // by thread: barriers it came to
  std::unique_ptr<Mailbox[]> mailboxes_;
  Flag ball_[2];
  std::uint64_t trips_[2] = {0, 0};  // played so far, by player
};

/// Cores that this process may run on.
std::vector<int> allowed_cpus();

}  // namespace tsprun::detail::bench
