// The state of one wait.
#pragma once

#include "transport/message.h"

#include <cstdint>
#include <vector>

namespace tsprun {

struct Patience {
  explicit Patience(Stream waited_for) : stream(waited_for) {}

  Stream stream;                 ///< the stream that is waited for
  std::uint32_t looks = 0;       ///< fruitless looks since something last moved
  std::uint64_t started_ns = 0;  ///< of the fruitless stretch; 0: the clock was not read yet
  std::uint64_t last_look_ns = 0;
  int suspect = -1;                  ///< a rank of the world seen dead or finished while we waited for it
  std::uint64_t left_since_ns = 0;   ///< since when a peer has been seen finished whose process goes on; 0: it wasn't
  std::vector<int> chain;            ///< the wait chain at the last look
  std::uint64_t chain_ticks = 0;     ///< signs of life of the chain's root (of all its ranks, if it is a cycle)
  std::uint64_t chain_since_ns = 0;  ///< since when both are unchanged: the deadline runs from here

  void restart() {
    looks = 0;
    started_ns = 0;
    suspect = -1;
  }
};

}  // namespace tsprun
