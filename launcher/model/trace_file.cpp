// Prints events, arrows, counters, faults and failures as Chrome's trace events.
#include "launcher/model/trace_file.h"

#include "launcher/model/trace_writer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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

/// Prints the failure as an instant of the culprit's process; of all processes if the culprit isn't among `ranks`.
void print_failure(TraceWriter& file, const Failure& failure, bootstrap::RankBlock ranks, std::uint64_t when_ns,
                   std::uint64_t zero_ns) {
  const bool known = failure.rank >= ranks.first && failure.rank < ranks.first + ranks.count;
  file.print(",\n{{\"ph\":\"i\",\"s\":\"{}\",\"pid\":{},\"tid\":0,\"cat\":\"failure\",\"name\":\"{}\",\"ts\":{:.3f},\"args\":{{",
             known ? "p" : "g", known ? failure.rank : ranks.first, name(failure.cause), micro(when_ns, zero_ns));
  file.print("\"detail\":{}", quoted(failure.detail));
  if (!failure.op.empty()) file.print(",\"op\":{},\"sequence\":{}", quoted(failure.op), failure.sequence);
  file.print("}}}}");
}

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
  std::int64_t first = std::numeric_limits<std::int64_t>::max();  // time 0 is the job's first event
  for (const TraceEvent& event : trace.events()) first = std::min(first, static_cast<std::int64_t>(event.begin_ns));
  world.all_reduce(Buffer(&first, 1, DType::i64), Reduction::min);
  const auto zero = static_cast<std::uint64_t>(first);

  // A byte is passed from rank to rank. It becomes 1 once writing has failed on a rank, and then no later rank writes.
  std::byte turn{};
  std::string trouble;
  const int rank = world.rank();
  if (rank > 0) world.recv(Buffer(&turn, 1, DType::byte), rank - 1);
  try {
    if (turn == std::byte{0}) {
      TraceWriter file(target.path, rank == 0);
      print_head(file, rank, rank == 0);
      print_rank(file, trace, engine_of(context), zero, target.flows, [&] { context.tick(); });
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

std::vector<int> write_trace_of_job(const FlightBoard& board, bootstrap::RankBlock ranks, const std::vector<fault::Spec>& faults,
                                    const TraceEnd& end, const RankTraces* events, const std::string& path) {
  TraceWriter file(path, true);
  std::vector<int> missing;
  for (int rank = ranks.first; rank < ranks.first + ranks.count; ++rank) {
    print_head(file, rank, rank == ranks.first);
    if (events == nullptr || !events->print(rank, file)) missing.push_back(rank);
    print_faults(file, board, rank, faults, end.zero_ns);
    if (file.full()) file.flush();
  }
  if (end.failure.cause != Cause::none) print_failure(file, end.failure, ranks, end.when_ns, end.zero_ns);
  file.print("\n]}}\n");
  file.finish();
  return missing;
}

std::string trace_of_node(const std::string& path, int node) {
  if (node == 0) return path;
  const std::size_t name = path.rfind('/') + 1;  // 0 if there is no folder
  const std::size_t dot = std::min(path.find('.', name + 1), path.size());
  return fmt::format("{}.node{}{}", path.substr(0, dot), node, path.substr(dot));
}

void write_played_trace(const theory::Simulated& played, const TraceTarget& target) {
  TraceWriter file(target.path, true);
  const auto ranks = static_cast<int>(played.traces.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const PlayedTrace& trace = played.traces[static_cast<std::size_t>(rank)];
    const auto& groups = played.groups[static_cast<std::size_t>(rank)];
    // Arrows to ranks that weren't played would end nowhere.
    std::vector<int> here;
    const auto here_of = [&](std::uint64_t group) {
      here = groups.at(group);
      std::erase_if(here, [&](int member) { return member >= ranks; });
      return TracedGroup{.members = here};
    };
    print_head(file, rank, rank == 0);
    const std::uint64_t end_ns = print_events(file, trace.events, rank, 0, target.flows, here_of, [] {});
    print_memory(file, trace.memory, rank, 0);
    print_left_out(file, trace.left_out, rank, end_ns, 0);
  }
  print_links(file, played, ranks);
  file.print("\n]}}\n");
  file.finish();
}

}  // namespace tsprun::detail::launcher
