// The engine of one rank: streams of operations, progress, and the one rule of waiting.
//
// An Operation is stepped until it is complete. Each stream is a queue; only the operation at its head is stepped, so operations
// of a stream run in the order in which they were posted, while those of different streams interleave. Messages with a tag have a
// queue of their own (kTagged), in which all operations are stepped and complete in any order; so have the operations of
// communicators with a channel of their own (channel.h), which keep their order within each channel. There is no progress
// thread here: progress happens in wait(), test(), tick() and run(), which are called by one thread at a time (tsprun/progress.h
// has a thread that takes turns with others in drive()).
//
// The rule of waiting: every wait ends with success or with an Error that names a cause. While nothing can be done, a wait spins
// if every rank has a core, and then sleeps on the doorbell. If ranks outnumber cores, it yields some fifty times before it
// sleeps, and before each yield polls some times more if all that is missing comes from this node's other cores. At every look at
// the clock it checks whether the job has failed, whether the rank it waits for is alive, and the deadline. The deadline counts
// from the last sign of life of the rank at the root of the wait chain (this rank waits for one that waits for another …).
//
// After a failure the engine is broken: every later call throws the first failure of the job.
#pragma once

#include "core/board/flight_board.h"
#include "core/streams/frame_pool.h"
#include "core/streams/link_times.h"
#include "transport/chores.h"
#include "transport/clock.h"
#include "transport/doorbell.h"
#include "transport/transport.h"
#include "tsprun/work.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::fault {
class DelayTransport;
}

namespace tsprun::detail {

class Mail;
class PeerWatch;
class RankFaults;
class Recorder;
struct WaitState;

/// Number of polls at the beginning of a wait without a pause instruction, if every rank has a core. (The instruction costs 60 ns
/// on some cores, half of what a small message needs.)
inline constexpr std::uint32_t kHotLooks = 200;

/// Description of an operation: for the flight board, envelopes, traces and error messages.
struct OperationInfo {
  Op op = Op::barrier;
  DType dtype = DType::byte;
  Reduction reduction = Reduction::sum;
  std::int32_t root = -1;            ///< world rank of the root, or of the other end of send, recv and send_recv; -1: none
  std::int32_t source = -1;          ///< world rank from which a send_recv receives; else -1
  std::uint64_t bytes = 0;           ///< size of this rank's own part
  std::uint64_t group = 0;           ///< the group's number, see Engine::new_group()
  std::uint32_t group_sequence = 0;  ///< number in group and stream, from 1; messages are numbered per sender and receiver
  std::uint64_t signature = 0;       ///< hash over all arguments that the ranks must have in common
  Purpose purpose = Purpose::other;
  bool relayed = false;   ///< a rank's data may reach another one through a third, or summed with others' data
  std::int32_t tag = -1;  ///< of a message with a tag, kAnyTag included; else kNoTag

