// Prints slices, arrows and counters as Chrome's trace events.
#include "core/trace/events_text.h"

#include "transport/checksum.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace tsprun::detail {

std::span<const char* const> size_names(std::string_view kernel) {
  static constexpr std::array<const char*, 3> kOfProduct = {"m", "n", "k"};
  static constexpr std::array<const char*, 5> kOfAttention = {"batch", "queries", "keys", "heads", "head_dim"};
  if (kernel == "gemm") return kOfProduct;
  if (kernel == "flash forward" || kernel == "flash backward") return kOfAttention;
  return {};
}

double micro(std::uint64_t ns, std::uint64_t zero_ns) { return ns < zero_ns ? 0 : static_cast<double>(ns - zero_ns) * 1e-3; }

namespace {

std::string_view row_name(int row) {
  if (row == TraceEvent::kCompute) return "compute";
  return row == TraceEvent::kSpans ? "schedule" : name(static_cast<Stream>(row - 1));
}

void print_row(TraceText& text, int rank, int row, std::string_view name, int place) {
  text.print(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}}", rank, row, name);
  text.print(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{}}}}}", rank, row,
             place);
}

/// Returns the members of a group but one as ranges: "0-2,5".
std::string peers_text(std::span<const int> members, int rank) {
  std::vector<int> ranks;
  std::ranges::copy_if(members, std::back_inserter(ranks), [rank](int member) { return member != rank; });
  std::ranges::sort(ranks);
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
    first = last + 1;
  }
  return text;
}

void print_slice(TraceText& text, const TraceEvent& event, const TracedGroup& group, int rank, int row, std::uint64_t zero_ns) {
  std::string number = event.number < 0 ? "" : fmt::format(" {}", event.number);
  if (!event.matrix.empty()) number = fmt::format(" {}", event.matrix);
  text.print(",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}{}\",\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{", rank, row,
             event.name, number, micro(event.begin_ns, zero_ns), static_cast<double>(event.end_ns - event.begin_ns) * 1e-3);
  if (event.op) {
    text.print("\"bytes\":{},\"purpose\":\"{}\",\"sequence\":{}", event.bytes, name(event.purpose), event.sequence);
    if (event.peer >= 0) text.print(",\"peer\":{}", event.peer);
    if (event.source >= 0) text.print(",\"from\":{}", event.source);
    if (is_collective(*event.op)) text.print(",\"peers\":\"{}\"", peers_text(group.members, rank));
    if (!group.name.empty()) text.print(",\"group\":\"{}\"", group.name);
  } else if (event.waited_for >= 0) {
    text.print("\"for_rank\":{},\"op\":\"{}\",\"sequence\":{}", event.waited_for, name(event.waited_op), event.sequence);
  } else if (event.flops > 0 || event.bytes > 0) {
    text.print("\"flops\":{:.0f},\"bytes\":{}", event.flops, event.bytes);
    const std::span<const char* const> names = size_names(event.name);
    for (std::size_t i = 0; i < names.size(); ++i) text.print(",\"{}\":{}", names[i], event.sizes[i]);
  }
  text.print("}}}}");
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
    return checksum(std::as_bytes(std::span(parts)));
  }

 private:
  std::map<std::tuple<std::uint64_t, int, int, int>, std::uint64_t> messages_;
};

