// The flight board: one page of shared memory per rank that says what the rank is doing now, and one page per node for the job's
// first failure. Each rank keeps its own page up to date with a few stores per operation. Wait loops read the pages of other
// ranks, the launcher reads all pages when something ends or stalls, and `tsprun status` at any time. Between nodes, launchers
// copy pages to each other, so every node has the board of the whole world, about a tenth of a second old.
//
// Almost all fields are atomics with relaxed access: a reader may see a mixture of two moments, which is good enough to print and
// is never used to address memory. Where one field says whether others count, it lies before them (page_copy.h), is written with
// release and read with acquire; what a rank looks at last before it sleeps is seq_cst (doorbell.h).
//
// Node page                                         written by
//   0 ┌───────────────┐
//     │ untold        │ 1: other nodes don't know    the courier (courier.h), 0 where there is none; ranks that have waited
//     │               │ of a failure yet             for it in vain
//  64 ├───────────────┤
//     │ first failure │ 0 none, odd being written,   the process that finds the first failure: 0→1 by CAS, the fields, then 2
//     │               │ even complete; cause, rank,  (if it dies in between, the launcher starts over; if the launcher learns
//     │               │ signal, op, sequence, text   of an earlier cause, it replaces the failure: 2→3, the fields, 4)
//     └───────────────┘
// Rank page (with lines of 128 bytes, on aarch64,   written by
// the clock is at 128, the activity at 192)
//   0 ┌───────────────┐
//     │ life          │ Life, code, stopped; whether the launcher; `finished` by the rank itself
//     │               │ its process's end was seen
//     │ process       │ pid; whether it has left;    the rank
//     │               │ the rank that it connects to
//  64 ├───────────────┤
//     │ clock         │ last sign of life, ticks,    the rank
//     │               │ core
// 128 ├───────────────┤
//     │ activity ×8   │ per stream: the operation    the rank
//     │               │ at its head
//     ├───────────────┤
//     │ counts        │ operations posted, by kind   the rank
//     │ faults        │ faults injected here, the    the rank
//     │               │ first of them in detail
//     ├───────────────┤
//     │ finished      │ by group and stream: the     the rank
//     │               │ last collective completed
//     │ links         │ how fast messages arrive, by the rank
//     │               │ sender; the slowest senders
//     ├───────────────┤
//     │ progress      │ step, loss, memory           the rank
//     ├───────────────┤
//     │ first error   │ cause, culprit and its       the rank
//     │               │ operation, text
//     └───────────────┘
#pragma once

#include "core/board/failure_record.h"
#include "transport/atomics.h"
#include "transport/cause.h"
#include "transport/message.h"
#include "transport/shm/node_memory.h"
#include "tsprun/types.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Memory order of the board's fields, and of other counters that are only reported.
inline constexpr auto relaxed = std::memory_order_relaxed;

/// State of a rank in the job.
enum class Life : std::uint32_t {
  unborn,    ///< has not joined yet
  alive,     ///< has joined
  finished,  ///< closed its context in good order; its process may still run
  exited,    ///< its process is gone; code = exit code
  killed     ///< its process is gone; code = signal
};
/// Returns the enumerator's name.
std::string_view name(Life life);

/// The operation at the head of a stream. One cache line; written only by the rank itself.
struct alignas(64) ActivityLine {
  std::atomic<std::uint64_t> since_ns;   ///< when the current wait began to be slow (posix::now_ns()); 0: not waiting
  std::atomic<std::uint64_t> bytes;      ///< size of the rank's own part
  std::atomic<std::uint64_t> signature;  ///< see Envelope
  std::atomic<std::uint64_t> group;      ///< the group's number, see Engine::new_group()
  std::atomic<std::uint32_t> sequence;   ///< number among this rank's operations of this kind, from 1: reports and --fault use it
  std::atomic<std::uint32_t> group_sequence;  ///< number of the operation in its group, which ranks compare
  std::atomic<std::int32_t> waiting_for;      ///< world rank; -1: none
  std::atomic<std::uint32_t> segment;         ///< segment of the message waited for, from 1; 0: it isn't cut into segments
  std::atomic<std::uint8_t> op;               ///< Op, valid while busy
  std::atomic<std::uint8_t> dtype;
  std::atomic<std::uint8_t> reduction;
  std::atomic<std::uint8_t> busy;       ///< 1 while an operation is at the head
  std::atomic<std::int32_t> root;       ///< world rank of the root, or the other end of a message (send_recv: receiver); -1: none
  std::atomic<std::int32_t> source;     ///< world rank from which a send_recv receives; a message's tag, -2: any; else -1
  std::atomic<std::uint32_t> withheld;  ///< 1 while an emulated slow or late link holds back messages of waiting_for
};
static_assert(sizeof(ActivityLine) == 64);

