// The engine's queues. How it waits is in waiting.cpp, what it looks for meanwhile in looks.cpp, how it fails in failures.cpp.
#include "core/streams/engine.h"

#include "core/board/peer_watch.h"
#include "core/fault/rank_faults.h"
#include "core/program/recorder.h"
#include "core/streams/mail.h"
#include "core/streams/wait_state.h"
#include "transport/checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace tsprun {

using namespace detail;

bool Work::test() { return engine_ == nullptr || engine_->test(stream_, number_); }

void Work::wait() {
  if (engine_ != nullptr) engine_->wait(stream_, number_);
}

namespace detail {

Engine::Engine(FlightBoard board, int world_rank, std::vector<Route> routes, Doorbell& doorbell, EngineOptions options)
    : board_(board),
      world_rank_(world_rank),
      routes_(std::move(routes)),
      doorbell_(&doorbell),
      options_(options),
      page_(&board_.page(world_rank)),
      link_times_(*page_, world_size()),
      mail_(std::make_shared<Mail>(*this)) {
  if (options_.clock == nullptr) options_.clock = &real_clock();
  for (const Route& route : routes_) {
    if (route.transport != nullptr && std::find(transports_.begin(), transports_.end(), route.transport) == transports_.end()) {
      transports_.push_back(route.transport);
    }
  }
  std::vector<int> descriptors;
  for (const Transport* transport : transports_) descriptors.push_back(transport->descriptor());
  sleep_set_.emplace(*doorbell_, descriptors);
}

Engine::~Engine() { abandon(); }

void Engine::abandon() {
  busy_ = 0;
  for (Queue& queue : queues_) {
    for (Operation** list : {&queue.head, &queue.kept}) {
      while (*list != nullptr) {
        Operation* operation = std::exchange(*list, (*list)->next_);
        if (operation->owned_) delete operation;
      }
    }
    queue.tail = nullptr;
    queue.last_kept = nullptr;
  }
}

bool Engine::idle() const {
  return std::all_of(std::begin(queues_), std::end(queues_), [](const Queue& queue) { return queue.head == nullptr; });
}

const Operation* Engine::running(Stream stream) const { return queues_[static_cast<std::size_t>(stream)].head; }

// --- queues ------------------------------------------------------------------------------------------------------------------

/// Counts a phantom's operation, which is complete at once, and returns its number.
std::uint64_t Engine::imagine(Stream stream, Operation& operation) {
  imagined_.received[static_cast<std::size_t>(operation.info().purpose)] += operation.received();
  Queue& q = queue(stream);
  return operation.number_ = q.completed = ++q.posted;
}

Work Engine::post(Stream stream, std::unique_ptr<Operation> operation) {
  operation->owned_ = true;
  if (options_.phantom) {
    const std::uint64_t number = imagine(stream, *operation);
    if (recorder_ != nullptr) recorder_->post(stream, *operation, number);
    dispose(queue(stream), operation.release());
    return Work(this, stream, number);
  }
  const std::uint64_t number = append(stream, *operation.release());
  if (recorder_ != nullptr) recorder_->post(stream, *queue(stream).tail, number);
  step_queue(stream);
  if (options_.blocking) {
    const std::uint64_t begin = clock().now_ns();
    wait_for(stream, number);
    blocked_ns_ += clock().now_ns() - begin;
  }
  return Work(this, stream, number);
}

void Engine::run(Stream stream, Operation& operation) {
  if (options_.phantom) {
    const std::uint64_t number = imagine(stream, operation);
    if (recorder_ != nullptr) recorder_->call(stream, operation, number);
    settle(stream, number);
    return;
  }
  const std::uint64_t number = append(stream, operation);
  if (recorder_ != nullptr) recorder_->call(stream, operation, number);
  while (!is_over(stream, number) && step_queue(stream)) {
  }
  wait_for(stream, number);
}

void Engine::record(Recorder* recorder) {
  recorder_ = recorder;
  for (int i = 0; i < kQueues && recorder != nullptr; ++i) recorder->count(static_cast<Stream>(i), queues_[i].posted);
}

void Engine::wait(Stream stream, std::uint64_t number) {
  if (recorder_ != nullptr) recorder_->wait(stream, number);
  wait_for(stream, number);
}

std::uint64_t Engine::append(Stream stream, Operation& operation) {
  if (broken_ || left_ || board_.aborted()) {
    const Op op = operation.info().op;
    if (operation.owned_) delete &operation;
    if (left_) throw Error(Cause::refused, fmt::format("{}: this rank has left the job", name(op)), world_rank_);
    throw_first_cause();
  }
  const auto kind = static_cast<std::size_t>(operation.info().op);
  operation.sequence_ = static_cast<std::uint32_t>(page_->counts[kind].load(relaxed) + 1);
  page_->counts[kind].store(operation.sequence_, relaxed);
  Queue& q = queue(stream);
  operation.number_ = ++q.posted;
  if (operation.turns_ != nullptr) operation.turn_ = ++operation.turns_->posted;
  if (options_.faults != nullptr && operation.info().tag == kNoTag) {
    options_.faults->at_post(stream, q.posted, operation.info(), operation.sequence_, members_of(operation.info().group));
  }
  if (q.head == nullptr) {
    q.head = &operation;
    ++busy_;
  } else {
    q.tail->next_ = &operation;
  }
  q.tail = &operation;
  if (stream == kTagged ? has_turn(operation) : q.head == &operation) begin(stream, operation);
  return operation.number_;
}

/// Writes to the board what an operation is: the head of its stream, or the one of kTagged that is waited for.
void Engine::show(Stream stream, const Operation& operation) {
  const OperationInfo& info = operation.info();
  ActivityLine& now = line(stream);
  now.since_ns.store(0, relaxed);
  now.waiting_for.store(-1, relaxed);
  now.segment.store(0, relaxed);
  now.bytes.store(info.bytes, relaxed);
  now.signature.store(info.signature, relaxed);
  now.group.store(info.group, relaxed);
  now.sequence.store(operation.sequence_, relaxed);
  now.group_sequence.store(info.group_sequence, relaxed);
  now.op.store(static_cast<std::uint8_t>(info.op), relaxed);
  now.dtype.store(static_cast<std::uint8_t>(info.dtype), relaxed);
  now.reduction.store(static_cast<std::uint8_t>(info.reduction), relaxed);
  now.root.store(info.root, relaxed);
  now.source.store(info.tag != kNoTag ? info.tag : info.source, relaxed);
  now.withheld.store(0, relaxed);
  now.busy.store(1, relaxed);
}

void Engine::begin(Stream stream, Operation& operation) {
  show(stream, operation);
  if (observer_ != nullptr) operation.begun_ns_ = clock().now_ns();
  if (options_.faults != nullptr) {
    if (stream != kTagged) options_.faults->at_begin(stream, operation.number_);
    // The rank may be waiting for another operation: meanwhile the board shows this one, in case a fault strikes at it.
    const std::int32_t waited_for = page_->blocked_on.load(relaxed);
    page_->blocked_on.store(static_cast<std::int32_t>(stream) + 1, relaxed);
    options_.faults->at_operation(operation.info().op, operation.sequence_);
    page_->blocked_on.store(waited_for, relaxed);
  }
}

/// Notes on the board the last collective that this rank completed: ranks that wait for its message then know that it was sent.
void Engine::note_finished(Stream stream, const OperationInfo& info) {
  if (!is_collective(info.op)) return;
  FinishedLine*& last = finished_[static_cast<std::size_t>(stream)];
  if (last == nullptr || last->group.load(relaxed) != info.group) {
    last = nullptr;
    for (FinishedLine& each : page_->finished) {
      const bool is_free = each.group_sequence.load(relaxed) == 0;
      if (is_free) {
        each.group.store(info.group, relaxed);
        each.stream.store(static_cast<std::uint32_t>(stream), relaxed);
      }
      if (!is_free && (each.group.load(relaxed) != info.group || each.stream.load(relaxed) != static_cast<std::uint32_t>(stream)))
        continue;
      last = &each;
      break;
    }
    if (last == nullptr) return;
  }
  last->group_sequence.store(info.group_sequence, std::memory_order_release);
}

/// Steps an operation; returns true if it completed. Throws the first failure of the job.
bool Engine::step(Operation& operation) {
  try {
    struct Stepping {
      Stepping(const Operation*& place, const Operation& one) : at(place) { at = &one; }
      Stepping(const Stepping&) = delete;
      Stepping& operator=(const Stepping&) = delete;
      ~Stepping() { at = nullptr; }
      const Operation*& at;
    } stepping(stepped_, operation);
    return operation.step(*this);
  } catch (const Error& error) {
    break_down(error);
  } catch (const std::bad_alloc&) {
    break_down(Error(Cause::out_of_memory,
                     fmt::format("{}: no memory is left for what it must remember", name(operation.info().op)), world_rank_,
                     std::string(name(operation.info().op)), operation.sequence_));
  } catch (...) {
    broken_ = true;
    abandon();  // an operation of run() is on a stack that unwinds
    throw;
  }
}

/// Steps the operation at the head of a stream; returns true if it completed.
bool Engine::step_head(Stream stream) {
  Queue& q = queue(stream);
  Operation* operation = q.head;
  if (operation == nullptr || !step(*operation)) return false;
  q.head = operation->next_;
  complete(stream, operation);
  if (q.head != nullptr) {
    begin(stream, *q.head);
  } else {
    line(stream).busy.store(0, relaxed);
    --busy_;
  }
  return true;
}

/// Steps all messages with a tag, and the operation of each channel that has its turn; returns true if any of them completed.
bool Engine::step_tagged() {
  Queue& q = queue(kTagged);
  bool completed = false;
  Operation* before = nullptr;
  for (Operation** at = &q.head; *at != nullptr;) {
    Operation* operation = *at;
    if (!has_turn(*operation) || !step(*operation)) {
      before = operation;
      at = &operation->next_;
      continue;
    }
    *at = operation->next_;
    if (q.tail == operation) q.tail = before;
    const Turns* turns = operation->turns_;
    complete(kTagged, operation);
    if (turns != nullptr) {
      if (Operation* next = first_of(turns)) begin(kTagged, *next);
    }
    completed = true;
  }
  if (!completed) return false;
  if (q.head != nullptr) {
    show(kTagged, *q.head);
  } else {
    line(kTagged).busy.store(0, relaxed);
    --busy_;
  }
  return true;
}

/// Returns a message with a tag that isn't complete; null if it is.
const Operation* Engine::find_tagged(std::uint64_t number) const {
  const Operation* operation = queue(kTagged).head;
  while (operation != nullptr && operation->number_ < number) operation = operation->next_;
  return operation != nullptr && operation->number_ == number ? operation : nullptr;
}

/// Returns the operation that a wait is for, or what its stream or channel does before it; null: the stream is empty.
const Operation* Engine::awaited(const WaitState& state) const {
  if (state.stream == kTagged) {
    if (const Operation* operation = find_tagged(state.number))
      return operation->turns_ == nullptr ? operation : first_of(operation->turns_);
  }
  return queue(state.stream).head;
}

/// Returns the operation of a channel that has its turn; null: none is pending. The turns may be gone then.
Operation* Engine::first_of(const Turns* turns) const {
  Operation* operation = queue(kTagged).head;
  while (operation != nullptr && operation->turns_ != turns) operation = operation->next_;
  return operation;
}

/// Does what is due when an operation, which isn't in its queue any more, is complete.
void Engine::complete(Stream stream, Operation* operation) {
  operation->next_ = nullptr;
  Queue& q = queue(stream);
  ++q.completed;
  if (operation->turns_ != nullptr) ++operation->turns_->over;
  if (options_.faults != nullptr) options_.faults->at_end(stream, operation->number_);
  note_finished(stream, operation->info());
  sign_of_life();
  if (observer_ != nullptr) observer_->completed(stream, operation->info(), operation->begun_ns_, clock().now_ns());
  if (operation->owned_) dispose(q, operation);
}

bool Engine::may_be_struck(int world_peer) const { return options_.faults != nullptr && options_.faults->concern(world_peer); }

Ticket Engine::receive_on_channel(Transport& transport, LaneId lane, const Envelope& envelope, std::span<std::byte> into) {
  if (options_.faults != nullptr) options_.faults->at_begin(lane.stream, stepped_->number_);
  const Ticket ticket = transport.receive(lane, envelope, into);
  if (options_.faults != nullptr) options_.faults->at_pause();
  return ticket;
}

/// Deletes an operation that has just completed, or keeps it until it is waited for if it holds heap memory.
void Engine::dispose(Queue& queue, Operation* operation) {
  if (!operation->holds_memory_) {
    delete operation;
    return;
  }
  (queue.kept == nullptr ? queue.kept : queue.last_kept->next_) = operation;
  queue.last_kept = operation;
}

/// Deletes the kept operations of a stream up to this number, as they have been waited for. Those of kTagged are kept in the
/// order in which they completed, so the first that isn't waited for keeps those behind it.
void Engine::settle(Stream stream, std::uint64_t number) {
  Queue& q = queue(stream);
  while (q.kept != nullptr && q.kept->number_ <= number) delete std::exchange(q.kept, q.kept->next_);
  if (q.kept == nullptr) q.last_kept = nullptr;
}

bool Engine::progress() {
  if (broken_) throw_first_cause();
  bool completed = false;
  progress_transports();
  for (int stream = 0; stream < kStreams; ++stream) {
    while (step_head(static_cast<Stream>(stream))) completed = true;
  }
  if (queue(kTagged).head != nullptr && step_tagged()) completed = true;
  return completed;
}

bool Engine::test(Stream stream, std::uint64_t number) {
  if (!is_over(stream, number)) {
    if (broken_ || board_.aborted()) throw_first_cause();
    look_once();
    if (!is_over(stream, number)) {
      watch_peers();
      return false;
    }
  }
  settle(stream, number);
  return true;
}

void Engine::tick() {
  page_->last_sign_ns.store(clock().now_ns(), relaxed);
  sign_of_life();
  if (broken_ || board_.aborted()) throw_first_cause();
  look_once();
  watch_peers();
}

/// Does one round; all that can be done if a rank seems to be gone, as its last messages may be in the kernel's buffers.
void Engine::look_once() {
  if (suspect_.number != 0) exhaust();
  else progress();
}

const Operation* Engine::pending(const Work& work) const {
  if (is_complete(work)) return nullptr;
  const Operation* operation = queue(work.stream_).head;
  while (operation != nullptr && operation->number_ != work.number_) operation = operation->next_;
  return operation;
}

std::vector<const Operation*> Engine::stuck() const {
  std::vector<const Operation*> all;
  for (int i = 0; i < kQueues; ++i) {
    const auto stream = static_cast<Stream>(i);
    for (const Operation* each = queue(stream).head; each != nullptr; each = stream == kTagged ? each->next_ : nullptr) {
      if (stream != kTagged || has_turn(*each)) all.push_back(each);
    }
  }
  return all;
}

std::vector<int> Engine::missing(const Work& work) const {
  const Operation* const operation = pending(work);
  if (operation == nullptr) return {};
  const OperationInfo& mine = operation->info();
  std::vector<int> ranks;
  if (!is_collective(mine.op)) {
    if (const int peer = operation->waiting_for(); peer >= 0) ranks.push_back(peer);
    return ranks;
  }
  for (const int rank : members_of(mine.group)) {
    if (rank == world_rank_ || board_.finished(rank, mine.group, work.stream_) >= mine.group_sequence) continue;
    const std::optional<Activity> there = board_.activity(rank, work.stream_);
    // On kTagged a rank may have begun it and show what it does on another channel.
    if (there && work.stream_ == kTagged && there->group != mine.group && rank != operation->waiting_for()) continue;
    if (!there || there->group != mine.group || there->group_sequence < mine.group_sequence) ranks.push_back(rank);
  }
  return ranks;
}

std::uint64_t Engine::new_group(std::span<const int> members) {
  const std::uint64_t hash = checksum(std::as_bytes(members));
  Alike& alike = groups_[hash];
  if (alike.made == 0) alike.members.assign(members.begin(), members.end());
  const std::uint64_t parts[] = {hash, ++alike.made};
  const std::uint64_t group = checksum(std::as_bytes(std::span(parts)));
  members_of_.emplace(group, &alike.members);
  return group;
}

std::string_view Engine::name_of(std::uint64_t group) const {
  const auto at = group_names_.find(group);
  return at == group_names_.end() ? std::string_view() : at->second;
}

std::span<const int> Engine::members_of(std::uint64_t group) const {
  const auto at = members_of_.find(group);
  return at == members_of_.end() ? std::span<const int>() : std::span<const int>(*at->second);
}

}  // namespace detail
}  // namespace tsprun
