// Measures how fast messages arrive from each other rank, so that the report can name pairs whose link is slower than the others.
//
// A message is timed if it was still missing when this rank first polled for it: from that poll to the one that found it. This
// time is too long where the sender was late, or where this rank computed and polled only now and then; it is too short where
// this rank came late itself and the message was nearly there. So a link is judged by its fastest messages but for a few: by a
// speed that three of them and one in 64 of all may exceed.
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
    std::uint32_t faster = 0;           // messages that were faster than record.fastest since that was set
    std::uint64_t slowest_of_them = 0;  // in bytes per second
  };
  static void judge(Sender& link, std::uint64_t speed);
  LinkLine* line_for(const Sender& link);

  RankPage* page_;
  std::vector<Sender> links_;  // by rank of the world
};

}  // namespace tsprun::detail
