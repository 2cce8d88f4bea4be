// Measures how fast messages arrive from each other rank, so that the report can name pairs whose link is slower than the others.
//
// A message is timed if it was still missing when this rank first polled for it: from that poll to the one that found it. This
// time is an upper bound, because the sender may have been late, and because a rank that computes polls only now and then. So a
// link is judged by its fastest message, to which neither applies.
#pragma once

#include "core/board/flight_board.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::detail {

/// Smallest message that is timed, in bytes: reading the clock would slow smaller ones down by a percent or more.
inline constexpr std::size_t kTimedBytes = 4096;

/// Measurements of one rank, kept on its page of the flight board.
class LinkTimes {
 public:
  /// Writes into `page`, the page of this rank, which must outlive it.
  LinkTimes(RankPage& page, int world_size) : page_(&page), links_(static_cast<std::size_t>(world_size)) {}

  /// Counts a message of `bytes` from world rank `from`, which arrived `pending_ns` > 0 after this rank first polled for it.
  void arrived(int from, std::size_t bytes, std::uint64_t pending_ns);

 private:
  struct Sender {
    LinkRecord record;
    LinkLine* line = nullptr;
  };
  LinkLine* line_for(const Sender& link);

  RankPage* page_;
  std::vector<Sender> links_;  // by rank of the world
};

}  // namespace tsprun::detail
