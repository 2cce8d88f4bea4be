// The engine of one rank: streams of operations, progress, and the one rule of waiting.
//
// An Operation is a resumable state machine. Each stream is a queue; only the operation at its head is stepped, so operations of
// a stream run in the order they were issued, while those of different streams interleave. There is no thread: progress happens
// in wait(), test(), tick() and run(), which are called by one thread at a time.
//
// The rule of waiting: a wait ends with success or with an Error that names a cause. A wait that finds nothing to do spins while
// there are cores for all ranks, yields some fifty times where ranks outnumber cores, then sleeps on the doorbell. Every look at
// the clock checks the abort word, the life of the rank waited for, and the deadline; the deadline runs from the last sign of
// life of the rank at the root of the wait chain.
//
// After a failure the engine is broken: every later call throws the same first cause.
#pragma once

#include "core/board/flight_board.h"
#include "core/streams/link_times.h"
#include "transport/doorbell.h"
#include "transport/transport.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun {

class Engine;
class PeerWatch;
class RankFaults;
struct Patience;

/// With a core for every rank: so many looks without a pause instruction (it costs 60 ns on some cores, half of what a small
/// message needs).
inline constexpr std::uint32_t kHotLooks = 200;

/// What an operation is, for the board, for envelopes and for messages about mismatches.
struct OperationInfo {
  Op op = Op::barrier;
  DType dtype = DType::byte;
  Reduction reduction = Reduction::sum;
  std::int32_t root = -1;            ///< rank of the world, or the other end of send, recv and send_recv; -1: none
  std::int32_t source = -1;          ///< of a send_recv: from whom it receives, a rank of the world; else -1
  std::uint64_t bytes = 0;           ///< of this rank's own part
  std::uint64_t group = 0;           ///< hash of the group
  std::uint32_t group_sequence = 0;  ///< number of the operation in its group, from 1
  std::uint64_t signature = 0;       ///< hash over all that the ranks must have in common
  Purpose purpose = Purpose::other;
  bool relayed = false;  ///< what a rank has for another may come by way of a third, or summed with others'
};

/// Is told of every operation that completed: when it came to the head of its stream, and when it was done. Called on the
/// engine's thread; must not throw or post.
class OperationObserver {
 public:
  OperationObserver() = default;
  OperationObserver(const OperationObserver&) = delete;
  OperationObserver& operator=(const OperationObserver&) = delete;
  virtual ~OperationObserver() = default;
  virtual void completed(Stream stream, const OperationInfo& info, std::uint64_t begin_ns, std::uint64_t end_ns) = 0;
};

