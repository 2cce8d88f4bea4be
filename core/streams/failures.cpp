// How the engine ends a job: a rank's error becomes the job's failure on the board, and the first of all ranks' is what every
// rank throws. Also says what came in place of the message that an operation waited for.
#include "core/board/peer_watch.h"
#include "core/streams/engine.h"
#include "core/streams/tag.h"
#include "transport/posix.h"

#include <fmt/format.h>

namespace tsprun::detail {

namespace {

/// Longest time that a rank keeps the job's failure from its program, so that other nodes are told before the process ends.
constexpr std::uint64_t kUntoldNs = 2'000'000'000;

/// Returns in what two ranks' calls of the same operation, type and reduction differ, as far as the board shows it. `theirs`:
/// what the other rank is in.
std::string difference(const OperationInfo& mine, const std::optional<Activity>& theirs) {
  const bool is_shown =
      theirs && theirs->op == mine.op && theirs->group == mine.group && theirs->group_sequence == mine.group_sequence;
  const bool takes_equal_counts = mine.op == Op::all_reduce || mine.op == Op::reduce || mine.op == Op::broadcast;
  if (is_shown && takes_equal_counts && theirs->bytes != mine.bytes) return "the counts differ";
  if (is_shown && theirs->root != mine.root) return "the roots differ";
  return "what differs may be this or another rank's count, the root, the tag or the algorithm";
}

}  // namespace

/// Returns " (tp)" for a group that has this name, else nothing.
std::string Engine::named(std::uint64_t group) const {
  const std::string_view name = name_of(group);
  return name.empty() ? std::string() : fmt::format(" ({})", name);
}

void Engine::break_down(const Error& error) {
  broken_ = true;
  Failure failure = failure_of(error);
  if (failure.rank < 0) failure.rank = world_rank_;
  // If the culprit is another rank, this rank's operation isn't named: it is on this rank's page of the board.
  if (failure.op.empty() && failure.rank == world_rank_) {
    if (const std::optional<Activity> here = board_.activity(world_rank_)) {
      failure.op = name(here->op);
      failure.sequence = here->sequence;
    }
  }
  board_.note_first_error(world_rank_, failure);
  board_.abort(failure);
  throw_first_cause();
}

/// Throws the first failure of the job, for every rank the same.
void Engine::throw_first_cause() {
  broken_ = true;
  if (!stepped_) abandon();  // else the operation that is being stepped would be deleted; step_head() does it after that
  // The program may end at once because of the exception, and the courier with it.
  const std::uint64_t told_by = posix::now_ns() + kUntoldNs;
  const auto nobody_tells = [&] {
    if (options_.watch == nullptr) return false;
    options_.watch->look();
    return board_.life(options_.watch->first()) == Life::exited;
  };
  while (board_.node().untold.load() != 0 && posix::now_ns() < told_by && !nobody_tells()) posix::sleep_ns(1'000'000);
  board_.node().untold.store(0);  // nobody waits a second time
  const Failure first = board_.first_failure();
  Failure mine = first;
  mine.detail = "ended with the job: " + first.detail;
  board_.note_first_error(world_rank_, mine);
  throw Error(first.cause, first.detail, first.rank, first.op, first.sequence);
}

void Engine::fail(Cause cause, int culprit, const std::string& detail) { throw blamed(cause, culprit, detail); }

Error Engine::blamed(Cause cause, int culprit, const std::string& detail) const {
  std::string op;
  std::uint64_t sequence = 0;
  if (culprit >= 0 && culprit < board_.ranks()) {
    if (const std::optional<Activity> there = board_.activity(culprit)) {
      op = name(there->op);
      sequence = there->sequence;
    }
  }
  return {cause, detail, culprit, op, sequence};
}

void Engine::fail_receive(Outcome outcome, int world_peer, LaneId lane, Transport& transport, const OperationInfo& mine) {
  const Found found = transport.found(lane);
  // Show on the board, and so in the verdict, that this rank waited for the peer.
  if (lane.stream == kTagged && stepped_ != nullptr) show(kTagged, *stepped_);
  ActivityLine& now_here = line(lane.stream);
  if (now_here.since_ns.load(relaxed) == 0) now_here.since_ns.store(clock().now_ns(), relaxed);
  now_here.waiting_for.store(world_peer, relaxed);
  page_->blocked_on.store(static_cast<std::int32_t>(lane.stream) + 1, relaxed);
  const std::string me = fmt::format("rank {} is in {} ({} B of its own)", world_rank_,
                                     describe_tag(make_tag(mine.op, mine.dtype, mine.reduction, 0)), mine.bytes);
  switch (outcome) {
    case Outcome::corrupt:
      throw Error(Cause::corrupt,
                  fmt::format("{}; a message from rank {} is damaged: {}", me, world_peer,
                              found.detail.empty() ? "its length, place or number can't be" : found.detail),
                  world_peer, std::string(name(mine.op)), line(lane.stream).sequence.load(relaxed));
    case Outcome::disconnected:
      lost(world_peer, mine.op,
           fmt::format("{}; the way to rank {} is cut{}{}", me, world_peer, found.detail.empty() ? "" : ": ", found.detail));
    default: break;
  }
  std::string they = fmt::format("sent a message of {} ({} B, group operation {})", describe_tag(found.envelope.tag), found.bytes,
                                 found.envelope.sequence);
  const std::optional<Activity> there = board_.activity(world_peer, lane.stream);
  if (there) they += " and is in " + there->describe(0);
  if (found.envelope.sequence > mine.group_sequence) {
    they += fmt::format(", but its message of group operation {} never came: it was lost, or never sent", mine.group_sequence);
  } else if (found.envelope.sequence == mine.group_sequence && found.envelope.signature == mine.signature &&
             found.envelope.tag >> 16 != 0) {
    they += ", which isn't the next of this operation: what should have come before it was lost";
  } else if (found.envelope.sequence == mine.group_sequence &&
             found.envelope.tag == make_tag(mine.op, mine.dtype, mine.reduction, 0)) {
    they += "; " + difference(mine, there);
  }
  throw Error(
      Cause::mismatch,
      fmt::format(
          "{}, group operation {}{}; rank {} {}. All ranks of a group must call the same operations in the same order with "
          "the same arguments",
          me, mine.group_sequence, named(mine.group), world_peer, they),
      world_rank_, std::string(name(mine.op)), line(lane.stream).sequence.load(relaxed));
}

}  // namespace tsprun::detail
