// Waits of a rank: it spins or yields, then sleeps. At every look at the clock it checks whether the job has failed, whether the
// rank it waits for is alive, whether the other ranks' arguments agree with its own, and the deadline.
#include "core/board/peer_watch.h"
#include "core/streams/engine.h"
#include "core/streams/mail.h"
#include "core/streams/wait_state.h"
#include "transport/cpu_relax.h"
#include "transport/fault/delay_transport.h"

#include <algorithm>
#include <new>
#include <sched.h>

namespace tsprun::detail {

namespace {

/// Number of polls between readings of the clock, if every rank has a core.
constexpr std::uint32_t kLooksPerClock = 256;
/// Time of spinning before the first sleep, if every rank has a core.
constexpr std::uint64_t kSpinNs = 1'000'000;
/// Number of yields before the first sleep, if ranks outnumber cores. A barrier of 8 ranks on 2 cores takes 5 µs this way, 25 µs
/// when every wait sleeps, 15 µs when every wait spins 100 times first.
constexpr std::uint32_t kYields = 50;
/// If ranks outnumber cores: number of polls before each yield if all that is missing comes from the node's other cores. A yield
/// in vain costs a microsecond or two, as long as the other ranks of this core take to find that they wait, too: an all_to_all of
/// 1 KiB takes 4 µs instead of 8 on 4 ranks and 2 cores this way.
constexpr std::uint32_t kSpinLooks = 25;
/// Yields that last longer gave the core to strangers' processes; others give it to ranks for some microseconds.
constexpr std::uint64_t kLongYieldNs = 200'000;
/// Longest sleep.
constexpr std::uint64_t kSleepNs = 100'000'000;

/// Sets aside messages with a tag that nobody here has asked for, of a rank, or (-1) of all that have exchanged some with this
/// one. What goes wrong ends the job as in an operation's step.
void take_in_mail(Engine& engine, int world) {
  try {
    if (world < 0) engine.mail()->take_in();
    else engine.mail()->take_in(world);
  } catch (const Error& error) {
    engine.break_down(error);
  } catch (const std::bad_alloc&) {
    engine.break_down(
        Error(Cause::out_of_memory, "no memory is left for messages that nobody has received yet", engine.world_rank()));
  }
}

}  // namespace

void Engine::wait_for(Stream stream, std::uint64_t number) {
  WaitState state(stream);
  state.number = number;
  Queue& q = queue(stream);
  OperationObserver* const observer = is_over(stream, number) ? nullptr : observer_;
  const std::uint64_t begin_ns = observer == nullptr ? 0 : clock().now_ns();
  if (observer != nullptr) observer->wait_begins();
  while (!is_over(stream, number)) {
    if (look(stream) || moved_) {
      moved_ = false;
      state.restart();
    } else {
      if (const Operation* missing = observer == nullptr ? nullptr : awaited(state)) {
        observer->missing(missing->waiting_for(), missing->info());
      }
      pause(state);
    }
  }
  if (observer != nullptr) observer->wait_ended(begin_ns, clock().now_ns());
  if (page_->blocked_on.load(relaxed) != 0) page_->blocked_on.store(0, relaxed);
  if (q.kept != nullptr) settle(stream, number);
}

bool Engine::drive(WaitState& state, std::uint64_t number, const std::atomic<std::uint32_t>& wanted, std::uint64_t deadline_ns) {
  struct Wanted {
    Wanted(const std::atomic<std::uint32_t>*& place, const std::atomic<std::uint32_t>& count) : at(place) { at = &count; }
    Wanted(const Wanted&) = delete;
    Wanted& operator=(const Wanted&) = delete;
    ~Wanted() { at = nullptr; }
    const std::atomic<std::uint32_t>*& at;
  } interruptible(wanted_, wanted);
  if (broken_) throw_first_cause();  // of which a call may have told one thread alone
  state.number = number;
  state.yielded_at_ns = 0;  // other threads have had the engine since
  const auto all_done = [&] { return state.blocked ? is_over(state.stream, number) : busy_ == 0; };
  bool completed = false;
  while (!completed && !all_done()) {
    if (look(state.stream)) {
      completed = true;
    } else if (moved_) {
      moved_ = false;
      state.restart();
    } else if (state.blocked) {
      pause(state);
    } else {
      sleep(state);
    }
    if (wanted.load(relaxed) != 0 || (deadline_ns != kNoDeadline && clock().now_ns() >= deadline_ns)) break;
  }
  if (page_->blocked_on.load(relaxed) != 0) page_->blocked_on.store(0, relaxed);
  const bool done = all_done();
  if (state.blocked && done && queue(state.stream).kept != nullptr) settle(state.stream, number);
  return done;
}

/// Does the same as progress(), but steps only the stream waited for if no other has an operation.
bool Engine::look(Stream stream) {
  if (broken_ || busy_ != 1) return progress();
  progress_transports();
  return step_queue(stream);
}

/// Spins, yields or sleeps after a poll that found nothing to do.
void Engine::pause(WaitState& state) {
  if (board_.aborted()) {
    note_waits(state, clock().now_ns());
    throw_first_cause();
  }
  if (options_.oversubscribed) {
    const Operation* head = awaited(state);
    if (state.spins < kSpinLooks && head != nullptr && is_near(head->waiting_for()) && !head->needs_core()) {
      ++state.spins;
      return;
    }
    state.spins = 0;
    const std::uint64_t now = clock().now_ns();
    note_yield(state, now);
    if (++state.looks <= kYields) {
      state.yielded_at_ns = now;
      yield();
    } else {
      sleep(state);
    }
    return;
  }
  const std::uint32_t looks = ++state.looks;
  if (looks <= kHotLooks) return;
  if (state.started_ns == 0) state.started_ns = clock().now_ns();
  if (looks % kLooksPerClock != 0) {
    cpu_relax();
  } else if (clock().now_ns() - state.started_ns >= kSpinNs) {
    sleep(state);
  }
}

/// Counts the last yield if it was long and in vain, so that it isn't taken for a time in which this rank lacked a core.
void Engine::note_yield(WaitState& state, std::uint64_t now) {
  if (state.yielded_at_ns != 0 && now - state.yielded_at_ns > kLongYieldNs)
    page_->yielded_ns.store(page_->yielded_ns.load(relaxed) + now - state.yielded_at_ns, relaxed);
  state.yielded_at_ns = 0;
}

/// Lets another rank run on this core, and notes on which core this one goes on.
void Engine::yield() {
  ::sched_yield();
  const int core = ::sched_getcpu() + 1;
  if (core == core_) return;
  core_ = core;
  page_->core.store(core, relaxed);
}

void Engine::sleep(WaitState& state) {
  look_around(state);
  doorbell_->arm();
  take_in_mail(*this, -1);
  std::uint64_t wake_at = kNoDeadline;
  for (Transport* transport : transports_) wake_at = std::min(wake_at, transport->arm());
  const bool news =
      progress() || moved_ || board_.aborted() || (wanted_ != nullptr && wanted_->load(std::memory_order_seq_cst) != 0);
  if (!news && state.suspect < 0) {
    const std::uint64_t now = wake_at == kNoDeadline ? 0 : clock().now_ns();
    clock().sleep(*sleep_set_, wake_at == kNoDeadline ? kSleepNs : wake_at - std::min(wake_at, now));
  }
  // While a message takes longer than the deadline, only its bytes show that it moves; they wake the ranks at both ends. Bytes
  // that move between sleeps needn't be counted, because a rank that finds nothing complete soon sleeps again.
  bool flows = false;
  for (Transport* transport : transports_) {
    transport->disarm();
    flows = transport->progress() || flows;
  }
  doorbell_->disarm();
  if (flows || news) suspect_ = {};
  if (flows) {
    sign_of_life();
    state.chain_since_ns = 0;  // the kernel of a silent peer may be sending them
  }
  if (news) {
    moved_ = false;
    state.restart();
  } else {
    state.looks = options_.oversubscribed ? kYields - 2 : kLooksPerClock * 2 - 1;  // woken: a few quick looks, then sleep again
  }
}

bool Engine::rest_until(const std::function<bool()>& done, std::uint64_t deadline_ns) {
  while (true) {
    exhaust();
    if (done()) return true;
    const std::uint64_t now = clock().now_ns();
    if (now >= deadline_ns) return false;
    page_->last_sign_ns.store(now, relaxed);
    sign_of_life();
    if (options_.watch != nullptr) options_.watch->look();
    doorbell_->arm();
    std::uint64_t wake_at = deadline_ns;
    for (Transport* transport : transports_) wake_at = std::min(wake_at, transport->arm());
    if (!progress() && !moved_ && !done()) clock().sleep(*sleep_set_, std::min(kSleepNs, wake_at - std::min(wake_at, now)));
    for (Transport* transport : transports_) {
      transport->disarm();
      transport->progress();
    }
    doorbell_->disarm();
  }
}

/// Looks at the board during a wait: other ranks' arguments, the peer's life, the deadline. Called about every 100 ms while
/// nothing moves, more often if the rank is woken.
void Engine::look_around(WaitState& state) {
  const std::uint64_t now = clock().now_ns();
  page_->last_sign_ns.store(now, relaxed);
  if (state.last_look_ns != 0 && now - state.last_look_ns > kClockJumpNs) state.chain_since_ns = 0;
  state.last_look_ns = now;
  if (now - looked_ns_ > kClockJumpNs) listening_ns_ = now;
  looked_ns_ = now;
  if (state.blocked) {
    note_waits(state, now);
  } else {
    sign_of_life();
    if (board_.aborted()) throw_first_cause();
  }
  if (options_.watch != nullptr) options_.watch->look();
  // What a rank waits for may be room for a message to this one, which nobody here has asked for.
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const bool in_a_message = board_.page(rank).blocked_on.load(relaxed) == static_cast<std::int32_t>(kTagged) + 1;
    if (in_a_message && rank != world_rank_ && board_.waits_for(rank) == world_rank_) take_in_mail(*this, rank);
  }
  try {
    if (!state.blocked) {
      check_pending(now);
    } else {
      check_arguments(state);
      check_peer(state, now);
      check_deadline(state, now);
    }
  } catch (const Error& error) {
    break_down(error);
  }
}

