// Prints events, arrows, counters, faults and failures as Chrome's trace events.
#include "launcher/model/trace_file.h"

#include "launcher/model/trace_writer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// Returns microseconds since `zero_ns`, as the format wants them.
double micro(std::uint64_t ns, std::uint64_t zero_ns) { return ns < zero_ns ? 0 : static_cast<double>(ns - zero_ns) * 1e-3; }

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string_view row_name(int row) {
  if (row == TraceEvent::kCompute) return "compute";
  return row == TraceEvent::kSpans ? "schedule" : name(static_cast<Stream>(row - 1));
}

void print_process(TraceWriter& file, int process, const std::string& name) {
  file.print("{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":\"{}\"}}}},\n", process, name);
  file.print("{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{0}}}}}", process);
}

void print_head(TraceWriter& file, int rank) {
  if (rank == 0) file.print("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  else file.print(",\n");
  print_process(file, rank, fmt::format("rank {}", rank));
  for (int row = 0; row <= TraceEvent::kSpans; ++row) {
    file.print(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}}", rank, row,
               row_name(row));
    // Spans above what they consist of.
    file.print(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{}}}}}", rank,
               row, row == TraceEvent::kSpans ? -1 : row);
  }
}

void print_slice(TraceWriter& file, const TraceEvent& event, int rank, std::uint64_t zero_ns) {
  const std::string number = event.number < 0 ? "" : fmt::format(" {}", event.number);
  file.print(",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}{}\",\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{", rank,
             event.row, event.name, number, micro(event.begin_ns, zero_ns),
             static_cast<double>(event.end_ns - event.begin_ns) * 1e-3);
  if (event.op) {
    file.print("\"bytes\":{},\"purpose\":\"{}\",\"sequence\":{}", event.bytes, name(event.purpose), event.sequence);
    if (event.peer >= 0) file.print(",\"peer\":{}", event.peer);
  } else if (event.waited_for >= 0) {
    file.print("\"for_rank\":{},\"op\":\"{}\",\"sequence\":{}", event.waited_for, name(event.waited_op), event.sequence);
  } else if (event.flops > 0) {
    file.print("\"flops\":{:.0f}", event.flops);
  }
  file.print("}}}}");
}

/// Prints a counter for each category, and one for their sum.
void print_memory(TraceWriter& file, std::span<const TraceMemory> memory, int rank, std::uint64_t zero_ns) {
  for (const TraceMemory& sample : memory) {
    file.print(",\n{{\"ph\":\"C\",\"pid\":{},\"name\":\"memory (bytes)\",\"ts\":{:.3f},\"args\":{{", rank,
               micro(sample.at_ns, zero_ns));
    for (std::size_t i = 0; i < kCategories; ++i) file.print("\"{}\":{},", name(static_cast<Category>(i)), sample.bytes.of[i]);
    file.print("\"total\":{}}}}}", sample.bytes.total);
    if (file.full()) file.flush();
  }
}

/// Prints a counter for each link, as a process behind the ranks. A value holds until the next one.
void print_links(TraceWriter& file, const theory::Simulated& played, int process) {
  file.print(",\n");
  print_process(file, process, "links");
  for (const LinkTrack& track : played.tracks) {
    double shown = 0;
    for (std::size_t slice = 0; slice <= track.bytes.size(); ++slice) {
      const double rate = slice == track.bytes.size() ? 0 : track.bytes[slice] / played.slice_seconds;
      if (rate == shown) continue;
      shown = rate;
      file.print(",\n{{\"ph\":\"C\",\"pid\":{},\"name\":\"{}\",\"ts\":{:.3f},\"args\":{{\"bytes/s\":{}}}}}", process, track.name,
                 static_cast<double>(slice) * played.slice_seconds * 1e6, rate);
    }
    if (file.full()) file.flush();
  }
}

/// The ends of one operation's arrows on this rank.
struct Partners {
  std::vector<int> to;
  std::vector<int> from;
};

/// Returns the arrows of a collective under TraceFlows::neighbours: to the next member, from the one before.
Partners neighbours(std::span<const int> members, int rank) {
  const auto at = std::find(members.begin(), members.end(), rank);
  if (at == members.end() || members.size() < 2) return {};
  const auto place = static_cast<std::size_t>(at - members.begin());
  return {.to = {members[(place + 1) % members.size()]}, .from = {members[(place + members.size() - 1) % members.size()]}};
}

Partners partners(const TraceEvent& event, std::span<const int> members, int rank, TraceFlows flows) {
  if (flows == TraceFlows::none) return {};
  std::vector<int> others;
  std::copy_if(members.begin(), members.end(), std::back_inserter(others), [&](int member) { return member != rank; });
  const bool root = event.peer == rank;
  switch (*event.op) {
    case Op::send: return {.to = {event.peer}, .from = {}};
    case Op::recv: return {.to = {}, .from = {event.peer}};
    case Op::send_recv:
      if (root) return {};  // a copy
      return {.to = {event.peer}, .from = {event.source}};
    case Op::broadcast:
    case Op::scatter: return root ? Partners{.to = others, .from = {}} : Partners{.to = {}, .from = {event.peer}};
    case Op::reduce:
    case Op::gather: return root ? Partners{.to = {}, .from = others} : Partners{.to = {event.peer}, .from = {}};
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
    case Op::all_to_all:
      return flows == TraceFlows::neighbours ? neighbours(members, rank) : Partners{.to = others, .from = others};
    case Op::barrier: break;
  }
  return {};
}

