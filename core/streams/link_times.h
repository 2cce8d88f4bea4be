// How fast messages come from each other rank, for the report: a link that is slower than its like shows there by pair.
//
// Timed are messages that were still on their way when they were first looked for, from that look to the one that found them.
// That is a bound from above: the sender may have been late, and compute looks only now and then. A link is judged by the fastest
// of its messages, for which neither was so.
#pragma once

#include "core/board/flight_board.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun {

/// Smaller messages aren't timed: reading the clock would cost them a percent and more.
inline constexpr std::size_t kTimedBytes = 4096;

class LinkTimes {
 public:
  /// Writes into `page`, this rank's, which it borrows.
  LinkTimes(RankPage& page, int world_size) : page_(&page), links_(static_cast<std::size_t>(world_size)) {}

  /// A message from that rank of the world was `pending_ns` > 0 on its way.
  void arrived(int from, std::size_t bytes, std::uint64_t pending_ns);

 private:
  struct Link {
    LinkRecord record;
    LinkLine* line = nullptr;
  };
  LinkLine* line_for(const Link& link);

  RankPage* page_;
  std::vector<Link> links_;  // by rank of the world
};

}  // namespace tsprun
