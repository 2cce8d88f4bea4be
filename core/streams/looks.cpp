// What a rank looks for while operations are pending: arguments that don't agree, ranks that are gone or silent, ways that are
// cut, and waits that never end. Each throws an error that blames the rank where it began.
#include "core/board/peer_watch.h"
#include "core/streams/engine.h"
#include "core/streams/wait_state.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Returns nanoseconds as seconds.
double seconds(std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

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
                fmt::format("rank {} is in {}, rank {} is in {}: both are operation {} of their group{}, but {}", world_rank_,
                            here ? here->describe(0) : name(mine.op), rank, theirs->describe(0), mine.group_sequence,
                            named(mine.group), differ),
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

/// Returns since when a rank's ticks are unchanged, as far as this one has looked: what it completes makes them grow.
std::uint64_t Engine::ticked(int rank, std::uint64_t now) {
  if (heard_.empty()) heard_.resize(static_cast<std::size_t>(board_.ranks()));
  Heard& heard = heard_[static_cast<std::size_t>(rank)];
  const std::uint64_t ticks = board_.page(rank).ticks.load(relaxed);
  if (heard.since_ns == 0 || heard.ticks != ticks) heard = {.ticks = ticks, .since_ns = now};
  return heard.since_ns;
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
        if (again && (!may_end_badly(peer) || now - suspect_.since_ns >= wait_for_word_ns(options_.timeout_ns)))
          throw_gone(peer, each->info().op, each->sequence_);
        return;
      }
      check_carrier(peer, each->info().op);
      if (life != Life::alive) continue;
      // The rank that carries another node's news may be the silent one: its node is given time to notice that.
      const bool by_news = options_.watch != nullptr && !is_near(peer);
      const std::uint64_t heard = std::max({board_.page(peer).last_sign_ns.load(relaxed), listening_ns_, ticked(peer, now)});
      if (!listens || now < heard + options_.timeout_ns + (by_news ? options_.timeout_ns / 4 : 0)) continue;
      if (options_.watch != nullptr) options_.watch->note_stopped({&peer, 1});
      if (by_news)
        check_stopped_carrier(fmt::format("rank {} waits for rank {} in {}", world_rank_, peer, name(each->info().op)));
      fail(Cause::stalled, peer,
           fmt::format("rank {} gave no sign of life for {:.1f} s (--timeout {:g}): {}, and rank {} waits for it in {} #{}", peer,
                       seconds(now - heard), seconds(options_.timeout_ns), board_.describe({.ranks = {peer}}, now), world_rank_,
                       name(each->info().op), each->sequence_));
    }
  }
  suspect_ = {};
}

/// Returns true while a peer has closed its context, but its process may yet end badly, by an uncaught exception, for instance.
/// Whoever started the ranks shall see that end before those that it makes fail.
bool Engine::may_end_badly(int peer) const {
  if (!options_.supervised && options_.watch == nullptr) return false;
  return !board_.is_over(peer) && board_.life(peer) == Life::finished;
}

/// Throws if the rank waited for is gone. Its last messages may still be in the lane, so it throws only after another poll of the
/// lane, after the rank was seen to be gone, found nothing.
void Engine::check_peer(WaitState& state, std::uint64_t now) {
  const Operation* head = awaited(state);
  const int peer = head == nullptr ? -1 : head->waiting_for();
  if (peer < 0 || peer == world_rank_ || peer >= board_.ranks()) return;
  const Life life = board_.life(peer);
  if (life <= Life::alive) check_carrier(peer, head->info().op);
  if (life == Life::alive || life == Life::unborn) {
    state.suspect = -1;
    state.left_since_ns = 0;
    return;
  }
  if (may_end_badly(peer)) {
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

/// Throws if this rank waits for one of another node and the rank that carries other nodes' news is gone: nobody tells this node
/// then what happens there. If another rank of this node is gone, too, that one is named: whoever started them may have ended the
/// carrier because of it.
void Engine::check_carrier(int peer, Op op) {
  if (options_.watch == nullptr || is_near(peer)) return;
  const int carrier = options_.watch->first();
  if (board_.life(carrier) != Life::exited) return;
  int gone = carrier + 1;
  while (gone < board_.ranks() && !(is_near(gone) && gone != world_rank_ && board_.life(gone) == Life::exited)) ++gone;
  if (gone == board_.ranks()) gone = carrier;
  throw blamed(Cause::exited, gone,
               fmt::format("rank {} {}; rank {} waits for rank {} in {}", gone, how_it_ended(gone), world_rank_, peer, name(op)));
}

/// Throws if the rank that carries other nodes' news is stopped: what the board shows of them is old then. `detail`: what this
/// rank waits for there.
void Engine::check_stopped_carrier(const std::string& detail) {
  if (options_.watch == nullptr) return;
  const int carrier = options_.watch->first();
  if (!options_.watch->note_stopped({&carrier, 1})) return;
  throw blamed(Cause::stalled, carrier,
               fmt::format("rank {} is stopped, and with it the news of other nodes; {}", carrier, detail));
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
    if (options_.watch != nullptr) options_.watch->look();
    check_carrier(world_peer, op);
    if (!is_near(world_peer)) check_stopped_carrier(detail);
    page_->last_sign_ns.store(posix::now_ns(), relaxed);
    posix::sleep_ns(2'000'000);
  }
  if (board_.life(world_peer) == Life::finished) throw_gone(world_peer, op, sequence);
  // The connection failed, not the peer, so the error names this rank's operation; throw_gone() is for peers that ended.
  throw Error(Cause::disconnected, detail, world_peer, std::string(name(op)), sequence);
}

/// Explains a cycle of waits in which nothing moved until the deadline: if a slow or late link still holds a message for which
/// one of its ranks waits, says so; if one of them has completed the collective in which another waits for it, its message was
/// lost. If one was lost, appends the rank that waits in vain to the chain, so that this rank is named. Returns text to append to
/// the error; empty if there is no such rank. Doesn't consider sends and receives, since the board doesn't record which of them
/// are complete.
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
      if (here->withheld) {
        held = fmt::format("; a slow or late link still holds rank {}'s message, for which rank {} waits in group operation {}",
                           peer, rank, here->group_sequence);
        continue;
      }
      if (board_.finished(peer, here->group, here->stream) < here->group_sequence) continue;
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
    if (options_.watch->note_stopped(chain.ranks)) chain = board_.wait_chain(world_rank_);
    if (by_news) check_stopped_carrier(board_.describe(chain, now));
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
