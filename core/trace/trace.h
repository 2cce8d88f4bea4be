// What a rank did when: one event for each kernel, each wait and each communication operation. The launcher merges the ranks'
// events into one file for Perfetto.
#pragma once

#include "transport/message.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace tsp {

/// One stretch of time on one row of a rank.
struct TraceEvent {
  static constexpr std::uint8_t kCompute = 0;  ///< row of kernels and waits; communication streams follow: 1 + Stream
  std::uint64_t begin_ns = 0;                  ///< posix::now_ns, one clock for all ranks of a machine
  std::uint64_t end_ns = 0;
  std::string_view name;  ///< of static storage
  double flops = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;  ///< of an operation in its group
  std::int32_t peer = -1;      ///< world rank: a broadcast's or reduction's root, a message's other end
  std::uint8_t row = kCompute;
};

class Trace {
 public:
  void add(const TraceEvent& event) { events_.push_back(event); }
  const std::vector<TraceEvent>& events() const { return events_; }
  void clear() { events_.clear(); }

 private:
  std::vector<TraceEvent> events_;
};

}  // namespace tsp
