// State of a played rank: how far it has got, and what it works on. The player (player.cpp) has one of each.
#pragma once

#include "core/program/program.h"
#include "core/trace/recorder.h"
#include "core/virtual/played_rank.h"
#include "core/virtual/player.h"
#include "core/virtual/task_graph.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

namespace tsprun::detail {

/// State of one played rank. See the player for what its events change.
struct PlayedState {
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  std::unique_ptr<TraceRecorder> trace;  // null: none; outlives the engine that it observes
  std::unique_ptr<PlayedRank> rank;
  std::unique_ptr<TaskGraph> graph;  // null: none
  std::size_t next = 0;              // item
  int steps = 0;                     // played to their end
  bool waits = false;
  std::uint8_t stream = 0;   // of the operation that it waits for
  std::uint64_t number = 0;  // of that operation
  double waits_since = 0;
  TraceEvent wait{};  // the wait, as the trace shows it
  // The kernel that it computes, or the chores that its core does.
  bool works = false;
  bool chores = false;      // it isn't a kernel
  bool ticking = false;     // an event kTick is on its way
  bool news = false;        // its operations may go on
  double in_ticks = 0;      // seconds of chores in the kernel's ticks
  double resumes_at = 0;    // when the chores of the last tick are done
  double tick_seconds = 0;  // from tick to tick
  double began_at = 0;
  double until_started = 0;  // seconds in which the host starts the kernel, at the time of the last change
  double left = 0;           // seconds of its work, likewise
  double changed_at = 0;
  double ends_at = 0;
  double event_at = kNever;             // of the event kWork that counts, not after ends_at; kNever: none
  double host_at = 0;                   // when the host has started all that came up so far
  int moving = 0;                       // messages that it sends or receives, if they slow kernels
  CategoryBytes held{};                 // by the schedule, if there is a trace
  std::uint32_t streams_with_news = 0;  // one bit each; if any, an event kNews is on its way
  bool done = false;
  PlayedTimes times{};

  /// Adds an event that ends now to the rank's trace, if it has one.
  void note(TraceEvent event, const Clock& clock) const;
  /// Adds the kernel that ends now.
  void note_kernel(const Clock& clock) const;
  /// Counts the memory that an item takes or gives back, if there is a trace.
  void hold(const ProgramItem& item);
};

}  // namespace tsprun::detail