/// Gives an arrow the same name on both ends: from a collective's number in the group, or k for the k-th message to a rank.
class ArrowNames {
 public:
  std::uint64_t operator()(const TraceEvent& event, int from, int to) {
    const bool collective = is_collective(*event.op);
    const std::uint64_t number = collective ? event.sequence : ++messages_[{event.group, event.row, from, to}];
    const std::array<std::uint64_t, 6> parts = {
        event.group, number, event.row, collective ? 1U : 0U, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to)};
    return XXH3_64bits(parts.data(), sizeof parts);
  }

 private:
  std::map<std::tuple<std::uint64_t, int, int, int>, std::uint64_t> messages_;
};

/// Prints an operation's arrows. An arrow leaves a slice where it begins, and arrives where the other slice ends.
void print_arrows(TraceWriter& file, const TraceEvent& event, std::span<const int> members, int rank, std::uint64_t zero_ns,
                  ArrowNames& names, TraceFlows flows) {
  const Partners ends = partners(event, members, rank, flows);
  const auto print = [&](const char* phase, std::uint64_t id, std::uint64_t at_ns) {
    file.print(",\n{{\"ph\":{},\"id\":\"{:#x}\",\"cat\":\"flow\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f}}}", phase,
               id, name(event.purpose), rank, event.row, micro(at_ns, zero_ns));
  };
  for (const int to : ends.to) print("\"s\"", names(event, rank, to), event.begin_ns);
  for (const int from : ends.from) {
    print("\"f\",\"bp\":\"e\"", names(event, from, rank), std::max(event.begin_ns, event.end_ns - 1));
  }
}

/// Returns the events in the order in which they are written: by beginning, the longer first, so that a span comes before those
/// inside it.
std::vector<const TraceEvent*> in_order(std::span<const TraceEvent> all) {
  std::vector<const TraceEvent*> events;
  events.reserve(all.size());
  for (const TraceEvent& event : all) events.push_back(&event);
  std::stable_sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
    return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
  });
  return events;
}

/// Prints a rank's events. `members` gives a group's ranks by its number; `pause` is called now and then. Returns the time at
/// which the last event ended.
template <class Members, class Pause>
std::uint64_t print_events(TraceWriter& file, std::span<const TraceEvent> events, int rank, std::uint64_t zero_ns,
                           TraceFlows flows, const Members& members, const Pause& pause) {
  ArrowNames names;
  std::uint64_t end_ns = zero_ns;
  for (const TraceEvent* event : in_order(events)) {
    end_ns = std::max(end_ns, event->end_ns);
    print_slice(file, *event, rank, zero_ns);
    if (event->op) print_arrows(file, *event, members(event->group), rank, zero_ns, names, flows);
    if (!file.full()) continue;
    file.flush();
    pause();
  }
  return end_ns;
}

/// Says at the trace's end that events are missing.
void print_left_out(TraceWriter& file, std::uint64_t left_out, int rank, std::uint64_t end_ns, std::uint64_t zero_ns) {
  if (left_out == 0) return;
  file.print(",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":0,\"name\":\"{} more events were left out\",\"ts\":{:.3f}}}", rank,
             left_out, micro(end_ns, zero_ns));
}

void print_rank(TraceWriter& file, Context& context, const TraceRecorder& trace, std::uint64_t zero_ns, TraceFlows flows) {
  const Engine& engine = engine_of(context);
  const std::uint64_t end_ns = print_events(
      file, trace.events(), context.rank(), zero_ns, flows, [&](std::uint64_t group) { return engine.members_of(group); },
      [&] { context.tick(); });
  print_memory(file, trace.memory(), context.rank(), zero_ns);
  print_left_out(file, trace.left_out(), context.rank(), end_ns, zero_ns);
}

/// Prints the faults that were injected on a rank, as far as the board has their details.
void print_faults(TraceWriter& file, const FlightBoard& board, int rank, const std::vector<fault::Spec>& faults,
                  std::uint64_t zero_ns) {
  for (const FaultRecord& record : board.fault_records(rank)) {
    if (record.fault >= faults.size()) continue;
    file.print(",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":0,\"cat\":\"fault\",\"name\":{},\"ts\":{:.3f},\"args\":{{", rank,
               quoted(faults[record.fault].text), micro(record.when_ns, zero_ns));
    file.print("\"step\":{}", record.step);
    if (!record.op.empty()) file.print(",\"op\":\"{}\",\"sequence\":{}", record.op, record.sequence);
    if (record.peer >= 0) file.print(",\"peer\":{}", record.peer);
    file.print("}}}}");
  }
}

