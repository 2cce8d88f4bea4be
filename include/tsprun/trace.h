// Traces of one rank: a Trace records the operations of its communicators, its waits for them, and the spans that the program
// marks.
//
//   tsprun::Trace trace(context);
//   for (int step = 1; step <= 10; ++step) {
//     const tsprun::TraceSpan span(trace, "step", step);
//     …
//   }
//   for (const tsprun::TraceEvent& event : trace.events()) …
//
// Times are nanoseconds of CLOCK_MONOTONIC, which all ranks of a machine share.
#pragma once

#include "tsprun/types.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace tsprun {

class Context;

namespace detail {
class Engine;
class TraceRecorder;
}  // namespace detail

/// A period of time on one row of a rank's trace.
struct TraceEvent {
  static constexpr std::uint8_t kCompute = 0;           ///< row of kernels and waits; communication streams follow: 1 + Stream
  static constexpr std::uint8_t kSpans = 2 + kStreams;  ///< row of TraceSpan; before it, that of messages with a tag
  std::uint64_t begin_ns = 0;                           ///< operations: when it came to the head of its stream
  std::uint64_t end_ns = 0;                             ///< operations: when it was complete on this rank
  std::string_view name;                                ///< points to static storage
  double flops = 0;                                     ///< kernels: floating point operations of matrix products and attention
  std::uint64_t bytes = 0;                              ///< operations: size of this rank's own part; kernels: read and written
  /// Operations: number from 1 among those of their group and stream; of messages, among those between the same two ranks in that
  /// direction. (Error::sequence() counts otherwise: per kind of operation on its rank.)
  std::uint64_t sequence = 0;
  std::uint64_t group = 0;              ///< operations: a number that all members give the group, and no other group has
  std::int32_t peer = -1;               ///< operations: world rank of the root, or of a message's other end; -1: none
  std::int32_t source = -1;             ///< send_recv: world rank from which it receives
  std::uint8_t row = kCompute;          ///< row of the trace
  std::optional<Op> op = std::nullopt;  ///< operations: their kind; none for other events
  Purpose purpose = Purpose::other;     ///< operations: their traffic counter
  std::int64_t number = -1;             ///< spans: number of the step, layer or token; -1: not numbered
  std::int32_t waited_for = -1;         ///< waits: world rank whose part was missing for longest; -1: nothing was missing
  Op waited_op = Op::barrier;           ///< waits: the operation that lacked it; its number in its group is `sequence`
  /// Products: the weight that is multiplied or whose gradient is computed, in the paper's symbols: "W_Q"; points to static
  /// storage.
  std::string_view matrix{};
  /// Kernels: rows, columns and depth of a product; batch, queries, keys, heads and elements of a head of attention; elsewhere
  /// the sizes of the result, or of the input where that is summed up; 0 where there are fewer.
  std::array<std::uint32_t, 5> sizes{};
};

/// Records operations, waits and spans of one rank, in private memory; used by the rank's thread. Kernels are events of tsprun's
/// own commands only. Small messages that need no waiting (send and recv up to 8 KiB) then take the way of all other operations,
/// so that they are recorded, which costs about 0.1 µs each.
class Trace {
 public:
  /// Largest number of events (some 150 MB); later events are only counted.
  static constexpr std::size_t kMostEvents = 1'000'000;

  /// Starts to record. The context must outlive the trace. Throws Error(refused) while an operation is pending or another trace
  /// of this context exists.
  explicit Trace(Context& context);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  /// Ends recording.
  ~Trace();

  /// Returns all events, in the order in which they ended; valid until the next operation, span or clear().
  const std::vector<TraceEvent>& events() const;
  /// Returns the number of events beyond kMostEvents, which were not kept.
  std::uint64_t left_out() const;
  /// Removes all events.
  void clear();

 private:
  friend class TraceSpan;
  detail::Engine* engine_;
  std::unique_ptr<detail::TraceRecorder> recorder_;
};

/// Records a step, pass or layer of the program, from its construction to the end of the scope. Spans nest.
class TraceSpan {
 public:
  /// Begins a span in `trace`, which must outlive it. `name` must point to static storage. `number`: see TraceEvent.
  explicit TraceSpan(Trace& trace, std::string_view name, std::int64_t number = -1);
  /// Begins a span in what records tsprun's own schedules; null: none, and then a span costs nothing.
  explicit TraceSpan(detail::TraceRecorder* recorder, std::string_view name, std::int64_t number = -1);
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan();

 private:
  detail::TraceRecorder* recorder_;  // null: nothing is recorded
  std::string_view name_;
  std::int64_t number_;
  std::uint64_t begin_ns_;
};

}  // namespace tsprun