/// The last collective of a group on a stream that the rank has completed, so that its messages to others have been sent. A line
/// is assigned to one group and stream for good; `group` and `stream` are written before `group_sequence`.
struct FinishedLine {
  std::atomic<std::uint32_t> group_sequence;  ///< 0: the line is free
  std::atomic<std::uint32_t> stream;          ///< Stream
  std::atomic<std::uint64_t> group;           ///< as in ActivityLine
};
static_assert(sizeof(FinishedLine) == 16);
/// Number of pairs of group and stream for which a page has a FinishedLine; further pairs aren't recorded.
inline constexpr std::size_t kFinishedLines = 32;

/// Speed of messages from one rank to this one. Counts messages of kTimedBytes or more that hadn't arrived when this rank first
/// polled for them.
struct LinkLine {
  std::atomic<std::int32_t> from;         ///< world rank of the sender + 1; 0: the line is free
  std::atomic<std::uint32_t> messages;    ///< number of such messages
  std::atomic<std::uint64_t> bytes;       ///< sum of their sizes
  std::atomic<std::uint64_t> pending_ns;  ///< sum of their times from first poll to arrival
  std::atomic<std::uint64_t> fastest;     ///< bytes per second that only a few of them exceeded
};
static_assert(sizeof(LinkLine) == 32);
/// Number of senders for which a page has a LinkLine; of more senders, the slowest are kept.
inline constexpr std::size_t kLinkLines = 16;

/// How far the rank's program is, and what it holds. One cache line; written only by the rank itself.
struct alignas(64) ProgressLine {
  std::atomic<std::uint64_t> step;     ///< training step that it computes, from 1 (Context::begin_step()); 0: it has begun none
  std::atomic<std::uint64_t> steps;    ///< in all; 0: not known
  std::atomic<std::uint64_t> loss_of;  ///< step whose loss is the next word; 0: none
  std::atomic<std::uint64_t> loss;     ///< a double's bits
  std::atomic<std::uint64_t> memory;   ///< bytes in use on its heap
  std::atomic<std::uint64_t> memory_peak;  ///< most of them so far
};
static_assert(sizeof(ProgressLine) == 64);

/// Size of error texts on the board in bytes, terminator included.
inline constexpr std::size_t kErrorText = 1024;
/// Largest number of faults of a job.
inline constexpr std::size_t kMaxFaults = 64;

/// An injected fault that struck: when and where. Written only by the rank itself, before RankPage::fault_records counts it.
struct FaultLine {
  std::atomic<std::uint64_t> when_ns;   ///< CLOCK_MONOTONIC
  std::atomic<std::uint64_t> step;      ///< training step, 0: none
  std::atomic<std::uint32_t> sequence;  ///< number of the operation, as in ActivityLine
  std::atomic<std::int32_t> peer;       ///< sender of the message that was struck; -1: the fault struck the rank itself
  std::atomic<std::uint32_t> fault;     ///< index in the job's list of faults
  std::atomic<std::uint32_t> op;        ///< Op + 1, 0: outside an operation
};
static_assert(sizeof(FaultLine) == 32);
/// Number of FaultLines of a page; later strikes are only counted.
inline constexpr std::size_t kFaultLines = 16;

/// A failure as plain data.
struct Failure {
  Cause cause = Cause::none;
  int rank = -1;        ///< world rank of the culprit, -1 unknown
  int code = 0;         ///< signal (killed) or exit code (exited)
  std::string op = {};  ///< empty outside an operation
  std::uint32_t sequence = 0;
  std::string detail = {};
};

/// A failure on the board: cause, world rank of the culprit (-1 unknown), signal or exit code (0 none), Op + 1 of the culprit's
/// operation (0: none was named) and its number as in ActivityLine, and the text.
struct FailureLines {
  alignas(64) BasicRecord<SystemAtomics, 5, kErrorText / sizeof(std::uint64_t)> record;

  /// Writes a failure; returns false if one was written, or is being written.
  bool write(const Failure& failure);
  /// Replaces a failure that is complete.
  void correct(const Failure& failure);
  /// Returns the failure; its cause is none if none is complete.
  Failure read() const;
};

/// RankPage::code of a process that is gone and whose exit code nobody could read (only a parent process can).
inline constexpr std::int32_t kUnknownCode = -1;