  friend bool operator==(const OperationInfo&, const OperationInfo&) = default;
};

/// Interface for tracing: observes operations that complete, and waits: those of blocking calls, and those for posted operations.
/// Times are by the engine's clock. All are called on the engine's thread; they must not throw or post.
class OperationObserver {
 public:
  OperationObserver() = default;
  OperationObserver(const OperationObserver&) = delete;
  OperationObserver& operator=(const OperationObserver&) = delete;
  virtual ~OperationObserver() = default;
  /// Called for every operation that completes, with the times at which it came to the head of its stream and at which it
  /// completed.
  virtual void completed(Stream stream, const OperationInfo& info, std::uint64_t begin_ns, std::uint64_t end_ns) = 0;
  /// Called when a wait begins whose operation isn't complete yet.
  virtual void wait_begins() = 0;
  /// Called when that wait has ended well.
  virtual void wait_ended(std::uint64_t begin_ns, std::uint64_t end_ns) = 0;
  /// Called at every poll of a wait that found nothing to do: operation `info` lacks the part of world rank `rank`.
  virtual void missing(int rank, const OperationInfo& info) = 0;
};

/// Order of the operations of a channel in the queue kTagged: each begins when the one before it is complete.
struct Turns {
  std::uint64_t posted = 0;
  std::uint64_t over = 0;
};

/// Returns how long a rank whose connection to a peer broke, or whose peer left too early, waits for a launcher to report how
/// that peer's process ended: short enough that other ranks, which wait for this one meanwhile, don't declare a deadlock.
constexpr std::uint64_t wait_for_word_ns(std::uint64_t timeout_ns) {
  return std::min<std::uint64_t>(timeout_ns / 4, 1'500'000'000);
}

/// An operation that can be interrupted and resumed. It holds all its state; step() never waits.
class Operation {
 public:
  explicit Operation(const OperationInfo& info) : info_(info) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  /// Goes as far as it can without waiting; returns true when the operation is complete. Copies or reduces at most about 1 MiB
  /// per call, so that other streams get their turn; if it did something but isn't complete, it calls engine.moved() and returns
  /// false. If it did nothing, it has tested in this step a message of its own stream without which it can't go on: virtual time
  /// wakes a rank for such messages alone. Must not call tick(). Throws Error(mismatch | corrupt | disconnected | out_of_memory).
  virtual bool step(Engine& engine) = 0;
  /// Returns the world rank whose part the last step() found missing.
  virtual int waiting_for() const = 0;
  /// Returns the payload bytes that the operation brings to this rank from its beginning to its end.
  virtual std::uint64_t received() const { return 0; }
  /// Returns true if the last step() found something missing of a rank that shares this one's core (Engine::shares_core()), so
  /// that a wait must give up the core.
  virtual bool needs_core() const { return false; }
  /// Returns which segment of that rank's message was missing, from 1; 0: the message isn't cut into segments.
  virtual std::uint32_t missing_segment() const { return 0; }
  const OperationInfo& info() const { return info_; }
  /// Notes that the operation holds memory of the rank's heap, so that it is kept until it is waited for: see Work.
  void set_holds_memory() { holds_memory_ = true; }
  /// Puts the operation behind those of these turns that were posted before. They outlive it. Before it is posted, on kTagged.
  void set_turns(Turns& turns) { turns_ = &turns; }

 protected:
  OperationInfo info_;

 private:
  friend class Engine;
  Operation* next_ = nullptr;
  bool owned_ = false;
  std::uint64_t number_ = 0;  // position on its stream, from 1
  bool holds_memory_ = false;
  Turns* turns_ = nullptr;  // null: it waits for no other's turn
  std::uint64_t turn_ = 0;
  std::uint32_t sequence_ = 0;  // number among this rank's operations of this kind, from 1
  std::uint64_t begun_ns_ = 0;  // when it began, if there is an observer
};

/// Another rank as a phantom sees it: the properties of the route to it on which memory use depends.
struct PhantomPeer {
  int node = 0;                        ///< number of the node it is on
  bool views = true;                   ///< its memory can be read in place
  std::size_t plain_limit = 8 * 1024;  ///< largest payload, in bytes, that may be sent from any memory; default: that of shm
};

/// Way from this rank to a rank of the world.
struct Route {
  Transport* transport = nullptr;                 ///< null: unreachable; borrowed
  int peer = -1;                                  ///< its number in that transport
  int node = 0;                                   ///< number of the node it is on
  std::string_view kind{};                        ///< kind of that transport, as reports name it: "shm"
  const fault::DelayTransport* delays = nullptr;  ///< around that transport, if messages are delayed; null: none; borrowed
  PhantomPeer phantom{};                          ///< on a phantom, which has no transports: properties of the route
};

/// Options of Engine.
struct EngineOptions {
  std::uint64_t timeout_ns = 30'000'000'000;  ///< deadline of waits, counted from the last sign of life
  bool oversubscribed = false;                ///< ranks outnumber cores: waits yield instead of spinning
  std::size_t cores = 1;                      ///< of this rank alone, at least 1
  PeerWatch* watch = nullptr;                 ///< detects dead peers where no launcher does; null: none; borrowed
  bool supervised = false;                    ///< a launcher reports how ranks' processes ended
  bool blocking = false;                      ///< post() waits until the operation is complete
  RankFaults* faults = nullptr;  ///< told of every operation when it is posted, begins and ends; null: none; borrowed
  Chores* counted = nullptr;     ///< if set, payloads are counted here, never touched: the rank is played (core/virtual/)
  const Clock* clock = nullptr;  ///< times waits, operations and links; null: the real one; borrowed
  bool phantom = false;          ///< there are no peers, and operations aren't begun: see make_phantom()
};

/// The engine of one rank; used by one thread at a time, the rank's. Its functions throw the first failure of the job once the
/// job has failed.
class Engine {
 public:
  /// Makes the engine of world rank `world_rank`; `routes[r]` leads to world rank r. The node memory behind the board, transports
  /// and doorbell must outlive the engine.
  Engine(FlightBoard board, int world_rank, std::vector<Route> routes, Doorbell& doorbell, EngineOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  int world_rank() const { return world_rank_; }
  int world_size() const { return static_cast<int>(routes_.size()); }
  const Route& route(int world_rank) const { return routes_[static_cast<std::size_t>(world_rank)]; }
  const FlightBoard& board() const { return board_; }
  /// Returns true if a rank of the world has left the job or ended, so that it takes no message any more.
  bool has_left(int world_rank) const { return board_.life(world_rank) > Life::alive; }
  const EngineOptions& options() const { return options_; }
  const Clock& clock() const { return *options_.clock; }

  /// Appends an operation to a stream and steps the operation at the stream's head once. A phantom's is complete at once.
  Work post(Stream stream, std::unique_ptr<Operation> operation);
  /// Appends an operation, which the caller owns, to a stream and waits until it is complete. A phantom's is complete at once.
  void run(Stream stream, Operation& operation);
  /// Refuses all operations from now on: the rank has left the job.
  void leave() { left_ = true; }
  /// Returns true if no operation is pending, the job hasn't failed, the rank hasn't left it, and nothing must observe operations
  /// (a trace, fault injection, phantom). Then a short message may be exchanged without an Operation, to save time.
  bool quiet() const {
    return busy_ == 0 && !broken_ && !left_ && observer_ == nullptr && recorder_ == nullptr && !board_.aborted() &&
           options_.faults == nullptr && !options_.phantom;
  }
  /// Counts an operation that was done without an Operation object, see quiet(): the board counts it like any other, and memory
  /// held by earlier operations of the stream is given back, as after a wait.
  void ran_at_once(Op op, Stream stream) {
    if (queue(stream).kept != nullptr) settle(stream, queue(stream).completed);
    std::atomic<std::uint64_t>& count = page_->counts[static_cast<std::size_t>(op)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    sign_of_life();
  }
  /// Returns how often a message may be polled for without an Operation. After that an Operation must wait for it, which the
  /// board shows. Corresponds to some microseconds; only one poll if another rank may need the core.
  std::uint32_t looks_at_once() const { return options_.oversubscribed ? 1 : kHotLooks; }
  /// Does what can be done without waiting for another rank.
  void exhaust() {
    do moved_ = false;
    while (progress() || moved_);
  }
  /// Does that for one stream, where only its operations may have news. Preconditions: it isn't kTagged, and its transports need
  /// no progress(), as those of virtual time.
  void exhaust(Stream stream) {
    if (broken_) throw_first_cause();
    do moved_ = false;
    while (step_head(stream) || moved_);
  }
  /// Does one round for all streams. Returns true if anything was done: another round may find more.
  bool advance() {
    moved_ = false;
    return progress() || moved_;
  }
  /// Returns how many operations of a stream are complete.
  std::uint64_t completed(Stream stream) const { return queues_[static_cast<std::size_t>(stream)].completed; }
  /// Lets all transports make progress.
  void progress_transports() {
    for (Transport* transport : transports_) transport->progress();
  }
  /// Lets transports make progress and steps the operation at the head of each stream, and its successors if it completes.
  /// Returns true if any operation completed.
  bool progress();
  /// Gives a sign of life and makes progress. Call at least every `--timeout` seconds during long computation; otherwise peers
  /// that wait declare this rank stalled. Cheap enough to be called every millisecond.
  void tick();
  /// Waits like Work::wait() for operation `number` of state.stream, as its rank is `state.blocked`, else for all pending
  /// operations, without deadline, giving signs of life. Returns early when an operation completes, `wanted` isn't 0 (whoever
  /// raises it rings wake() afterwards) or the clock reaches `deadline_ns` (kNoDeadline: never). Returns true if what it waited
  /// for is complete.
  bool drive(WaitState& state, std::uint64_t number, const std::atomic<std::uint32_t>& wanted, std::uint64_t deadline_ns);
  /// Wakes the rank if it sleeps in drive(). Any thread of this process may call it.
  void wake() { doorbell_->ring(); }
  /// Returns true if the operation is complete, without making progress; tells its stream and number.
  bool is_complete(const Work& work) const { return work.engine_ == nullptr || is_over(work.stream_, work.number_); }
  static Stream stream_of(const Work& work) { return work.stream_; }
  static std::uint64_t number_of(const Work& work) { return work.number_; }
  /// Returns the world ranks for which a pending operation waits: those that haven't begun the collective, as far as the board
  /// tells, or the other end of a message; empty: none is known.
  std::vector<int> missing(const Work& work) const;
  /// Gives back the memory of an operation that is complete, as a wait for it does.
  void settle(const Work& work) {
    if (work.engine_ != nullptr) settle(work.stream_, work.number_);
  }
  /// Notes progress, for a step() that did something but isn't complete: gives a sign of life and makes the wait poll eagerly
  /// again.
  void moved() {
    moved_ = true;
    sign_of_life();
  }
  /// Returns true if ranks outnumber cores and this rank last ran on the core on which that one did: while this one doesn't give
  /// up the core, that one can do nothing.
  bool shares_core(int world_rank) const {
    return core_ != 0 && is_near(world_rank) && board_.page(world_rank).core.load(relaxed) == core_;
  }
  /// Returns what exchanges messages with a tag. Transports may write into it as long as they live: whoever owns them keeps it.
  const std::shared_ptr<Mail>& mail() const { return mail_; }
  /// Returns the memory of operations and their coroutines.
  FramePool& frames() { return frames_; }
  /// Returns the measurements of links, to which operations add each message that they had to wait for.
  LinkTimes& link_times() { return link_times_; }
  /// Returns the nanoseconds that post() has waited because of EngineOptions::blocking.
  std::uint64_t blocked_ns() const { return blocked_ns_; }
  /// Returns the payload bytes that a phantom's operations would have brought so far; nothing on a real rank.
  const TrafficCounters& imagined_traffic() const { return imagined_; }
  /// Returns true if no operation is pending on any stream.
  bool idle() const;
  /// Makes progress, sleeping between, until done() is true; returns false if it isn't at the time `deadline_ns`. Only what
  /// progress itself finds throws: neither the board nor a deadline does. done() is called after all that could be done was.
  bool rest_until(const std::function<bool()>& done, std::uint64_t deadline_ns);
  /// Notes that what is pending must not be stepped any more, as its buffers may be gone.
  void give_up() { given_up_ = busy_ != 0; }
  bool given_up() const { return given_up_; }
  /// Drops all operations. Those of run() aren't owned: they are on stacks that are about to unwind.
  void abandon();
  /// Returns the pending operations that nothing but another rank keeps from going on.
  std::vector<const Operation*> stuck() const;
  /// Returns a pending operation, which the engine owns; null: it is complete.
  const Operation* pending(const Work& work) const;
  /// Returns the operation at the head of a stream, which the engine owns; null: there is none.
  const Operation* running(Stream stream) const;
  /// Sets the observer of operations and waits; null: none, which costs nothing. Borrowed.
  /// Precondition: idle(), or null.
  void observe(OperationObserver* observer) { observer_ = observer; }
  /// Sets what records the operations and waits of this rank; null: nothing. Borrowed. Precondition: idle(), or null.
  void record(Recorder* recorder);
  /// Returns true if there is an observer.
  bool is_observed() const { return observer_ != nullptr; }

  /// Returns an error that blames rank `culprit` and names the operation that it is in, if any.
  Error blamed(Cause cause, int culprit, const std::string& detail) const;
  /// Throws the error for a peer whose connection broke during `op`. The peer's process may be dead, which its launcher reports
  /// in a moment: so it waits at most wait_for_word_ns(), then throws Error(killed | exited), the job's first failure, or
  /// Error(disconnected) with `detail`.
  [[noreturn]] void lost(int world_peer, Op op, const std::string& detail);
  /// Throws the error for a test_receive() whose outcome was neither pending nor done: Error(mismatch | corrupt | disconnected)
  /// with a description of what this rank expected and what it found. To be called within step().
  [[noreturn]] void fail_receive(Outcome outcome, int world_peer, LaneId lane, Transport& transport, const OperationInfo& mine);
  /// Returns true if a fault may strike single messages that this rank sends to another.
  bool may_be_struck(int world_peer) const;
  /// Posts the receive of a payload for the operation of a channel that is being stepped, whose faults strike it if they are due.
  Ticket receive_on_channel(Transport& transport, LaneId lane, const Envelope& envelope, std::span<std::byte> into);
  /// Returns a number for a new communicator: the same on all members, and different from that of any other communicator, even of
  /// one with the same members. Requires that all members create their communicators on these members in the same order.
  std::uint64_t new_group(std::span<const int> members);
  /// Returns the world ranks of a group that new_group() numbered, in group order; empty if the group isn't known.
  std::span<const int> members_of(std::uint64_t group) const;
  /// Gives a group a name for this rank's errors and trace: "tp". Without one it has none.
  void name_group(std::uint64_t group, std::string name) { group_names_[group] = std::move(name); }
  /// Returns the group's name, valid until another is given; empty if it has none.
  std::string_view name_of(std::uint64_t group) const;
  /// Throws an error that blames rank `culprit`, see blamed(). To be called within step(): the engine catches it there, marks the
  /// job as failed (an earlier failure stays), and throws the first failure of the job.
  [[noreturn]] void fail(Cause cause, int culprit, const std::string& detail);
  /// Ends the job because of `error`, unless it has failed already; throws the first failure of the job.
  [[noreturn]] void break_down(const Error& error);

 private:
  friend class tsprun::Work;
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
  void show(Stream stream, const Operation& operation);
  bool step(Operation& operation);
  bool step_head(Stream stream);
  bool step_tagged();
  /// Steps what may be stepped of a queue; returns true if any operation completed.
  bool step_queue(Stream stream) { return stream == kTagged ? step_tagged() : step_head(stream); }
  void complete(Stream stream, Operation* operation);
  bool is_over(Stream stream, std::uint64_t number) const {
    return stream == kTagged ? !broken_ && find_tagged(number) == nullptr : queue(stream).completed >= number;
  }
  const Operation* find_tagged(std::uint64_t number) const;
  static bool has_turn(const Operation& operation) {
    return operation.turns_ == nullptr || operation.turn_ == operation.turns_->over + 1;
  }
  Operation* first_of(const Turns* turns) const;
  const Operation* awaited(const WaitState& state) const;
  void dispose(Queue& queue, Operation* operation);
  std::uint64_t imagine(Stream stream, Operation& operation);
  void settle(Stream stream, std::uint64_t number);
  bool test(Stream stream, std::uint64_t number);
  void wait(Stream stream, std::uint64_t number);
  void wait_for(Stream stream, std::uint64_t number);
  bool look(Stream stream);
  /// Returns true for a rank of this node.
  bool is_near(int world_rank) const { return world_rank >= 0 && route(world_rank).node == route(world_rank_).node; }
  Queue& queue(Stream stream) { return queues_[static_cast<std::size_t>(stream)]; }
  const Queue& queue(Stream stream) const { return queues_[static_cast<std::size_t>(stream)]; }
  ActivityLine& line(Stream stream) const { return page_->activity[static_cast<std::size_t>(stream)]; }
  void sign_of_life() { page_->count_sign(); }
  void note_finished(Stream stream, const OperationInfo& info);
  [[noreturn]] void throw_first_cause();

  // waiting.cpp and looks.cpp
  void pause(WaitState& state);
  void note_yield(WaitState& state, std::uint64_t now);
  void yield();
  void sleep(WaitState& state);
  void look_around(WaitState& state);
  void check_peer(WaitState& state, std::uint64_t now);
  std::string named(std::uint64_t group) const;
  void check_pending(std::uint64_t now);
  void watch_peers();
  bool may_end_badly(int peer) const;
  void look_once();
  std::string how_it_ended(int peer) const;
  void check_carrier(int peer, Op op);
  void check_stopped_carrier(const std::string& detail);
  std::uint64_t ticked(int rank, std::uint64_t now);
  [[noreturn]] void throw_gone(int peer, Op op, std::uint64_t sequence);
  void check_arguments(const WaitState& state);
  void check_deadline(WaitState& state, std::uint64_t now);
  std::string why_it_never_came(FlightBoard::Chain& chain) const;
  void note_waits(const WaitState& state, std::uint64_t now);
  bool withheld(int peer) const;

  FramePool frames_;  // first, because operations give memory back to it when the engine is destroyed
  FlightBoard board_;
  int world_rank_;
  std::vector<Route> routes_;
  std::vector<Transport*> transports_;
  Doorbell* doorbell_;
  std::optional<SleepSet> sleep_set_;
  EngineOptions options_;
  Queue queues_[kQueues];
  RankPage* page_;  // this rank's
  LinkTimes link_times_;
  std::shared_ptr<Mail> mail_;
  FinishedLine* finished_[kQueues] = {};  // by stream: the line of the group whose collective was the last to end
  /// Communicators with the same members, which share the list of them: a program may make one in each step.
  struct Alike {
    std::vector<int> members;
    std::uint64_t made = 0;
  };
  std::map<std::uint64_t, Alike> groups_;                        // by hash of their members
  std::map<std::uint64_t, const std::vector<int>*> members_of_;  // by group
  std::map<std::uint64_t, std::string> group_names_;             // likewise, of those that have one
  OperationObserver* observer_ = nullptr;
  Recorder* recorder_ = nullptr;
  const Operation* stepped_ = nullptr;                  // whose step() is on the stack
  const std::atomic<std::uint32_t>* wanted_ = nullptr;  // in drive(): raised by a thread that wants the engine
  std::uint64_t watched_ns_ = 0;                        // the last look at ranks of a program that doesn't wait
  std::uint64_t looked_ns_ = 0;                         // when the board was last examined by drive() or a wait …
  std::uint64_t listening_ns_ = 0;  // … and since when without a gap in which this rank may have been stopped
  /// Pending operation that waits for a rank which is gone.
  struct Suspect {
    Stream stream = Stream::control;
    std::uint64_t number = 0;  // 0: none
    int peer = -1;
    std::uint64_t since_ns = 0;  // when that was seen first
  };
  Suspect suspect_;
  /// Progress that this rank has seen of another for which a pending operation waits.
  struct Heard {
    std::uint64_t ticks = 0;
    std::uint64_t since_ns = 0;  // when they were first seen so
  };
  std::vector<Heard> heard_;  // by rank; empty until there is any
  bool broken_ = false;
  bool given_up_ = false;
  bool left_ = false;
  bool moved_ = false;
  std::uint64_t blocked_ns_ = 0;
  TrafficCounters imagined_;
  std::uint32_t busy_ = 0;  // number of streams with an operation
  std::int32_t core_ = 0;   // if ranks outnumber cores: 1 + number of the core on which this rank last ran; 0: unknown
};

}  // namespace tsprun::detail
