// Graph of what a played rank did, in tasks for other simulators: kernels, and the messages that its operations really sent and
// received, each with the tasks that must be over before it begins.
//
// A kernel follows the kernel before it and what the rank waited for since. An operation follows the kernel before it was posted
// and the operation before it on its stream; its messages follow those of its messages that it had seen complete by then. Where
// several tasks come together, a task that takes no time joins them.
#pragma once

#include "core/streams/engine.h"
#include "transport/sim/message_log.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// A task of one rank.
struct PlayedTask {
  enum class Kind : std::uint8_t { calc, send, recv };
  static constexpr std::uint8_t kCompute = 0;
  Kind kind = Kind::calc;
  std::uint8_t row = kCompute;  ///< what it occupies: the compute stream, or 1 + Stream
  int peer = -1;                ///< world rank of a message's other end
  std::uint32_t tag = 0;     ///< of a message: the same on both ends, and no other between the two ranks in this direction has it
  std::uint64_t amount = 0;  ///< bytes of a message; else nanoseconds
  std::size_t needs = 0;     ///< where in RankTasks::all_needs those begin that it needs; they end where the next task's begin
};

/// The tasks of one played rank, in the order in which they were begun.
struct RankTasks {
  std::vector<PlayedTask> tasks;
  std::vector<std::uint32_t> all_needs;  ///< numbers of tasks

  /// Returns the numbers of the tasks that must be over before a task begins; they are smaller than its own.
  std::span<const std::uint32_t> needs(std::size_t task) const {
    const std::size_t end = task + 1 == tasks.size() ? all_needs.size() : tasks[task + 1].needs;
    return std::span(all_needs).subspan(tasks[task].needs, end - tasks[task].needs);
  }
};

/// Writes the tasks of one played rank.
class TaskGraph final : public sim::MessageLog {
 public:
  /// Writes those of the rank that has this engine, which is borrowed.
  explicit TaskGraph(const Engine& engine) : engine_(engine) {}

  // Told by the player, in the program's order.
  void kernel(double seconds);
  /// An operation was posted.
  void post(std::uint8_t stream) { lines_[stream].posted_after.push_back(joined(compute_, PlayedTask::kCompute)); }
  /// The rank has waited for operation `number`, from 1, of a stream.
  void waited(std::uint8_t stream, std::uint64_t number);
  /// The program begins again, and with it the numbers of operations.
  void begin_again();

  // Told by the transport.
  void sent(LaneId to, Ticket ticket, std::size_t bytes) override { message(PlayedTask::Kind::send, to, ticket, bytes); }
  void asked(LaneId from, Ticket ticket, std::size_t bytes) override { message(PlayedTask::Kind::recv, from, ticket, bytes); }
  void send_done(LaneId to, Ticket ticket) override { done(PlayedTask::Kind::send, to, ticket); }
  void receive_done(LaneId from, Ticket ticket) override { done(PlayedTask::Kind::recv, from, ticket); }

  /// Returns what was written; the graph is empty after that.
  RankTasks take() { return std::move(written_); }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  /// A stream: its operations one after another.
  struct Line {
    std::vector<std::uint32_t> posted_after;  // of each operation that was posted: a task of the compute stream, or kNone
    std::vector<std::uint32_t> ends;          // of each operation that is over: a task, or kNone
    std::vector<std::uint32_t> seen;          // of the operation at the head: what its next message needs
    std::vector<std::uint32_t> messages;      // of that operation
    std::uint64_t begun = 0;                  // operations that had been at the head
    std::uint64_t before = 0;                 // operations that were posted before the program began again
  };
  using Key = std::tuple<PlayedTask::Kind, LaneId, Ticket>;

  std::uint32_t add(const PlayedTask& task, std::span<const std::uint32_t> needs);
  std::uint32_t joined(std::vector<std::uint32_t>& tasks, std::uint8_t row);
  Line& head(Stream stream);
  void end_operation(Line& line, std::uint8_t row);
  void message(PlayedTask::Kind kind, LaneId lane, Ticket ticket, std::size_t bytes);
  void done(PlayedTask::Kind kind, LaneId lane, Ticket ticket);

  const Engine& engine_;
  RankTasks written_;
  std::vector<bool> is_needed_;           // by another task
  std::vector<std::uint32_t> compute_{};  // what the next kernel needs
  Line lines_[kQueues];
  std::map<Key, std::uint32_t> under_way_;  // messages that their operation hasn't seen complete
};

}  // namespace tsprun::detail