/// Prints the failure as an instant of the culprit's process; of all processes if the culprit isn't known.
void print_failure(TraceWriter& file, const Failure& failure, int ranks, std::uint64_t when_ns, std::uint64_t zero_ns) {
  const bool known = failure.rank >= 0 && failure.rank < ranks;
  file.print(",\n{{\"ph\":\"i\",\"s\":\"{}\",\"pid\":{},\"tid\":0,\"cat\":\"failure\",\"name\":\"{}\",\"ts\":{:.3f},\"args\":{{",
             known ? "p" : "g", known ? failure.rank : 0, name(failure.cause), micro(when_ns, zero_ns));
  file.print("\"detail\":{}", quoted(failure.detail));
  if (!failure.op.empty()) file.print(",\"op\":{},\"sequence\":{}", quoted(failure.op), failure.sequence);
  file.print("}}}}");
}

}  // namespace

namespace {

/// Returns, on every rank, the text of the first rank whose text isn't empty.
std::string first_trouble(Communicator& world, const std::string& mine) {
  constexpr std::size_t kLongest = 512;
  std::array<char, kLongest> text{};
  mine.copy(text.data(), kLongest - 1);
  std::vector<char> all(kLongest * static_cast<std::size_t>(world.size()));
  world.all_gather(ConstBuffer(text.data(), text.size(), DType::byte), Buffer(all.data(), all.size(), DType::byte));
  for (std::size_t at = 0; at < all.size(); at += kLongest) {
    if (all[at] != '\0') return all.data() + at;
  }
  return {};
}

}  // namespace

std::string write_trace(Context& context, const TraceRecorder& trace, const std::vector<fault::Spec>& faults,
                        const TraceTarget& target) {
  Communicator& world = context.world();
  // Time 0 is the job's first event.
  std::byte mine[sizeof(std::uint64_t)];
  const std::uint64_t first =
      trace.events().empty()
          ? UINT64_MAX
          : std::min_element(trace.events().begin(), trace.events().end(), [](const TraceEvent& a, const TraceEvent& b) {
              return a.begin_ns < b.begin_ns;
            })->begin_ns;
  std::memcpy(mine, &first, sizeof first);
  std::vector<std::uint64_t> firsts(static_cast<std::size_t>(world.size()));
  world.all_gather(ConstBuffer(mine, sizeof mine, DType::byte),
                   Buffer(firsts.data(), firsts.size() * sizeof(std::uint64_t), DType::byte));
  const std::uint64_t zero = *std::min_element(firsts.begin(), firsts.end());

  // A byte is passed from rank to rank. It becomes 1 once writing has failed on a rank, and then no later rank writes.
  std::byte turn{};
  std::string trouble;
  const int rank = world.rank();
  if (rank > 0) world.recv(Buffer(&turn, 1, DType::byte), rank - 1);
  try {
    if (turn == std::byte{0}) {
      TraceWriter file(target.path, rank == 0);
      print_head(file, rank);
      print_rank(file, context, trace, zero, target.flows);
      print_faults(file, board_of(context), rank, faults, zero);
      if (rank + 1 == world.size()) file.print("\n]}}\n");
      file.finish();
    }
  } catch (const Error& error) {
    if (error.cause() != Cause::refused) throw;
    trouble = error.what();
    turn = std::byte{1};
  }
  if (rank + 1 < world.size()) world.send(ConstBuffer(&turn, 1, DType::byte), rank + 1);
  return first_trouble(world, trouble);
}

void write_failure_trace(const FlightBoard& board, const std::vector<fault::Spec>& faults, const Failure& failure,
                         std::uint64_t when_ns, std::uint64_t zero_ns, const std::string& path) {
  TraceWriter file(path, true);
  for (int rank = 0; rank < board.ranks(); ++rank) {
    print_head(file, rank);
    print_faults(file, board, rank, faults, zero_ns);
    if (file.full()) file.flush();
  }
  print_failure(file, failure, board.ranks(), when_ns, zero_ns);
  file.print("\n]}}\n");
  file.finish();
}

void write_played_trace(const theory::Simulated& played, const TraceTarget& target) {
  TraceWriter file(target.path, true);
  const auto ranks = static_cast<int>(played.traces.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const PlayedTrace& trace = played.traces[static_cast<std::size_t>(rank)];
    const auto& groups = played.groups[static_cast<std::size_t>(rank)];
    // Arrows to ranks that weren't played would end nowhere.
    std::vector<int> here;
    const auto members = [&](std::uint64_t group) -> std::span<const int> {
      here = groups.at(group);
      std::erase_if(here, [&](int member) { return member >= ranks; });
      return here;
    };
    print_head(file, rank);
    const std::uint64_t end_ns = print_events(file, trace.events, rank, 0, target.flows, members, [] {});
    print_memory(file, trace.memory, rank, 0);
    print_left_out(file, trace.left_out, rank, end_ns, 0);
  }
  print_links(file, played, ranks);
  file.print("\n]}}\n");
  file.finish();
}

}  // namespace tsprun::detail::launcher
