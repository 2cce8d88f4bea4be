// Waits of a rank: it spins or yields, then sleeps. At every look at the clock it checks whether the job has failed, whether the
// rank it waits for is alive, whether the other ranks' arguments agree with its own, and the deadline.
#include "core/board/peer_watch.h"
#include "core/streams/engine.h"
#include "core/streams/mail.h"
#include "core/streams/wait_state.h"
#include "transport/fault/delay_transport.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
/// Longest sleep.
constexpr std::uint64_t kSleepNs = 100'000'000;
/// Time between two looks beyond which this rank must have been stopped or starved itself, as sleeps are far shorter.
constexpr std::uint64_t kClockJumpNs = 2'000'000'000;

void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

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

double seconds(std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

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
  state.number = number;
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
    if (++state.looks <= kYields) {
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

/// Compares the signatures of all ranks in the same collective on the board, since not every pair of ranks exchanges a message.
/// Throws Error(mismatch).
void Engine::check_arguments(const WaitState& state) {
  const Stream stream = state.stream;
  const Operation* head = awaited(state);
  if (head == nullptr || !is_collective(head->info().op)) return;
  const OperationInfo& mine = head->info();
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const std::optional<Activity> theirs = board_.activity(rank, stream);
    if (!theirs || !is_collective(theirs->op) || theirs->group != mine.group || theirs->group_sequence != mine.group_sequence)
      continue;
    if (theirs->signature == mine.signature) continue;
    // The line may have been read while it changed: it counts only if it is still the same and its rank waits.
    const std::optional<Activity> again = board_.activity(rank, stream);
    if (!again || again->signature != theirs->signature || again->group_sequence != theirs->group_sequence ||
        theirs->waiting_for < 0)
      continue;
    const std::optional<Activity> here = board_.activity(world_rank_, stream);
    std::string differ = "the arguments differ";
    if (theirs->reduction != mine.reduction) {
      differ += fmt::format(": {} and {}", name(mine.reduction), name(theirs->reduction));
    } else if (theirs->op == mine.op && theirs->dtype == mine.dtype && theirs->root == mine.root && theirs->bytes == mine.bytes) {
      differ += " in what isn't listed: another rank's count, or the algorithm (TSP_ALGORITHMS, CallOptions::algorithm)";
    }
    throw Error(Cause::mismatch,
                fmt::format("rank {} is in {}, rank {} is in {}: both are operation {} of their group, but {}", world_rank_,
                            here ? here->describe(0) : name(mine.op), rank, theirs->describe(0), mine.group_sequence, differ),
                world_rank_, std::string(name(mine.op)), line(stream).sequence.load(relaxed));
  }
}

/// Looks at other ranks for a program that doesn't wait, at most ten times a second.
void Engine::watch_peers() {
  constexpr std::uint64_t kBetweenLooks = 100'000'000;
  const std::uint64_t now = clock().now_ns();
  if (now - watched_ns_ < kBetweenLooks) return;
  watched_ns_ = now;
  if (options_.watch != nullptr) options_.watch->look();
  try {
    check_pending(now);
  } catch (const Error& error) {
    break_down(error);
  }
}

/// Throws if a rank for which a pending operation waits is gone, or has been silent for the deadline while this one looked.
/// Nobody may ever wait for the operation itself: a program can wait for a future instead. A rank's last messages may still be in
/// the lane, so one that is gone counts only if it is missing at the next look, too.
void Engine::check_pending(std::uint64_t now) {
  const bool listens = now - looked_ns_ <= kClockJumpNs;
  for (int i = 0; i < kQueues; ++i) {
    const auto stream = static_cast<Stream>(i);
    for (const Operation* each = queue(stream).head; each != nullptr; each = stream == kTagged ? each->next_ : nullptr) {
      const int peer = each->waiting_for();
      const bool is_another = peer >= 0 && peer < board_.ranks() && peer != world_rank_;
      if (!is_another || (stream == kTagged && !has_turn(*each)) || withheld(peer)) continue;
      const Life life = board_.life(peer);
      if (life > Life::alive) {
        const bool again = suspect_.stream == stream && suspect_.number == each->number_ && suspect_.peer == peer;
        if (!again) suspect_ = {.stream = stream, .number = each->number_, .peer = peer, .since_ns = now};
        const bool may_end_badly = life == Life::finished && options_.supervised && board_.page(peer).over.load(relaxed) == 0;
        if (again && (!may_end_badly || now - suspect_.since_ns >= wait_for_word_ns(options_.timeout_ns)))
          throw_gone(peer, each->info().op, each->sequence_);
        return;
      }
      // The rank that carries another node's news may be the silent one: its node is given time to notice that.
      const bool by_news = options_.watch != nullptr && !is_near(peer);
      const std::uint64_t heard = std::max(board_.page(peer).last_sign_ns.load(relaxed), listening_ns_);
      if (!listens || life != Life::alive || now < heard + options_.timeout_ns + (by_news ? options_.timeout_ns / 4 : 0))
        continue;
      if (options_.watch != nullptr) options_.watch->note_stopped({&peer, 1});
      fail(Cause::stalled, peer,
           fmt::format("rank {} gave no sign of life for {:.1f} s (--timeout {:g}): {}, and rank {} waits for it in {} #{}", peer,
                       seconds(now - heard), seconds(options_.timeout_ns), board_.describe({.ranks = {peer}}, now), world_rank_,
                       name(each->info().op), each->sequence_));
    }
  }
  suspect_ = {};
}

/// Throws if the rank waited for is gone. Its last messages may still be in the lane, so it throws only after another poll of the
/// lane, after the rank was seen to be gone, found nothing.
void Engine::check_peer(WaitState& state, std::uint64_t now) {
  const Operation* head = awaited(state);
  const int peer = head == nullptr ? -1 : head->waiting_for();
  if (peer < 0 || peer == world_rank_ || peer >= board_.ranks()) return;
  const Life life = board_.life(peer);
  if (life == Life::alive && !is_near(peer))
    check_carrier(fmt::format("rank {} waits for rank {} in {}", world_rank_, peer, name(head->info().op)));
  if (life == Life::alive || life == Life::unborn) {
    state.suspect = -1;
    state.left_since_ns = 0;
    return;
  }
  // The peer closed its context, but its process may yet end badly, by an uncaught exception, for instance: wait for the
  // launcher.
  if (life == Life::finished && options_.supervised && board_.page(peer).over.load(relaxed) == 0) {
    if (state.left_since_ns == 0) state.left_since_ns = now;
    if (now - state.left_since_ns < wait_for_word_ns(options_.timeout_ns)) return;
  }
  if (state.suspect != peer) {
    // Whoever waits for any source waits for another rank now, unless all of them are gone.
    state.suspect = head->waiting_for() == peer ? peer : -1;
    return;
  }
  if (withheld(peer)) {
    state.suspect = -1;
    return;
  }
  throw_gone(peer, head->info().op, line(state.stream).sequence.load(relaxed));
}

std::string Engine::how_it_ended(int peer) const {
  const Life life = board_.life(peer);
  const std::int32_t code = board_.page(peer).code.load(relaxed);
  if (life == Life::killed) return fmt::format("was killed by signal {}", code);
  if (life != Life::exited) return "closed its context in good order";
  if (code == kUnknownCode) return "is gone (how it ended isn't known: no tsprun watches it)";
  return fmt::format("exited (code {})", code);
}

/// Throws if the rank of this node that carries the news of other nodes is gone: nobody tells this node what happens
/// there. `detail`: what this rank waits for there.
void Engine::check_carrier(const std::string& detail) {
  if (options_.watch == nullptr) return;
  const int carrier = options_.watch->first();
  if (board_.life(carrier) == Life::exited)
    throw blamed(Cause::exited, carrier, fmt::format("rank {} {}; {}", carrier, how_it_ended(carrier), detail));
}

void Engine::throw_gone(int peer, Op op, std::uint64_t sequence) {
  throw blamed(
      board_.life(peer) == Life::killed ? Cause::killed : Cause::exited, peer,
      fmt::format("rank {} {}, but rank {} waits for it in {} #{}", peer, how_it_ended(peer), world_rank_, name(op), sequence));
}

void Engine::lost(int world_peer, Op op, const std::string& detail) {
  // Show on the board for whom the operation waits, in case the job ends meanwhile because of another rank's failure.
  const std::uint64_t started = posix::now_ns();
  std::uint64_t sequence = 0;
  for (int i = 0; i < kQueues; ++i) {
    const auto stream = static_cast<Stream>(i);
    if (queue(stream).head == nullptr || queue(stream).head->info().op != op) continue;
    sequence = line(stream).sequence.load(relaxed);
    if (line(stream).since_ns.load(relaxed) == 0) line(stream).since_ns.store(started, relaxed);
    line(stream).waiting_for.store(world_peer, relaxed);
    page_->blocked_on.store(i + 1, relaxed);
  }
  const std::uint64_t ends = started + wait_for_word_ns(options_.timeout_ns);
  while (posix::now_ns() < ends) {
    if (board_.aborted()) throw_first_cause();
    const Life life = board_.life(world_peer);
    // Only dead ranks are blamed at once: a rank that is marked finished may yet be reported as failed by its launcher.
    if (life == Life::killed || life == Life::exited) throw_gone(world_peer, op, sequence);
    if (options_.watch != nullptr && !is_near(world_peer)) {
      options_.watch->look();
      check_carrier(detail);
      const int carrier = options_.watch->first();
      if (options_.watch->note_stopped({&carrier, 1}))
        throw blamed(Cause::stalled, carrier,
                     fmt::format("rank {} is stopped, and with it the news of other nodes; {}", carrier, detail));
    }
    posix::sleep_ns(2'000'000);
  }
  if (board_.life(world_peer) == Life::finished) throw_gone(world_peer, op, sequence);
  // The connection failed, not the peer, so the error names this rank's operation; throw_gone() is for peers that ended.
  throw Error(Cause::disconnected, detail, world_peer, std::string(name(op)), sequence);
}

/// Explains a cycle of waits in which nothing moved until the deadline: if one of its ranks has completed the collective in which
/// another waits for it, its message was lost, unless a slow or late link still holds it. If it was lost, appends the rank that
/// waits in vain to the chain, so that this rank is named. Returns text to append to the error; empty if there is no such rank.
/// Doesn't consider sends and receives, since the board doesn't record which of them are complete.
std::string Engine::why_it_never_came(FlightBoard::Chain& chain) const {
  std::string held;
  for (const int rank : chain.ranks) {
    // A message to a stopped rank may have arrived without being noticed.
    if (board_.stopped(rank)) continue;
    for (int i = 0; i < kQueues; ++i) {
      const std::optional<Activity> here = board_.activity(rank, static_cast<Stream>(i));
      if (!here || !is_collective(here->op) || here->since_ns == 0) continue;
      const int peer = here->waiting_for;
      if (peer < 0 || peer >= board_.ranks() || peer == rank) continue;
      if (board_.finished(peer, here->group, here->stream) < here->group_sequence) continue;
      if (here->withheld) {
        held = fmt::format(
            "; rank {} is past group operation {}, in which rank {} waits: a slow or late link still holds its message", peer,
            here->group_sequence, rank);
        continue;
      }
      chain.ranks.push_back(rank);
      return fmt::format("; rank {} is past group operation {}, in which rank {} waits for it: a message was lost on the way",
                         peer, here->group_sequence, rank);
    }
  }
  return held;
}

void Engine::check_deadline(WaitState& state, std::uint64_t now) {
  FlightBoard::Chain chain = board_.wait_chain(world_rank_);
  std::uint64_t ticks = 0;
  for (std::size_t i = chain.cycle ? 0 : chain.ranks.size() - 1; i < chain.ranks.size(); ++i) {
    ticks += board_.page(chain.ranks[i]).ticks.load(relaxed);
  }
  if (state.chain_since_ns == 0 || chain.ranks != state.chain || ticks != state.chain_ticks) {
    state.chain = chain.ranks;
    state.chain_ticks = ticks;
    state.chain_since_ns = now;
    return;
  }
  // Where no launcher does, a node's first rank carries what is known of its others. If it has stopped, they stand still on the
  // board, and its silence is about to be noticed: that is the cause, not one of them.
  const bool by_news = options_.watch != nullptr && !std::ranges::all_of(chain.ranks, [&](int rank) { return is_near(rank); });
  if (now - state.chain_since_ns < options_.timeout_ns + (by_news ? options_.timeout_ns / 4 : 0)) return;
  // Look for stopped processes now; under a launcher, the board shows them already.
  if (options_.watch != nullptr) {
    const int carrier = options_.watch->first();
    std::vector<int> asked = chain.ranks;
    asked.push_back(carrier);
    if (options_.watch->note_stopped(asked)) chain = board_.wait_chain(world_rank_);
    // What the board shows of other nodes is old then.
    if (by_news && board_.stopped(carrier)) {
      fail(Cause::stalled, carrier,
           fmt::format("rank {} gave no sign of life for {:.1f} s (--timeout {:g}): it is stopped, and with it the news of other "
                       "nodes; {}",
                       carrier, seconds(now - state.chain_since_ns), seconds(options_.timeout_ns), board_.describe(chain, now)));
    }
  }
  // A rank that waits gives a sign of life ten times a second or more, so half the timeout is enough to tell that it is silent.
  chain = board_.up_to_silent(std::move(chain), now - options_.timeout_ns / 2);

  std::string waits = board_.describe(chain, now);
  // Outside a cycle, a message may still be with a rank that computes and makes no progress on communication.
  if (chain.cycle) waits += why_it_never_came(chain);
  const int root = chain.ranks.back();
  if (chain.cycle) {
    fail(
        Cause::deadlock, root,
        fmt::format("ranks wait for each other, and nothing moved for {:.1f} s: {}", seconds(now - state.chain_since_ns), waits));
  }
  // If the root computes without ticks, the error suggests what to do.
  const bool computes = !board_.activity(root) && !board_.stopped(root);
  fail(Cause::stalled, root,
       fmt::format("rank {} gave no sign of life for {:.1f} s (--timeout {:g}): {}{}", root, seconds(now - state.chain_since_ns),
                   seconds(options_.timeout_ns), waits,
                   computes ? ". A program that computes longer than that calls context.tick() now and then, or gets a longer "
                              "--timeout"
                            : ""));
}

}  // namespace tsprun::detail
