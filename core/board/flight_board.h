// The flight board: one page of node memory per rank that says what the rank is doing now, and one page for the node with the
// first failure. Ranks write their own page always (a few stores), every wait loop reads the others', the launcher reads all when
// something ends or stalls, `tsprun status` any time. Across nodes the launchers copy pages to each other, so that every node has
// the board of the whole world, a tenth of a second old.
//
// All fields are atomics with relaxed access: a reader may see a mixture of two moments, which is good enough to print and is
// never used to address memory.
//
// Node page                                         written by
//   0 ┌───────────────┐
//     │ abort         │ 0 none, 1 being written,     whoever finds the first failure: 0→1 by CAS, then the fields, then 2
//     │               │ 2 complete                   (the launcher completes it if its writer died in between, and corrects it
//     │               │                              if it learns of an earlier cause: 2→1, the fields, 2)
//  64 ├───────────────┤
//     │ failure       │ cause, rank, signal, op,     the same
//     │               │ sequence, detail text
//     └───────────────┘
// Rank page                                         written by
//   0 ┌───────────────┐
//     │ process       │ pid; while ranks connect,    the rank
//     │               │ for whom it waits
//     │ life          │ Life, code, stopped          the launcher; `finished` by the rank itself
//     │ clock         │ last sign of life, ticks     the rank
//  64 ├───────────────┤
//     │ activity ×4   │ one line a stream: what the  the rank
//     │               │ operation at its head does
//     ├───────────────┤
//     │ counts        │ operations begun, by kind;   the rank
//     │ faults        │ which were injected here,
//     │               │ the first of them in detail
//     ├───────────────┤
//     │ finished      │ by group and stream: the     the rank
//     │               │ last collective that is over
//     │ links         │ how fast messages come from  the rank
//     │               │ others, the slowest ways
//     ├───────────────┤
//     │ first error   │ cause, whom it names and in  the rank
//     │               │ which operation, text
//     └───────────────┘
#pragma once

#include "core/collectives/op.h"
#include "core/tensor/dtype.h"
#include "transport/cause.h"
#include "transport/message.h"
#include "transport/shm/node_memory.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun {

/// The board's access, and that of all counters that only tell.
inline constexpr auto relaxed = std::memory_order_relaxed;

enum class Life : std::uint32_t {
  unborn,    ///< not yet attached
  alive,     ///< attached
  finished,  ///< the rank closed its context in good order
  exited,    ///< the process is gone; code = exit code
  killed     ///< the process is gone; code = signal
};
std::string_view name(Life life);

/// What the operation at the head of a stream is doing. One line; written by its rank alone.
struct alignas(64) ActivityLine {
  std::atomic<std::uint64_t> since_ns;        ///< when the current wait began to be slow; 0: not waiting
  std::atomic<std::uint64_t> bytes;           ///< of the rank's own part
  std::atomic<std::uint64_t> signature;       ///< see Envelope
  std::atomic<std::uint64_t> group;           ///< hash of the group's members
  std::atomic<std::uint32_t> sequence;        ///< of this kind of operation on this rank, from 1: reports and faults use it
  std::atomic<std::uint32_t> group_sequence;  ///< of the operation in its group: what ranks compare
  std::atomic<std::int32_t> waiting_for;      ///< a rank of the world, -1: none
  std::atomic<std::uint32_t> segment;         ///< of the message waited for, from 1; 0: it isn't cut
  std::atomic<std::uint8_t> op;               ///< Op, valid while busy
  std::atomic<std::uint8_t> dtype;
  std::atomic<std::uint8_t> reduction;
  std::atomic<std::uint8_t> busy;    ///< 1 while an operation is at the head
  std::atomic<std::int32_t> root;    ///< a rank of the world, -1: none; of messages the other end (of a send_recv: the receiver)
  std::atomic<std::int32_t> source;  ///< of a send_recv: from whom it receives, a rank of the world; else -1
  std::atomic<std::uint32_t> withheld;  ///< 1 while a slow or late link holds back messages of waiting_for
};
static_assert(sizeof(ActivityLine) == 64);

/// The last collective of a group on a stream that a rank is done with, its messages to others sent. A line is taken once, for
/// good, and `group` and `stream` are written before `group_sequence`.
struct FinishedLine {
  std::atomic<std::uint64_t> group;           ///< as in ActivityLine
  std::atomic<std::uint32_t> stream;          ///< Stream
  std::atomic<std::uint32_t> group_sequence;  ///< 0: the line is free
};
static_assert(sizeof(FinishedLine) == 16);
/// Groups beyond these aren't noted.
inline constexpr std::size_t kFinishedLines = 32;

