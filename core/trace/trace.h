// What a rank did when: one event for each kernel, each wait and each communication operation. The launcher merges the ranks'
// events into one file for Perfetto.
#pragma once

#include "core/streams/engine.h"
#include "transport/message.h"

#include <cstddef>
#include <cstdint>
#include <optional>
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
  std::uint64_t bytes = 0;     ///< of an operation: this rank's own part
  std::uint64_t sequence = 0;  ///< of an operation in its group and stream, from 1
  std::uint64_t group = 0;     ///< of an operation: the group's number, as Engine::members_of() takes it
  std::int32_t peer = -1;      ///< world rank: a broadcast's or reduction's root, a message's other end
  std::int32_t source = -1;    ///< of a send_recv: from whom it receives
  std::uint8_t row = kCompute;
  std::optional<Op> op = std::nullopt;  ///< of an operation
  Purpose purpose = Purpose::other;     ///< of an operation
};

/// The events of one rank, in private memory. As an observer of the engine it notes every operation; kernels are noted by the
/// compute stream, waits by the rank.
class Trace final : public OperationObserver {
 public:
  /// Some 100 MB; what comes later is counted and left out.
  static constexpr std::size_t kMostEvents = 1'000'000;

  void add(const TraceEvent& event) {
    if (events_.size() < kMostEvents) events_.push_back(event);
    else ++left_out_;
  }
  void completed(Stream stream, const OperationInfo& info, std::uint64_t begin_ns, std::uint64_t end_ns) override {
    add({.begin_ns = begin_ns,
         .end_ns = end_ns,
         .name = name(info.op),
         .bytes = info.bytes,
         .sequence = info.group_sequence,
         .group = info.group,
         .peer = info.root,
         .source = info.source,
         .row = static_cast<std::uint8_t>(1 + static_cast<int>(stream)),
         .op = info.op,
         .purpose = info.purpose});
  }
  const std::vector<TraceEvent>& events() const { return events_; }
  std::uint64_t left_out() const { return left_out_; }
  void clear() {
    events_.clear();
    left_out_ = 0;
  }

 private:
  std::vector<TraceEvent> events_;
  std::uint64_t left_out_ = 0;
};

}  // namespace tsp
