#include "launcher/model/trace_file.h"

#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <unistd.h>
#include <vector>

namespace tsp::launcher {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;

class TraceFile {
 public:
  TraceFile(const std::string& path, bool first) : path_(path) {
    const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | (first ? O_CREAT | O_TRUNC : 0);
    file_ = posix::UniqueFd(::open(path.c_str(), flags, 0666));
    if (!file_) throw system_error(Cause::refused, fmt::format("--trace {}: opening it", path_), errno);
  }
  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Arguments>(arguments)...);
  }
  bool full() const { return buffer_.size() >= kPiece; }
  void flush() {
    std::string_view rest(buffer_.data(), buffer_.size());
    while (!rest.empty()) {
      const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw system_error(Cause::refused, fmt::format("--trace {}: writing it", path_), errno);
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
    buffer_.clear();
  }

 private:
  std::string path_;
  posix::UniqueFd file_;
  fmt::memory_buffer buffer_;
};

/// Microseconds, as the format wants them.
double micro(std::uint64_t ns, std::uint64_t zero_ns) { return ns < zero_ns ? 0 : static_cast<double>(ns - zero_ns) * 1e-3; }

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void print_head(TraceFile& file, int rank) {
  if (rank == 0) file.print("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  else file.print(",\n");
  file.print("{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"rank {0}\"}}}},\n", rank);
  file.print("{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{0}}}}}", rank);
  for (int row = 0; row <= kStreams; ++row) {
    file.print(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}}", rank, row,
               row == 0 ? std::string_view("compute") : name(static_cast<Stream>(row - 1)));
    file.print(",\n{{\"ph\":\"M\",\"pid\":{0},\"tid\":{1},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{1}}}}}", rank,
               row);
  }
}

void print_slice(TraceFile& file, const TraceEvent& event, int rank, std::uint64_t zero_ns) {
  file.print(",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{", rank, event.row,
             event.name, micro(event.begin_ns, zero_ns), static_cast<double>(event.end_ns - event.begin_ns) * 1e-3);
  if (event.op) {
    file.print("\"bytes\":{},\"purpose\":\"{}\",\"sequence\":{}", event.bytes, name(event.purpose), event.sequence);
    if (event.peer >= 0) file.print(",\"peer\":{}", event.peer);
  } else if (event.flops > 0) {
    file.print("\"flops\":{:.0f}", event.flops);
  }
  file.print("}}}}");
}

/// The ends of one operation's arrows on this rank.
struct Partners {
  std::vector<int> to;
  std::vector<int> from;
};

Partners partners(const TraceEvent& event, std::span<const int> members, int rank) {
  std::vector<int> others;
  std::copy_if(members.begin(), members.end(), std::back_inserter(others), [&](int member) { return member != rank; });
  const bool root = event.peer == rank;
  switch (*event.op) {
    case Op::send: return {.to = {event.peer}, .from = {}};
    case Op::recv: return {.to = {}, .from = {event.peer}};
    case Op::send_recv:
      if (root) return {};  // a copy
      return {.to = {event.peer}, .from = {event.source}};
    case Op::broadcast: return root ? Partners{.to = others, .from = {}} : Partners{.to = {}, .from = {event.peer}};
    case Op::reduce: return root ? Partners{.to = {}, .from = others} : Partners{.to = {event.peer}, .from = {}};
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
    case Op::all_to_all: return {.to = others, .from = others};
    case Op::barrier: break;
  }
  return {};
}

/// Names arrows alike on both ends: a collective by its number in the group, the k-th message to a rank by k.
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

/// An arrow leaves a slice where it begins and arrives where the other slice ends.
void print_arrows(TraceFile& file, const TraceEvent& event, std::span<const int> members, int rank, std::uint64_t zero_ns,
                  ArrowNames& names) {
  const Partners ends = partners(event, members, rank);
  const auto print = [&](const char* phase, std::uint64_t id, std::uint64_t at_ns) {
    file.print(",\n{{\"ph\":{},\"id\":\"{:#x}\",\"cat\":\"flow\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f}}}", phase,
               id, name(event.purpose), rank, event.row, micro(at_ns, zero_ns));
  };
  for (const int to : ends.to) print("\"s\"", names(event, rank, to), event.begin_ns);
  for (const int from : ends.from) {
    print("\"f\",\"bp\":\"e\"", names(event, from, rank), std::max(event.begin_ns, event.end_ns - 1));
  }
}

void print_events(TraceFile& file, Context& context, const Trace& trace, std::uint64_t zero_ns) {
  ArrowNames names;
  for (const TraceEvent& event : trace.events()) {
    print_slice(file, event, context.rank(), zero_ns);
    if (event.op) print_arrows(file, event, context.engine().members_of(event.group), context.rank(), zero_ns, names);
    if (!file.full()) continue;
    file.flush();
    context.engine().tick();
  }
  if (trace.left_out() > 0) {
    const std::uint64_t end = trace.events().empty() ? zero_ns : trace.events().back().end_ns;
    file.print(",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":0,\"name\":\"{} more events were left out\",\"ts\":{:.3f}}}",
               context.rank(), trace.left_out(), micro(end, zero_ns));
  }
}

/// Injected faults of a rank, as far as the board has them in detail.
void print_faults(TraceFile& file, const FlightBoard& board, int rank, const std::vector<fault::Spec>& faults,
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

/// Of the culprit's process; of all if nobody knows it.
void print_failure(TraceFile& file, const Failure& failure, int ranks, std::uint64_t when_ns, std::uint64_t zero_ns) {
  const bool known = failure.rank >= 0 && failure.rank < ranks;
  file.print(",\n{{\"ph\":\"i\",\"s\":\"{}\",\"pid\":{},\"tid\":0,\"cat\":\"failure\",\"name\":\"{}\",\"ts\":{:.3f},\"args\":{{",
             known ? "p" : "g", known ? failure.rank : 0, name(failure.cause), micro(when_ns, zero_ns));
  file.print("\"detail\":{}", quoted(failure.detail));
  if (!failure.op.empty()) file.print(",\"op\":{},\"sequence\":{}", quoted(failure.op), failure.sequence);
  file.print("}}}}");
}

}  // namespace

namespace {

/// What the first rank that has something to say says, on every rank.
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

std::string write_trace(Context& context, const Trace& trace, const std::vector<fault::Spec>& faults, const std::string& path) {
  Communicator& world = context.world();
  // Time begins with the job's first event.
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

  // The turn goes round: 1 once the file has failed somebody, and then nobody goes on with it.
  std::byte turn{};
  std::string trouble;
  const int rank = world.rank();
  if (rank > 0) world.recv(Buffer(&turn, 1, DType::byte), rank - 1);
  try {
    if (turn == std::byte{0}) {
      TraceFile file(path, rank == 0);
      print_head(file, rank);
      print_events(file, context, trace, zero);
      print_faults(file, context.board(), rank, faults, zero);
      if (rank + 1 == world.size()) file.print("\n]}}\n");
      file.flush();
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
  TraceFile file(path, true);
  for (int rank = 0; rank < board.ranks(); ++rank) {
    print_head(file, rank);
    print_faults(file, board, rank, faults, zero_ns);
    if (file.full()) file.flush();
  }
  print_failure(file, failure, board.ranks(), when_ns, zero_ns);
  file.print("\n]}}\n");
  file.flush();
}

}  // namespace tsp::launcher
