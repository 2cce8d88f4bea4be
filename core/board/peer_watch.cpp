// PeerWatch over pidfd_open(2) and poll(2): a pidfd becomes readable when its process ends.
#include "core/board/peer_watch.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <cerrno>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tsprun::detail {

PeerWatch::PeerWatch(FlightBoard board, int first, const std::vector<int>& pids) : board_(board), first_(first), pids_(pids) {
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    processes_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pids[rank], 0)));
    if (!processes_.back() && errno != ESRCH) {
      throw system_error(Cause::refused, fmt::format("pidfd_open of process {} (local rank {})", pids[rank], rank), errno);
    }
  }
}

void PeerWatch::look() {
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const int rank = first_ + static_cast<int>(i);
    RankPage& page = board_.page(rank);
    if (board_.life(rank) > Life::alive && board_.is_over(rank)) continue;
    bool gone = !processes_[i];
    if (!gone) {
      pollfd ready{processes_[i].get(), POLLIN, 0};
      gone = ::poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0;
    }
    if (!gone) continue;
    // Read life() after the look: the rank may have marked itself finished since.
    if (board_.life(rank) <= Life::alive) {
      page.code.store(kUnknownCode, std::memory_order_relaxed);  // only a parent learns the code
      page.life.store(static_cast<std::uint32_t>(Life::exited), std::memory_order_release);
    }
    page.over.store(1, std::memory_order_release);
  }
}

void PeerWatch::add_living(std::vector<pollfd>& watched) const {
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i] && board_.life(first_ + static_cast<int>(i)) <= Life::alive)
      watched.push_back({processes_[i].get(), POLLIN, 0});
  }
}

bool PeerWatch::note_stopped(std::span<const int> ranks) {
  bool any = false;
  for (const int rank : ranks) {
    if (rank < first_ || rank >= first_ + static_cast<int>(pids_.size())) continue;
    const bool stopped = posix::is_stopped(pids_[static_cast<std::size_t>(rank - first_)]);
    board_.page(rank).stopped.store(stopped ? 1 : 0, relaxed);
    any = any || stopped;
  }
  return any;
}

}  // namespace tsprun::detail
