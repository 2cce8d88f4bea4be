// Which messages to a rank shall be lost, damaged or late now, and from which ranks none comes any more. Whoever knows operations
// (core) arms strikes when one begins and disarms them when it is over; the decorators around the rank's transports share this
// object and strike the first message that fits. So what is struck depends on operations alone, whatever transport carries them.
#pragma once

#include "transport/fault/spec.h"
#include "transport/message.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tsprun::fault {

/// One message of a stream that shall be struck.
struct Strike {
  static constexpr int kWhoever = -1;
  Kind kind = Kind::corrupt;  ///< corrupt, drop or delay
  std::size_t fault = 0;      ///< number among all faults of the job
  int from = kWhoever;        ///< rank of the world; kWhoever: the first message with a payload, whoever sends it
  std::uint64_t draw = 0;     ///< corrupt: which byte of it
  std::uint64_t late_ns = 0;  ///< delay: how much later it comes
};

/// What was done to a message.
struct Blow {
  std::size_t fault = 0;
  Stream stream = Stream::control;
  int from = -1;  ///< rank of the world that sent the message
  std::size_t bytes = 0;
  std::string what;  ///< "bit 3 of byte 17 is flipped"
};

class Strikes {
 public:
  void arm(Stream stream, const Strike& strike) { armed(stream).push_back(strike); }
  /// The operation is over: what found no message strikes none.
  void disarm(Stream stream) { armed(stream).clear(); }
  /// The strike of this kind that a message from this rank of the world is due; null: none.
  const Strike* due(Kind kind, Stream stream, int from) const {
    for (const Strike& strike : armed_[static_cast<std::size_t>(stream)]) {
      if (strike.kind == kind && (strike.from == Strike::kWhoever || strike.from == from)) return &strike;
    }
    return nullptr;
  }
  /// It was carried out: it is due no more, and `on_blow` hears of it.
  void done(const Strike& strike, const Blow& blow) {
    std::vector<Strike>& all = armed(blow.stream);
    all.erase(all.begin() + (&strike - all.data()));
    if (on_blow) on_blow(blow);
  }

  /// Nothing comes from this rank of the world any more.
  void cut(int from, const std::string& why) { cut_.emplace(from, why); }
  /// Why nothing does; null: it isn't cut.
  const std::string* why_cut(int from) const {
    const auto at = cut_.find(from);
    return at == cut_.end() ? nullptr : &at->second;
  }

  std::function<void(const Blow&)> on_blow;

 private:
  std::vector<Strike>& armed(Stream stream) { return armed_[static_cast<std::size_t>(stream)]; }

  std::array<std::vector<Strike>, kStreams> armed_;
  std::map<int, std::string> cut_;
};

}  // namespace tsprun::fault