/// Returns true while an injected delay holds back a message that has arrived from this rank.
bool Engine::withheld(int peer) const {
  const Route& way = route(peer);
  return way.delays != nullptr && way.delays->withholds(way.peer);
}

/// Writes to the board for which rank each busy stream waits, and on which stream this rank is blocked. Other ranks, `tsprun
/// status` and the verdict read it.
void Engine::note_waits(const WaitState& state, std::uint64_t now) {
  for (int i = 0; i < kQueues; ++i) {
    const auto stream = static_cast<Stream>(i);
    const Operation* head = stream == state.stream ? awaited(state) : queue(stream).head;
    if (head == nullptr) continue;
    ActivityLine& mine = line(stream);
    if (mine.sequence.load(relaxed) != head->sequence_ || mine.op.load(relaxed) != static_cast<std::uint8_t>(head->info().op)) {
      show(stream, *head);
    }
    if (mine.since_ns.load(relaxed) == 0) mine.since_ns.store(now, relaxed);
    mine.segment.store(head->missing_segment(), relaxed);
    const int peer = head->waiting_for();
    mine.waiting_for.store(peer, relaxed);
    mine.withheld.store(peer >= 0 && peer < world_size() && withheld(peer) ? 1 : 0, relaxed);
  }
  page_->blocked_on.store(static_cast<std::int32_t>(state.stream) + 1, relaxed);
}

}  // namespace tsprun::detail
