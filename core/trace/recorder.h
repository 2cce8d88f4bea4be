// Records kernels, waits and operations of one rank, with times. A program's Trace has a recorder, and so have the ranks of
// tsprun's own commands, from which the launcher writes one file for Perfetto.
#pragma once

#include "core/memory/heap.h"
#include "core/streams/engine.h"
#include "core/trace/profile.h"
#include "transport/clock.h"
#include "transport/message.h"
#include "tsprun/trace.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Bytes in use in a rank's heap at one moment, by category.
struct TraceMemory {
  std::uint64_t at_ns = 0;
  CategoryBytes bytes;
};

/// The events of one rank, in private memory; used by one thread, the rank's. It observes the engine to record operations
/// and waits; the compute stream adds kernels, and TraceSpan adds steps, passes and layers. With every event it samples the
/// heap: the bytes in use, and the peaks if they rose since the last sample, so that the largest sample is the exact peak.
class TraceRecorder final : public OperationObserver {
 public:
  /// Largest number of events (some 150 MB); later events are only counted.
  static constexpr std::size_t kMostEvents = Trace::kMostEvents;

  /// Makes a recorder of events whose times come from this clock, which must be the engine's and outlive the recorder.
  explicit TraceRecorder(const Clock& clock = real_clock()) : clock_(clock) {}
  const Clock& clock() const { return clock_; }

  /// Sets the heap to sample from now on; null: none. Borrowed.
  void watch(const Heap* heap) {
    heap_ = heap;
    seen_peaks_ = {};
    seen_use_ = {};
  }
  /// Returns true if events are being recorded, as they are at first.
  bool awake() const { return awake_; }
  /// Starts or stops recording.
  void wake(bool awake) {
    if (profile_ != nullptr && awake != awake_) {
      if (awake_) profile_->lasted(clock_.now_ns() - awake_since_ns_);
      else awake_since_ns_ = clock_.now_ns();
    }
    // Peaks that were reached while nothing was recorded must not appear in the trace.
    if (awake && !awake_ && heap_ != nullptr) seen_peaks_ = heap_->peaks();
    awake_ = awake;
  }

  /// Adds up events in `profile` from now on, which is borrowed. `keeps_events`: false if nothing else shall be recorded.
  void sum_up(Profile& profile, bool keeps_events) {
    profile_ = &profile;
    keeps_events_ = keeps_events;
    awake_since_ns_ = clock_.now_ns();
  }

  /// Adds an event and samples the heap, if awake.
  void add(const TraceEvent& event) {
    if (!awake_) return;
    if (profile_ != nullptr) profile_->add(event);
    if (!keeps_events_) return;
    note_memory(event.begin_ns, event.end_ns);
    if (events_.size() < kMostEvents) events_.push_back(event);
    else ++left_out_;
  }
  void missing(int rank, const OperationInfo& info) override {
    if (rank == now_.rank && info.op == now_.op && info.group_sequence == now_.sequence) return;
    const std::uint64_t at = clock_.now_ns();
    found(at);
    now_ = {.rank = rank, .op = info.op, .sequence = info.group_sequence, .since_ns = at};
  }
  /// Forgets what earlier waits found missing.
  void wait_begins() override { now_ = longest_ = {}; }
  /// Adds the wait that is over, with the rank whose part was missing for longest, and the operation that lacked it.
  void wait_ended(std::uint64_t begin_ns, std::uint64_t end_ns) override {
    found(end_ns);
    add({.begin_ns = begin_ns,
         .end_ns = end_ns,
         .name = "wait",
         .sequence = longest_.sequence,
         .waited_for = longest_.rank,
         .waited_op = longest_.op});
  }
  /// Samples the heap once more, before its numbers go to a report.
  void note_memory_now() {
    const std::uint64_t now = clock_.now_ns();
    if (awake_ && keeps_events_) note_memory(now, now);
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
  /// Adds a sample of a heap that isn't watched.
  void sample(const CategoryBytes& bytes) {
    if (awake_ && memory_.size() < kMostEvents) memory_.push_back({clock_.now_ns(), bytes});
  }
  /// Returns all events, in the order in which they ended.
  const std::vector<TraceEvent>& events() const { return events_; }
  /// Returns the samples of the heap in order of time.
  const std::vector<TraceMemory>& memory() const { return memory_; }
  /// Returns the number of events beyond kMostEvents, which were not kept.
  std::uint64_t left_out() const { return left_out_; }
  /// Removes all events and samples.
  void clear() {
    events_.clear();
    memory_.clear();
    left_out_ = 0;
  }

 private:
  /// Part of an operation that a wait found missing: its rank, since when, and in the end for how long.
  struct Missing {
    int rank = -1;
    Op op = Op::barrier;
    std::uint32_t sequence = 0;
    std::uint64_t since_ns = 0;
    std::uint64_t lasted_ns = 0;
  };
  /// Ends the time for which the present part was missing, and keeps it if it is the longest of the wait.
  void found(std::uint64_t at_ns) {
    now_.lasted_ns = at_ns - now_.since_ns;
    if (now_.rank >= 0 && (longest_.rank < 0 || now_.lasted_ns > longest_.lasted_ns)) longest_ = now_;
    now_ = {};
  }

  /// Samples the heap around an event. A peak that rose since the last sample was reached by the end of the event; its sample
  /// gets the time of the event's begin.
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

  const Clock& clock_;
  std::vector<TraceEvent> events_;
  std::vector<TraceMemory> memory_;
  const Heap* heap_ = nullptr;
  CategoryBytes seen_peaks_;
  CategoryBytes seen_use_;
  Missing now_;
  Missing longest_;
  std::uint64_t left_out_ = 0;
  Profile* profile_ = nullptr;
  bool keeps_events_ = true;
  std::uint64_t awake_since_ns_ = 0;
  bool awake_ = true;
};

}  // namespace tsprun::detail
