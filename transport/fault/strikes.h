// The messages to a rank that are to be lost, damaged or delayed now, and the ranks from which nothing arrives any more. Core,
// which knows operations, arms strikes when an operation begins and disarms them when it ends. The decorators around the rank's
// transports share this object and strike the first message that fits. So what is struck depends on operations only, and not on
// the transport that carries them.
#pragma once

#include "transport/fault/spec.h"
#include "transport/message.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::fault {

/// One message of a stream that is to be struck.
struct Strike {
  static constexpr int kAnyRank = -1;
  Kind kind = Kind::corrupt;  ///< corrupt, drop or delay
  std::size_t fault = 0;      ///< number among all faults of the job
  int from = kAnyRank;        ///< sending rank in the world; kAnyRank: the first message with a payload from any rank
  std::uint64_t draw = 0;     ///< corrupt: random number that chooses byte and bit
  std::uint64_t late_ns = 0;  ///< delay: added to its arrival
};

/// Report of what was done to a message.
struct FaultEvent {
  std::size_t fault = 0;
  Stream stream = Stream::control;
  int from = -1;  ///< sending rank in the world
  std::size_t bytes = 0;
  std::string what;  ///< "bit 3 of byte 17 is flipped"
};

/// The strikes and cuts of one rank. One thread at a time.
class Strikes {
 public:
  /// Arms a strike for the next message of the stream that fits.
  void arm(Stream stream, const Strike& strike) { armed(stream).push_back(strike); }
  /// Removes and returns the stream's strikes that found no message.
  std::vector<Strike> disarm(Stream stream) { return std::exchange(armed(stream), {}); }
  /// Returns the first armed strike of this kind that fits a message from this rank of the world; nothing if there is none.
  std::optional<Strike> due(Kind kind, Stream stream, int from) const {
    for (const Strike& strike : armed_[static_cast<std::size_t>(stream)]) {
      if (strike.kind == kind && (strike.from == Strike::kAnyRank || strike.from == from)) return strike;
    }
    return std::nullopt;
  }
  /// Removes a strike that was carried out, and calls `on_event`. `strike` must come from due(); others may have been removed
  /// since.
  void done(const Strike& strike, const FaultEvent& event) {
    std::vector<Strike>& all = armed(event.stream);
    const auto at = std::ranges::find_if(all, [&](const Strike& each) {
      return each.kind == strike.kind && each.fault == strike.fault && each.from == strike.from;
    });
    if (at != all.end()) all.erase(at);
    if (on_event) on_event(event);
  }

  /// Cuts the way from this rank of the world: nothing arrives from it any more. `why` is the reason that lanes then report.
  void cut(int from, const std::string& why) { cut_.emplace(from, why); }
  /// Returns why the way from this rank of the world is cut; null if it isn't.
  const std::string* why_cut(int from) const {
    const auto at = cut_.find(from);
    return at == cut_.end() ? nullptr : &at->second;
  }

  /// Callback for every message that was struck.
  std::function<void(const FaultEvent&)> on_event;

 private:
  std::vector<Strike>& armed(Stream stream) { return armed_[static_cast<std::size_t>(stream)]; }

  std::array<std::vector<Strike>, kQueues> armed_;
  std::map<int, std::string> cut_;
};

}  // namespace tsprun::detail::fault
