// Prints a rank's events in Chrome's trace event format, for Perfetto: a process for each rank, with a row of spans, one of
// kernels and waits, and a row per stream. The printed text is a part of the array `traceEvents`, each event after a comma.
#pragma once

#include "core/streams/engine.h"
#include "core/trace/recorder.h"
#include "core/trace/trace_text.h"
#include "tsprun/trace.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail {

/// Arrows that connect the ranks' slices of an operation.
enum class TraceFlows : std::uint8_t {
  all,         ///< from each sender to each receiver; n·(n−1) for a collective of n ranks
  neighbours,  ///< in a collective only from each rank to the next of its group; n arrows
  none
};

/// Returns what the sizes of a kernel's event are called: m, n, k of a product, batch, queries, keys, heads, head_dim of
/// attention; nothing for other kernels.
std::span<const char* const> size_names(std::string_view kernel);

/// Returns microseconds since `zero_ns`, as the format wants them; 0 before it.
double micro(std::uint64_t ns, std::uint64_t zero_ns);

/// Prints the name of a process, and its number as its place among the others.
void print_process(TraceText& text, int process, const std::string& name);
/// Prints the names of a rank's process and rows; before those of the file's first rank also the beginning of the file.
void print_head(TraceText& text, int rank, bool is_first);
/// A group of an operation, as a trace shows it.
struct TracedGroup {
  std::span<const int> members = {};
  std::string_view name = {};  ///< empty: it has none
};

/// Prints a rank's events by their beginning, with their arrows. `groups` gives a group by its number, `pause` is called now and
/// then. Returns the time at which the last event ended.
std::uint64_t print_events(TraceText& text, std::span<const TraceEvent> events, int rank, std::uint64_t zero_ns, TraceFlows flows,
                           const std::function<TracedGroup(std::uint64_t)>& groups, const std::function<void()>& pause);
/// Prints a real rank's events, memory, and how many events are missing.
void print_rank(TraceText& text, const TraceRecorder& trace, const Engine& engine, std::uint64_t zero_ns, TraceFlows flows,
                const std::function<void()>& pause);
/// Prints a counter for each category of memory, and one for their sum.
void print_memory(TraceText& text, std::span<const TraceMemory> memory, int rank, std::uint64_t zero_ns);
/// Says at the end of a rank's events that some are missing; nothing if none are.
void print_left_out(TraceText& text, std::uint64_t left_out, int rank, std::uint64_t end_ns, std::uint64_t zero_ns);

}  // namespace tsprun::detail