/// Page of one rank, see the drawing above.
struct RankPage {
  // Peers read `life` at every send: its cache line is hardly ever written. Each word lies before those that it vouches for.
  alignas(kLongestLine)
      std::atomic<std::uint32_t> over;  ///< 1 once a launcher or PeerWatch has seen its process's end: `life` is final
  std::atomic<std::uint32_t> life;      ///< Life
  std::atomic<std::uint32_t> left;      ///< 1 once the rank has left, in good order or not
  std::atomic<std::int32_t> code;       ///< exit code or signal
  std::atomic<std::uint32_t> pid;
  std::atomic<std::uint32_t> stopped;       ///< 1 while its process is stopped (SIGSTOP, a debugger)
  std::atomic<std::int32_t> connecting_to;  ///< world rank + 1 for which this rank waits while ranks connect; 0: none
  // The rank itself writes this line with every operation.
  alignas(kLongestLine) std::atomic<std::uint64_t> ticks;  ///< signs of life so far; deadlines restart when it changes
  std::atomic<std::uint64_t> last_sign_ns;                 ///< last tick or look at the board while waiting, CLOCK_MONOTONIC
  std::atomic<std::int32_t> blocked_on;     ///< Stream + 1 while the rank waits for that stream's head; 0: it doesn't wait
  std::atomic<std::int32_t> core;           ///< 1 + number of the core on which it last ran, where ranks share cores; 0: unknown
  std::atomic<std::uint64_t> yielded_ns;    ///< in long yields, where ranks share cores, after which it still had nothing to do
  ActivityLine activity[kMostQueues];       ///< by stream; those behind kQueues are never busy
  std::atomic<std::uint64_t> counts[kOps];  ///< operations posted, by Op
  std::atomic<std::uint64_t> fault_counts[kMaxFaults];  ///< how often each injected fault struck here, see note_fault()
  std::atomic<std::uint64_t> fault_records;             ///< number of fault_lines in use
  FaultLine fault_lines[kFaultLines];                   ///< the first strikes, in order of time
  FinishedLine finished[kFinishedLines];
  LinkLine links[kLinkLines];
  ProgressLine progress;
  FailureLines error;  ///< the rank's first

  /// Counts a sign of life. Only the rank itself calls it; of two threads that count at once, one may not be heard.
  void count_sign() { ticks.store(ticks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};
static_assert(sizeof(RankPage) <= shm::kPage);
static_assert(offsetof(RankPage, ticks) == kLongestLine && offsetof(RankPage, activity) == kLongestLine + 64);

/// Page of a node with the first failure of the job, see the drawing above.
struct NodePage {
  alignas(64) std::atomic<std::uint32_t> untold;  ///< 1: a courier runs, and has told other nodes of no failure yet
  FailureLines first;
};
static_assert(sizeof(NodePage) <= shm::kPage);

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
  std::uint64_t fastest = 0;  ///< bytes per second that only a few messages exceeded
};

/// ProgressLine as plain data.
struct ProgressRecord {
  std::uint64_t step = 0;
  std::uint64_t steps = 0;     ///< 0: not known
  std::optional<double> loss;  ///< of the last step that has one
  std::uint64_t memory = 0;
  std::uint64_t memory_peak = 0;
};

/// Returns the failure that an exception describes; its rank may be -1.
Failure failure_of(const Error& error);

/// ActivityLine as plain data.
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
  int waiting_for = -1;        ///< world rank; -1: busy, not waiting
  std::uint32_t segment = 0;   ///< segment of the message waited for, from 1; 0: it isn't cut into segments
  std::uint64_t since_ns = 0;  ///< when the wait began to be slow; 0: not waiting
  bool withheld = false;       ///< an emulated slow or late link holds back messages of waiting_for

  /// Returns a description for people: "all_gather #42 (f32, 1024 B) on stream kv, waiting for segment 5 of rank 3 for 1.2 s".
  std::string describe(std::uint64_t now_ns) const;
};

/// A view of the pages of all ranks of the world in this node's memory; those of ranks on other nodes are copies that the
/// launcher updates. Cheap to copy; the node memory must outlive it. Any process and thread may read at any time.
class FlightBoard {
 public:
  explicit FlightBoard(const shm::NodeMemory& memory);

  int ranks() const { return ranks_; }
  RankPage& page(int rank) const;
  NodePage& node() const;