/// How messages from one rank came to this one, of those of kTimedBytes and more that weren't there when they were first looked
/// for.
struct LinkLine {
  std::atomic<std::int32_t> from;       ///< a rank of the world + 1; 0: the line is free
  std::atomic<std::uint32_t> messages;  ///< so many
  std::atomic<std::uint64_t> bytes;     ///< of them all
  std::atomic<std::uint64_t> pending_ns;
  std::atomic<std::uint64_t> fastest;  ///< bytes per second of the fastest of them
};
static_assert(sizeof(LinkLine) == 32);
/// Of more links than these, the slowest are noted.
inline constexpr std::size_t kLinkLines = 16;

inline constexpr std::size_t kErrorText = 1024;
inline constexpr std::size_t kMaxFaults = 64;

/// An injected fault that struck: when, and where. Written by its rank alone, before RankPage::fault_records counts it.
struct FaultLine {
  std::atomic<std::uint64_t> when_ns;   ///< CLOCK_MONOTONIC
  std::atomic<std::uint64_t> step;      ///< training step, 0: none
  std::atomic<std::uint32_t> sequence;  ///< of the operation, as in ActivityLine
  std::atomic<std::int32_t> peer;       ///< who sent the message that was struck; -1: the rank itself was
  std::atomic<std::uint32_t> fault;     ///< number among the job's
  std::atomic<std::uint32_t> op;        ///< Op + 1, 0: outside an operation
};
static_assert(sizeof(FaultLine) == 32);
inline constexpr std::size_t kFaultLines = 16;

/// RankPage::code of a rank whose end nobody saw who could know how it was.
inline constexpr std::int32_t kUnknownCode = -1;

struct RankPage {
  alignas(64) std::atomic<std::uint32_t> pid;
  std::atomic<std::uint32_t> life;          ///< Life
  std::atomic<std::int32_t> code;           ///< exit code or signal
  std::atomic<std::int32_t> blocked_on;     ///< Stream + 1 while the rank waits for that stream's head; 0: it doesn't wait
  std::atomic<std::uint64_t> last_sign_ns;  ///< last tick or step, CLOCK_MONOTONIC
  std::atomic<std::uint64_t> ticks;
  std::atomic<std::uint32_t> stopped;       ///< 1 while its process is stopped (SIGSTOP, a debugger)
  std::atomic<std::int32_t> connecting_to;  ///< a rank of the world + 1, for which this one waits while ranks connect; 0: none
  std::atomic<std::uint32_t> over;          ///< 1 once a launcher has seen how its process ended
  ActivityLine activity[kStreams];
  std::atomic<std::uint64_t> counts[kOps];              ///< operations begun, by Op
  std::atomic<std::uint64_t> faults;                    ///< injected faults that struck here: a bit for each, see note_fault()
  std::atomic<std::uint64_t> fault_counts[kMaxFaults];  ///< how often each did
  std::atomic<std::uint64_t> fault_records;             ///< lines of fault_lines in use
  FaultLine fault_lines[kFaultLines];                   ///< the first that struck
  FinishedLine finished[kFinishedLines];
  LinkLine links[kLinkLines];
  alignas(64) std::atomic<std::uint32_t> error_state;  ///< 0 none, 2 complete
  std::atomic<std::uint32_t> error_cause;              ///< Cause
  std::atomic<std::int32_t> error_rank;                ///< the culprit, a rank of the world
  std::atomic<std::uint32_t> error_op;                 ///< the culprit's: Op + 1, 0: none was named
  std::atomic<std::uint32_t> error_sequence;           ///< of error_op, as in ActivityLine
  char error_text[kErrorText];
};
static_assert(sizeof(RankPage) <= shm::kPage);

struct NodePage {
  alignas(64) std::atomic<std::uint32_t> abort;
  alignas(64) std::atomic<std::uint32_t> cause;
  std::atomic<std::int32_t> rank;    ///< culprit, -1 unknown
  std::atomic<std::int32_t> code;    ///< signal or exit code, 0 none
  std::atomic<std::int32_t> stream;  ///< on which the culprit's operation ran, -1: outside an operation
  std::atomic<std::uint32_t> op;
  std::atomic<std::uint32_t> sequence;
  char detail[kErrorText];
};
static_assert(sizeof(NodePage) <= shm::kPage);

/// The first failure of a job, as plain data.
struct Failure {
  Cause cause = Cause::none;
  int rank = -1;
  int code = 0;    ///< signal (killed) or exit code (exited)
  std::string op;  ///< empty outside an operation
  std::uint32_t sequence = 0;
  std::string detail;
};

/// FaultLine as plain data.
struct FaultRecord {
  std::size_t fault = 0;
  std::uint64_t when_ns = 0;
  std::uint64_t step = 0;
  std::string op;  ///< empty outside an operation
  std::uint32_t sequence = 0;
  int peer = -1;
};

/// LinkLine as plain data.
struct LinkRecord {
  int from = -1;
  std::uint32_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t pending_ns = 0;
  std::uint64_t fastest = 0;  ///< bytes per second
};

