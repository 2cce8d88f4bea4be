// The state of one wait: how long nothing has moved, and what the wait chain looked like then.
#pragma once

#include "transport/message.h"

#include <cstdint>
#include <vector>

namespace tsprun::detail {

/// Time between two looks beyond which this rank must have been stopped or starved itself, as sleeps are far shorter.
constexpr std::uint64_t kClockJumpNs = 2'000'000'000;

/// State of one wait: of a call of Engine::wait_for(), or of several of drive().
struct WaitState {
  explicit WaitState(Stream waited_for) : stream(waited_for) {}

  Stream stream;                     ///< the stream that is waited for
  std::uint64_t number = 0;          ///< the operation waited for; only on kTagged it needn't be the head
  bool blocked = true;               ///< the rank's program waits; false: the progress thread attends to operations meanwhile
  std::uint32_t looks = 0;           ///< polls since something last moved; if ranks outnumber cores, those followed by a yield
  std::uint32_t spins = 0;           ///< if ranks outnumber cores: polls since the last yield
  std::uint64_t yielded_at_ns = 0;   ///< when the last yield began, if nothing has moved since; 0: none did
  std::uint64_t started_ns = 0;      ///< when spinning began to read the clock; 0: not yet
  std::uint64_t last_look_ns = 0;    ///< when the board was last examined (look_around)
  int suspect = -1;                  ///< world rank waited for that was dead or finished at the last look; -1: none
  std::uint64_t left_since_ns = 0;   ///< since when the peer is marked finished though its process may still run; 0: it isn't
  std::vector<int> chain;            ///< the wait chain at the last look
  std::uint64_t chain_ticks = 0;     ///< ticks of the chain's root (sum over all its ranks, if it is a cycle)
  std::uint64_t chain_since_ns = 0;  ///< since when chain and chain_ticks are unchanged: the deadline counts from here

  /// Begins anew because something moved.
  void restart() {
    looks = 0;
    spins = 0;
    yielded_at_ns = 0;
    started_ns = 0;
    suspect = -1;
  }
};

}  // namespace tsprun::detail