/// How long a rank whose way to a peer is cut, or whose peer is done too early, waits for a launcher to say what became of that
/// peer: well before others, who wait for this rank meanwhile, call it a deadlock.
constexpr std::uint64_t wait_for_word_ns(std::uint64_t timeout_ns) {
  return std::min<std::uint64_t>(timeout_ns / 4, 1'500'000'000);
}

/// A resumable state machine. Subclasses hold all state; step() never waits.
class Operation {
 public:
  explicit Operation(const OperationInfo& info) : info_(info) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  /// Moves on without waiting, at most about a MiB of copying or reducing a call (then engine.moved() and false), so that other
  /// streams get their turn. True: complete. Never calls tick(). Throws Error(mismatch | corrupt | disconnected | out_of_memory).
  virtual bool step(Engine& engine) = 0;
  /// The rank of the world that the last step() found missing.
  virtual int waiting_for() const = 0;
  /// Which segment of that rank's message was missing, from 1; 0: the message isn't cut into segments.
  virtual std::uint32_t missing_segment() const { return 0; }
  const OperationInfo& info() const { return info_; }
  /// It has memory of the rank's heap: see Work.
  void set_holds_memory() { holds_memory_ = true; }

 protected:
  OperationInfo info_;

 private:
  friend class Engine;
  Operation* next_ = nullptr;
  bool owned_ = false;
  bool begun_ = false;
  std::uint64_t number_ = 0;  // on its stream, once it is complete and kept
  bool holds_memory_ = false;
  std::uint32_t sequence_ = 0;  // of this kind on this rank
};

/// Names a posted operation. Copy freely; dropping it is harmless: the operation goes on. Memory that the operation took from the
/// rank's heap (landings of messages, say) is given back when it, or a later one of its stream, is waited for or found complete
/// by test(): not when it happens to be complete, so that what a rank holds at once follows from its program alone.
class Work {
 public:
  Work() = default;
  /// True once complete. Makes progress. Throws what the operation threw.
  bool test();
  /// Returns when complete. Throws what the operation threw, or why the wait failed.
  void wait();

 private:
  friend class Engine;
  Work(Engine* engine, Stream stream, std::uint64_t number) : engine_(engine), stream_(stream), number_(number) {}
  Engine* engine_ = nullptr;
  Stream stream_ = Stream::control;
  std::uint64_t number_ = 0;
};

/// A rank as a phantom rank sees it: how it would be reached, as far as memory depends on it.
struct PhantomPeer {
  int node = 0;
  bool views = true;                   ///< its memory can be read in place
  std::size_t plain_limit = 8 * 1024;  ///< payloads up to here may be sent from any memory: those of shm, unless it's said
};

/// How to reach a rank of the world.
struct Route {
  Transport* transport = nullptr;  ///< null: no way
  int peer = -1;                   ///< as the transport numbers it
  int node = 0;                    ///< where it sits
  PhantomPeer phantom{};           ///< of a phantom's peer, to which no transport leads
};

struct EngineOptions {
  std::uint64_t timeout_ns = 30'000'000'000;
  bool oversubscribed = false;   ///< ranks outnumber cores: yield instead of spinning
  PeerWatch* watch = nullptr;    ///< for ranks that no launcher supervises; borrowed
  bool supervised = false;       ///< a launcher says how ranks' processes ended
  bool blocking = false;         ///< post() returns when the operation is complete
  RankFaults* faults = nullptr;  ///< told of every operation as it is posted and begins; null: nothing is injected; borrowed
  bool phantom = false;          ///< there are no peers, and operations aren't begun: see Context::phantom()
};

class Engine {
 public:
  /// `routes[r]` leads to world rank r. Board, transports and doorbell must outlive the engine.
  Engine(FlightBoard board, int world_rank, std::vector<Route> routes, Doorbell& doorbell, EngineOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  int world_rank() const { return world_rank_; }
  int world_size() const { return static_cast<int>(routes_.size()); }
  const Route& route(int world_rank) const { return routes_[static_cast<std::size_t>(world_rank)]; }
  const FlightBoard& board() const { return board_; }
  const EngineOptions& options() const { return options_; }

  /// Appends an operation to a stream and steps it if it is at the head.
  Work post(Stream stream, std::unique_ptr<Operation> operation);
  /// The blocking form: appends, waits, returns when complete. The operation stays the caller's. A phantom's is complete at once.
  void run(Stream stream, Operation& operation);
  /// True if nothing is under way on any stream and the job is in order: then something short may be done without an operation.
  bool quiet() const { return busy_ == 0 && !broken_ && !board_.aborted() && options_.faults == nullptr && !options_.phantom; }
  /// Counts what was done so: on the board it is an operation like any other, and it has been waited for.
  void ran_at_once(Op op, Stream stream) {
    if (queue(stream).kept != nullptr) settle(stream, queue(stream).completed);
    std::atomic<std::uint64_t>& count = page_->counts[static_cast<std::size_t>(op)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    sign_of_life();
  }
  /// Looks that may be taken before a wait must become an operation, which shows on the board: some microseconds, and only one
  /// where another rank may need the core.
  std::uint32_t looks_at_once() const { return options_.oversubscribed ? 1 : kHotLooks; }
  void progress_transports() {
    for (Transport* transport : transports_) transport->progress();
  }
  /// Steps the heads of all streams once; true if any operation completed.
  bool progress();
  /// A sign of life from a long computation; makes progress. Cheap enough for every millisecond of work.
  void tick();
  /// For a step() that isn't complete but did move something: a sign of life, and the wait's patience starts anew.
  void moved() {
    moved_ = true;
    sign_of_life();
  }
  /// Who finds a message that it had to wait for tells them.
  LinkTimes& link_times() { return link_times_; }
  /// Time that post() waited, with EngineOptions::blocking.
  std::uint64_t blocked_ns() const { return blocked_ns_; }
  /// No operation is pending on any stream.
  bool idle() const;
  /// Whom to tell of operations from now on; null: nobody, which costs nothing. Borrowed. Precondition: idle().
  void observe(OperationObserver* observer) { observer_ = observer; }

  /// An error whose culprit is another rank, with the operation that the culprit is in, if any.
  Error blamed(Cause cause, int culprit, const std::string& detail) const;
  /// For an outcome `disconnected`: the peer's process may be dead, which its launcher knows and tells in a moment. Waits for
  /// that word, then throws Error(killed | exited), the job's first cause, or Error(disconnected) with `detail`.
  [[noreturn]] void lost(int world_peer, Op op, const std::string& detail);
  /// For a test_receive() or test_send() that was neither pending nor done: describes both sides, marks the failure, throws
  /// Error(mismatch | corrupt | disconnected).
  [[noreturn]] void fail_receive(Outcome outcome, int world_peer, LaneId lane, Transport& transport, const OperationInfo& mine);
  /// A number for a new communicator that is the same on all members and differs from that of any other communicator, even on the
  /// same members: all members create their communicators on these members in the same order.
  std::uint64_t new_group(std::span<const int> members);
  /// World ranks of a group that new_group() numbered, in group order.
  std::span<const int> members_of(std::uint64_t group) const;
  /// Marks the job as failed with this cause (the first wins), and throws what is then the first cause.
  [[noreturn]] void fail(Cause cause, int culprit, const std::string& detail);

 private:
  friend class Work;
  struct Queue {
    Operation* head = nullptr;
    Operation* tail = nullptr;
    Operation* kept = nullptr;  // complete, but holding memory until they are waited for; in order
    Operation* last_kept = nullptr;
    std::uint64_t posted = 0;
    std::uint64_t completed = 0;
  };

  std::uint64_t append(Stream stream, Operation& operation);
  void begin(Stream stream, Operation& operation);
  bool step_head(Stream stream);
  void dispose(Queue& queue, Operation* operation);
  void settle(Stream stream, std::uint64_t number);
  bool test(Stream stream, std::uint64_t number);
  void wait_for(Stream stream, std::uint64_t number);
  bool look(Stream stream);
  void learn(const Patience& patience);
  Queue& queue(Stream stream) { return queues_[static_cast<std::size_t>(stream)]; }
  const Queue& queue(Stream stream) const { return queues_[static_cast<std::size_t>(stream)]; }
  ActivityLine& line(Stream stream) const { return page_->activity[static_cast<std::size_t>(stream)]; }
  void sign_of_life() { page_->ticks.store(++ticks_, std::memory_order_relaxed); }
  void note_finished(Stream stream, const OperationInfo& info);
  void abandon();
  [[noreturn]] void break_down(const Error& error);
  [[noreturn]] void throw_first_cause();

  // waiting.cpp
  void pause(Patience& patience);
  void sleep(Patience& patience);
  void look_around(Patience& patience);
  void check_peer(Patience& patience, std::uint64_t now);
  [[noreturn]] void throw_gone(int peer, Op op, std::uint64_t sequence);
  void check_arguments(Stream stream);
  void check_deadline(Patience& patience, std::uint64_t now);
  std::string why_it_never_came(FlightBoard::Chain& chain) const;
  void note_waits(Stream blocked_on, std::uint64_t now);

  FlightBoard board_;
  int world_rank_;
  std::vector<Route> routes_;
  std::vector<Transport*> transports_;
  Doorbell* doorbell_;
  std::optional<Bed> bed_;
  EngineOptions options_;
  Queue queues_[kStreams];
  RankPage* page_;  // this rank's
  LinkTimes link_times_;
  FinishedLine* finished_[kStreams] = {};  // of the group whose collective was the last to end, by stream
  std::uint64_t ticks_ = 0;
  std::map<std::uint64_t, std::uint64_t> groups_;         // communicators made so far, by hash of their members
  std::map<std::uint64_t, std::vector<int>> members_of_;  // by group
  OperationObserver* observer_ = nullptr;
  std::uint64_t begun_ns_[kStreams] = {};  // of the heads, while somebody observes
  bool broken_ = false;
  bool moved_ = false;
  std::uint64_t blocked_ns_ = 0;
  std::uint32_t busy_ = 0;         // streams with an operation
  std::uint32_t spin_looks_ = 0;   // where ranks outnumber cores: fruitless looks before the first yield
  std::uint32_t spin_misses_ = 0;  // waits since those last sufficed
};

}  // namespace tsprun