  /// Returns true if the job has failed.
  bool aborted() const { return node().first.record.begun(); }
  /// Writes the job's first failure and rings all doorbells of the node, so that sleeping ranks notice. Does nothing and returns
  /// false if there was a failure before.
  bool abort(const Failure& failure) const;
  /// Replaces a completely written failure by the true first one. For the launcher, which alone knows how processes ended.
  void correct(const Failure& failure) const;
  /// Returns the job's first failure; its cause is Cause::none if there is none or it isn't completely written yet.
  Failure failure() const { return node().first.read(); }
  /// Returns the first failure of a job that has failed. Waits up to 0.1 s until it is completely written; says so if it isn't
  /// then, because its writer died. A launcher writes it in that case.
  Failure first_failure() const;

  /// Registers process `pid` as the rank's. Returns 0, or the id of the process that registered earlier and stays registered.
  std::uint32_t join(int rank, std::uint32_t pid) const;
  Life life(int rank) const;
  /// Returns true if the rank's process is known to have ended, so that life() doesn't change any more.
  bool is_over(int rank) const { return page(rank).over.load(std::memory_order_acquire) != 0; }
  /// Returns true if the rank sends nothing more: it has finished, or left in another way, or its process is gone.
  bool has_parted(int rank) const { return life(rank) > Life::alive || page(rank).left.load() != 0; }
  /// Wakes the ranks of this node.
  void ring_all() const;
  std::uint32_t pid(int rank) const;
  /// Returns true if the rank's process is stopped. The launcher or PeerWatch notes this, as a stopped process can't.
  bool stopped(int rank) const { return page(rank).stopped.load(relaxed) != 0; }
  /// Returns the operation that the rank waits in; if it doesn't wait, that of any busy stream, with waiting_for -1. None: the
  /// rank is outside operations.
  std::optional<Activity> activity(int rank) const;
  /// Returns the operation at the head of one stream, if any.
  std::optional<Activity> activity(int rank, Stream stream) const;
  /// Returns the number of the last collective of a group on a stream that the rank has completed; 0: none, or not recorded.
  std::uint32_t finished(int rank, std::uint64_t group, Stream stream) const;
  /// Returns the world rank to which this rank, which hasn't joined yet, waits to be connected; -1: none.
  int connecting_to(int rank) const;
  /// Returns the rank for which a rank waits, in an operation or while ranks connect; -1: none. A stopped rank waits for none,
  /// whatever it did when it was stopped.
  int waits_for(int rank) const;
  /// Returns the first error that the rank itself noted. Its `rank` is the culprit, often the rank itself; cause none: no error.
  Failure first_error(int rank) const;
  /// Notes the rank's first error; later ones are ignored. An error without a culprit is the rank's own.
  void note_first_error(int rank, const Failure& error) const;
  /// Notes that a fault of the job struck this rank or a message to it. To be called by the rank itself.
  void note_fault(int rank, const FaultRecord& record) const;
  /// Returns the first kFaultLines strikes of faults on this rank or messages to it, in order of time.
  std::vector<FaultRecord> fault_records(int rank) const;
  /// Returns how often fault `number` struck, over all ranks.
  std::uint64_t fault_count(std::size_t number) const;

  /// Notes the loss of a training step, and how many steps there are in all. To be called by the rank itself.
  void note_loss(int rank, std::uint64_t step, std::uint64_t steps, double loss) const;
  /// Returns how far the rank's program is.
  ProgressRecord progress(int rank) const;

  /// Returns the speeds of messages to this rank, ordered by sender.
  std::vector<LinkRecord> link_records(int rank) const;

  /// A chain of waits: each rank waits for the next.
  struct Chain {
    std::vector<int> ranks;  ///< the last is the root unless it is a cycle
    bool cycle = false;      ///< the last rank waits for one of the ranks in the chain
  };
  /// Follows waits_for() from a rank, which is the chain's first.
  Chain wait_chain(int rank) const;
  /// Cuts a cycle of waits after its first rank that has given no sign of life since `since_ns` (its machine may hang): what it
  /// waits for now isn't known, so it is the root. Returns other chains, and cycles in which all ranks gave signs, unchanged.
  Chain up_to_silent(Chain circle, std::uint64_t since_ns) const;
  /// Returns a description for people: "rank 0 is in barrier #7 (…), waiting for rank 2 for 1.2 s; rank 2 is stopped, outside any
  /// operation".
  std::string describe(const Chain& chain, std::uint64_t now_ns) const;

 private:
  const shm::NodeMemory* memory_;
  int ranks_;
};

}  // namespace tsprun::detail
