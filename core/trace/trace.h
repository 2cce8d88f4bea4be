// What a rank did when: one event for each kernel, each wait and each communication operation. The launcher merges the ranks'
// events into one file for Perfetto.
#pragma once

#include "core/memory/heap.h"
#include "core/streams/wait_observer.h"
#include "transport/message.h"
#include "transport/posix.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tsprun {

/// One stretch of time on one row of a rank.
struct TraceEvent {
  static constexpr std::uint8_t kCompute = 0;           ///< row of kernels and waits; communication streams follow: 1 + Stream
  static constexpr std::uint8_t kSpans = 1 + kStreams;  ///< row of TraceSpan: steps, passes, layers
  std::uint64_t begin_ns = 0;                           ///< posix::now_ns, one clock for all ranks of a machine
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
  std::int64_t number = -1;             ///< of a span: which step, layer, token; -1: there is one only
  std::int32_t waited_for = -1;         ///< of a wait: the world rank whose part was missing for longest; -1: all was there
  Op waited_op = Op::barrier;           ///< of such a wait: in which operation; its number in its group is `sequence`
};

/// What a rank's heap held at a moment, by category.
struct TraceMemory {
  std::uint64_t at_ns = 0;
  CategoryBytes bytes;
};

/// The events of one rank, in private memory. As an observer of the engine it notes every operation; kernels are noted by the
/// compute stream, waits by the rank, steps, passes and layers by whoever runs them (TraceSpan). With every event it looks at the
/// heap: what is in use, and the peak if it rose since the last look, so that the largest of the samples is the peak to the byte.
class Trace final : public WaitObserver {
 public:
  /// Some 100 MB; what comes later is counted and left out.
  static constexpr std::size_t kMostEvents = 1'000'000;

  /// The trace of the rank whose schedule this thread runs, where TraceSpan adds to; null: none. Set by the rank.
  static Trace* current();
  static void set_current(Trace* trace);

  /// From now on samples of this heap are taken. Borrowed; null: none are.
  void watch(const Heap* heap) {
    heap_ = heap;
    seen_peaks_ = {};
    seen_use_ = {};
  }
  /// Whether events are noted. A trace begins awake.
  bool awake() const { return awake_; }
  void wake(bool awake) {
    // What was reached while it slept is none of its business.
    if (awake && !awake_ && heap_ != nullptr) seen_peaks_ = heap_->peaks();
    awake_ = awake;
  }

  void add(const TraceEvent& event) {
    if (!awake_) return;
    note_memory(event.begin_ns, event.end_ns);
    if (events_.size() < kMostEvents) events_.push_back(event);
    else ++left_out_;
  }
  void missing(int rank, const OperationInfo& info) override {
    if (rank == now_.rank && info.op == now_.op && info.group_sequence == now_.sequence) return;
    const std::uint64_t at = posix::now_ns();
    found(at);
    now_ = {.rank = rank, .op = info.op, .sequence = info.group_sequence, .since_ns = at};
  }
  /// A wait of the schedule begins: what an earlier one found missing is none of its business.
  void begin_wait() { now_ = longest_ = {}; }
  /// It is over. It bears the rank and the operation that it found missing for longest.
  void add_wait(std::uint64_t begin_ns, std::uint64_t end_ns) {
    found(end_ns);
    add({.begin_ns = begin_ns,
         .end_ns = end_ns,
         .name = "wait",
         .sequence = longest_.sequence,
         .waited_for = longest_.rank,
         .waited_op = longest_.op});
  }
  /// A last look at the heap, before its numbers go to a report.
  void note_memory_now() {
    const std::uint64_t now = posix::now_ns();
    if (awake_) note_memory(now, now);
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
  /// In order of time.
  const std::vector<TraceMemory>& memory() const { return memory_; }
  std::uint64_t left_out() const { return left_out_; }
  void clear() {
    events_.clear();
    memory_.clear();
    left_out_ = 0;
  }

 private:
  /// What a wait found missing, since when, and in the end for how long.
  struct Missing {
    int rank = -1;
    Op op = Op::barrier;
    std::uint32_t sequence = 0;
    std::uint64_t since_ns = 0;
    std::uint64_t lasted_ns = 0;
  };
  /// What is missing now was found.
  void found(std::uint64_t at_ns) {
    now_.lasted_ns = at_ns - now_.since_ns;
    if (now_.rank >= 0 && (longest_.rank < 0 || now_.lasted_ns > longest_.lasted_ns)) longest_ = now_;
    now_ = {};
  }

  /// A peak that rose since the last look was reached during the event, at the latest.
  void note_memory(std::uint64_t begin_ns, std::uint64_t end_ns) {
    if (heap_ == nullptr || memory_.size() >= kMostEvents) return;
    const std::uint64_t last = memory_.empty() ? 0 : memory_.back().at_ns;
    const CategoryBytes& peaks = heap_->peaks();
    CategoryBytes top = heap_->use();
    bool risen = peaks.total > seen_peaks_.total;
    if (risen) top.total = peaks.total;
    for (std::size_t i = 0; i < kCategories; ++i) {
      if (peaks.of[i] <= seen_peaks_.of[i]) continue;
      top.of[i] = peaks.of[i];
      risen = true;
    }
    seen_peaks_ = peaks;
    if (risen) {
      memory_.push_back({std::max(begin_ns, last), top});
      seen_use_ = top;
    }
    if (const CategoryBytes& use = heap_->use(); use != seen_use_) {
      memory_.push_back({std::max(end_ns, memory_.empty() ? 0 : memory_.back().at_ns), use});
      seen_use_ = use;
    }
  }

  std::vector<TraceEvent> events_;
  std::vector<TraceMemory> memory_;
  const Heap* heap_ = nullptr;
  CategoryBytes seen_peaks_;
  CategoryBytes seen_use_;
  Missing now_;
  Missing longest_;
  std::uint64_t left_out_ = 0;
  bool awake_ = true;
};

/// A step, a pass or a layer of the schedule, from here to the end of the block. Spans nest. Without a trace it costs nothing.
class TraceSpan {
 public:
  /// Of this thread's rank. `name` is of static storage.
  explicit TraceSpan(std::string_view name, std::int64_t number = -1)
      : trace_(Trace::current() != nullptr && Trace::current()->awake() ? Trace::current() : nullptr),
        name_(name),
        number_(number),
        begin_ns_(trace_ == nullptr ? 0 : posix::now_ns()) {}
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    trace_->add({.begin_ns = begin_ns_, .end_ns = posix::now_ns(), .name = name_, .row = TraceEvent::kSpans, .number = number_});
  }

 private:
  Trace* trace_;
  std::string_view name_;
  std::int64_t number_;
  std::uint64_t begin_ns_;
};

}  // namespace tsprun