/// Prints an operation's arrows. An arrow leaves a slice where it begins, and arrives where the other slice ends.
void print_arrows(TraceText& text, const TraceEvent& event, std::span<const int> members, int rank, int row,
                  std::uint64_t zero_ns, ArrowNames& names, TraceFlows flows) {
  const Partners ends = partners(event, members, rank, flows);
  const auto print = [&](const char* phase, std::uint64_t id, std::uint64_t at_ns) {
    text.print(",\n{{\"ph\":{},\"id\":\"{:#x}\",\"cat\":\"flow\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f}}}", phase,
               id, name(event.purpose), rank, row, micro(at_ns, zero_ns));
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

/// Rows of messages with a tag, of which several may be on their way at the same time, whereas the slices of a row must not
/// overlap.
class TaggedRows {
 public:
  /// Returns the row of the next message by beginning: the first whose last message was over before. Names a row that is new.
  int of(const TraceEvent& event, int rank, TraceText& text) {
    const auto free = std::ranges::find_if(ends_, [&](std::uint64_t end) { return end <= event.begin_ns; });
    const auto place = static_cast<int>(free - ends_.begin());
    const int row = place == 0 ? event.row : TraceEvent::kSpans + place;
    if (free != ends_.end()) {
      *free = event.end_ns;
    } else {
      ends_.push_back(event.end_ns);
      if (place > 0) print_row(text, rank, row, fmt::format("tagged {}", place + 1), row);
    }
    return row;
  }

 private:
  std::vector<std::uint64_t> ends_;  // by row: when its last message was over
};

}  // namespace

void print_process(TraceText& text, int process, const std::string& name) {
  text.print("{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":\"{}\"}}}},\n", process, name);
  text.print("{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{0}}}}}", process);
}

void print_head(TraceText& text, int rank, bool is_first) {
  if (is_first) text.print("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  else text.print(",\n");
  print_process(text, rank, fmt::format("rank {}", rank));
  // Spans stand above what they consist of.
  for (int row = 0; row <= TraceEvent::kSpans; ++row)
    print_row(text, rank, row, row_name(row), row == TraceEvent::kSpans ? -1 : row);
}

std::uint64_t print_events(TraceText& text, std::span<const TraceEvent> events, int rank, std::uint64_t zero_ns, TraceFlows flows,
                           const std::function<TracedGroup(std::uint64_t)>& groups, const std::function<void()>& pause) {
  ArrowNames names;
  TaggedRows tagged;
  std::uint64_t end_ns = zero_ns;
  for (const TraceEvent* event : in_order(events)) {
    end_ns = std::max(end_ns, event->end_ns);
    const bool has_tag = event->row == 1 + static_cast<int>(kTagged);
    const int row = has_tag ? tagged.of(*event, rank, text) : event->row;
    const TracedGroup group = event->op ? groups(event->group) : TracedGroup();
    print_slice(text, *event, group, rank, row, zero_ns);
    if (event->op) print_arrows(text, *event, group.members, rank, row, zero_ns, names, flows);
    if (!text.full()) continue;
    text.flush();
    pause();
  }
  return end_ns;
}

void print_memory(TraceText& text, std::span<const TraceMemory> memory, int rank, std::uint64_t zero_ns) {
  for (const TraceMemory& sample : memory) {
    text.print(",\n{{\"ph\":\"C\",\"pid\":{},\"name\":\"memory (bytes)\",\"ts\":{:.3f},\"args\":{{", rank,
               micro(sample.at_ns, zero_ns));
    for (std::size_t i = 0; i < kCategories; ++i) text.print("\"{}\":{},", name(static_cast<Category>(i)), sample.bytes.of[i]);
    text.print("\"total\":{}}}}}", sample.bytes.total);
    if (text.full()) text.flush();
  }
}

void print_left_out(TraceText& text, std::uint64_t left_out, int rank, std::uint64_t end_ns, std::uint64_t zero_ns) {
  if (left_out == 0) return;
  text.print(",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":0,\"name\":\"{} more events were left out\",\"ts\":{:.3f}}}", rank,
             left_out, micro(end_ns, zero_ns));
}

void print_rank(TraceText& text, const TraceRecorder& trace, const Engine& engine, std::uint64_t zero_ns, TraceFlows flows,
                const std::function<void()>& pause) {
  const int rank = engine.world_rank();
  const std::uint64_t end_ns = print_events(
      text, trace.events(), rank, zero_ns, flows,
      [&](std::uint64_t group) { return TracedGroup{.members = engine.members_of(group), .name = engine.name_of(group)}; },
      pause);
  print_memory(text, trace.memory(), rank, zero_ns);
  print_left_out(text, trace.left_out(), rank, end_ns, zero_ns);
}

}  // namespace tsprun::detail