/// What an exception says of a failure; an error's rank may be -1.
Failure failure_of(const Error& error);

/// One rank's activity, as plain data.
struct Activity {
  Stream stream = Stream::control;
  Op op = Op::barrier;
  std::uint32_t sequence = 0;
  std::uint32_t group_sequence = 0;
  std::uint64_t signature = 0;
  std::uint64_t group = 0;
  std::uint64_t bytes = 0;
  DType dtype = DType::byte;
  Reduction reduction = Reduction::sum;
  int root = -1;
  int source = -1;
  int waiting_for = -1;        ///< rank of the world, -1: busy, not waiting
  std::uint32_t segment = 0;   ///< that it waits for, from 1; 0: what it waits for isn't cut into segments
  std::uint64_t since_ns = 0;  ///< of the wait
  bool withheld = false;       ///< a slow or late link holds back messages of waiting_for

  /// "all_gather #42 (f32, 1024 B) on stream kv, waiting for segment 5 of rank 3 for 1.2 s"
  std::string describe(std::uint64_t now_ns) const;
};

/// A view of the boards of all ranks of the world, as this node sees them: those of ranks on other nodes are copies, kept up by
/// the launcher. Cheap to copy; the node memory must outlive it.
class FlightBoard {
 public:
  explicit FlightBoard(const shm::NodeMemory& memory);

  int ranks() const { return ranks_; }
  RankPage& page(int rank) const;
  NodePage& node() const;

  bool aborted() const { return node().abort.load(std::memory_order_relaxed) != 0; }
  /// Writes the first failure; returns false if there was one before. The first rings every doorbell of the node.
  bool abort(const Failure& failure) const;
  /// Puts what really was the first failure in the place of one that is complete. For the launcher, which alone knows how
  /// processes ended.
  void correct(const Failure& failure) const;
  /// The first failure, once complete. `cause` none: nothing failed.
  Failure failure() const;

  /// This process takes a rank's place: 0, or the process that took it before and keeps it.
  std::uint32_t join(int rank, std::uint32_t pid) const;
  Life life(int rank) const;
  std::uint32_t pid(int rank) const;
  /// Its process is stopped. Who supervises the rank notes it: a stopped process can't.
  bool stopped(int rank) const { return page(rank).stopped.load(relaxed) != 0; }
  /// What the rank is blocked on; else a busy stream's activity (waiting_for -1: it computes). None: it is outside operations.
  std::optional<Activity> activity(int rank) const;
  std::optional<Activity> activity(int rank, Stream stream) const;
  /// Number of the last collective of a group on a stream that the rank is done with; 0: it is done with none, or isn't known.
  std::uint32_t finished(int rank, std::uint64_t group, Stream stream) const;
  /// The rank of the world with which this rank, not attached yet, waits to be connected; -1: none.
  int connecting_to(int rank) const;
  /// Whom the rank waits for, in an operation or while ranks connect; -1: nobody. A stopped rank waits for nobody, whatever it
  /// did when it was stopped.
  int waits_for(int rank) const;
  /// What the rank itself noted as its first error, the culprit that it names (often itself) included; cause none if nothing.
  Failure first_error(int rank) const;
  /// An error that names no rank is the noting rank's own.
  void note_first_error(int rank, const Failure& error) const;
  /// A fault of the job struck this rank, or a message to it.
  void note_fault(int rank, const FaultRecord& record) const;
  /// The first kFaultLines that struck this rank or messages to it, in their order.
  std::vector<FaultRecord> fault_records(int rank) const;
  /// How often a fault struck, over all ranks.
  std::uint64_t fault_count(std::size_t number) const;
  /// Which faults struck any rank: bit i is that of number i.
  std::uint64_t faults() const;

  /// How messages came to this rank, by sender.
  std::vector<LinkRecord> link_records(int rank) const;

  /// Follows waits_for() from a rank: the ranks on the way, that one first.
  struct Chain {
    std::vector<int> ranks;  ///< the last is the root unless it is a cycle
    bool cycle = false;      ///< the chain runs into itself
  };
  Chain wait_chain(int rank) const;
  /// Of a circle of waits the part up to the first rank that has given no sign of life since `since_ns`, as of a machine that
  /// stands still: for whom it waits is no longer known, so it is the root. The circle itself if all have.
  Chain up_to_silent(Chain circle, std::uint64_t since_ns) const;
  /// "rank 0 is in barrier #7 (…), waiting for rank 2 for 1.2 s; rank 2 is stopped, outside any operation"
  std::string describe(const Chain& chain, std::uint64_t now_ns) const;

 private:
  void write_abort(const Failure& failure) const;

  const shm::NodeMemory* memory_;
  int ranks_;
};

}  // namespace tsprun
