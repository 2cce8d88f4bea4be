#include "launcher/model/trace_file.h"

#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <span>
#include <string_view>
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

/// Whom this rank sends to (`out`) or receives from in an operation.
std::vector<int> partners(const TraceEvent& event, std::span<const int> members, int rank, bool out) {
  const bool root = event.peer == rank;
  std::vector<int> others;
  const auto all = [&] {
    std::copy_if(members.begin(), members.end(), std::back_inserter(others), [&](int member) { return member != rank; });
  };
  const auto only_peer = [&] { others.push_back(event.peer); };
  switch (*event.op) {
    case Op::send:
    case Op::send_recv:
      if (out) only_peer();
      break;
    case Op::recv:
      if (!out) only_peer();
      break;
    case Op::broadcast:
      if (root && out) all();
      if (!root && !out) only_peer();
      break;
    case Op::reduce:
      if (root && !out) all();
      if (!root && out) only_peer();
      break;
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_reduce:
    case Op::all_to_all: all(); break;
    case Op::barrier: break;
  }
  return others;
}

/// An arrow leaves a slice where it begins and arrives where the other slice ends.
void print_arrows(TraceFile& file, const TraceEvent& event, std::span<const int> members, int rank, std::uint64_t zero_ns) {
  for (const int to : partners(event, members, rank, true)) {
    file.print(",\n{{\"ph\":\"s\",\"id\":\"{:#x}\",\"cat\":\"flow\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f}}}",
               arrow_id(event, rank, to), name(event.purpose), rank, event.row, micro(event.begin_ns, zero_ns));
  }
  for (const int from : partners(event, members, rank, false)) {
    file.print(
        ",\n{{\"ph\":\"f\",\"bp\":\"e\",\"id\":\"{:#x}\",\"cat\":\"flow\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f}}}",
        arrow_id(event, from, rank), name(event.purpose), rank, event.row,
        micro(std::max(event.begin_ns, event.end_ns - 1), zero_ns));
  }
}

void print_events(TraceFile& file, Context& context, const Trace& trace, std::uint64_t zero_ns) {
  for (const TraceEvent& event : trace.events()) {
    print_slice(file, event, context.rank(), zero_ns);
    if (event.op) print_arrows(file, event, context.engine().members_of(event.group), context.rank(), zero_ns);
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

}  // namespace

std::uint64_t arrow_id(const TraceEvent& event, int from, int to) {
  const bool message = event.op == Op::send || event.op == Op::recv;
  const std::array<std::uint64_t, 6> parts = {event.group,
                                              event.sequence,
                                              event.row,
                                              message ? 1U : 0U,
                                              static_cast<std::uint64_t>(from),
                                              static_cast<std::uint64_t>(to)};
  return XXH3_64bits(parts.data(), sizeof parts);
}

void write_trace(Context& context, const Trace& trace, const std::string& path) {
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

  std::byte turn{};
  const int rank = world.rank();
  if (rank > 0) world.recv(Buffer(&turn, 1, DType::byte), rank - 1);
  TraceFile file(path, rank == 0);
  print_head(file, rank);
  print_events(file, context, trace, zero);
  if (rank + 1 == world.size()) file.print("\n]}}\n");
  file.flush();
  if (rank + 1 < world.size()) world.send(ConstBuffer(&turn, 1, DType::byte), rank + 1);
}

}  // namespace tsp::launcher
