// How a rank leaves its job in good order. It completes what it has posted and closes its links. Then it waits for the others, as
// MPI_Finalize() does: they may still need its process, and all that they have sent is here when they have finished. What nobody
// has received then never will be: ranks whose calls differed so that each of them was content, such as broadcasts with unlike
// roots.
#include "core/context_parts.h"
#include "core/streams/mail.h"
#include "core/streams/tag.h"
#include "transport/cause.h"
#include "transport/log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail {

namespace {

/// Returns a list for people: "rank 3", "ranks 1, 2".
std::string listed(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

void ContextParts::part(bool completes) {
  std::exception_ptr failure;
  if (std::uncaught_exceptions() <= exceptions_at_start && !std::exchange(parted, true)) {
    try {
      left = part_in_order(completes);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  board.page(world_rank()).left.store(1);
  if (!left) wake_if_last();  // else it has, and each of N ranks would wake all
  if (const auto written = std::move(trace)) written->write();
  if (courier && (left || board.aborted())) courier->part();
  if (failure) std::rethrow_exception(failure);
}

/// Waits at most for the timeout. Returns false if the job has failed, or an operation is pending that isn't to be completed.
/// Throws Error(mismatch) for a message that nobody has received, and what an operation ends in.
bool ContextParts::part_in_order(bool completes) {
  if (board.aborted()) return false;
  const std::uint64_t deadline = engine.clock().now_ns() + timeout_ns();
  if (!engine.idle() && (!completes || engine.given_up())) return false;  // progress would write into buffers that may be gone
  if (!engine.idle() && !finish_posted(deadline)) {
    if (board.aborted()) return false;
    engine.abandon();
  }
  close_links(deadline);
  board.page(world_rank()).life.store(static_cast<std::uint32_t>(Life::finished));
  wake_if_last();
  if (is_phantom()) return true;
  await_others(deadline);
  if (!board.aborted()) check_unreceived();
  return true;
}

/// Completes the pending operations; returns false, with a warning, if that takes too long or nobody is left who could take part.
bool ContextParts::finish_posted(std::uint64_t deadline_ns) {
  int hopeless = 0;
  const auto peers = [this] {
    std::vector<int> ranks;
    for (const Operation* each : engine.stuck()) {
      if (const int peer = each->waiting_for(); peer >= 0 && std::ranges::find(ranks, peer) == ranks.end()) ranks.push_back(peer);
    }
    return ranks;
  };
  const bool over = engine.rest_until(
      [&] {
        if (engine.idle() || board.aborted()) return true;
        // Their last messages may have come between a step and this look: one step more finds them.
        const std::vector<int> awaited = peers();
        const bool all_left = !awaited.empty() && std::ranges::all_of(awaited, [&](int rank) { return board.has_parted(rank); });
        hopeless = all_left ? hopeless + 1 : 0;
        return hopeless > 2;
      },
      deadline_ns);
  if (board.aborted()) return false;
  if (over && engine.idle()) return true;
  const std::vector<const Operation*> stuck = engine.stuck();
  logger().warn(
      "rank {} leaves the job although its {} isn't complete: {}{}", world_rank(),
      stuck.empty() ? "operation" : name(stuck.front()->info().op),
      peers().empty() ? "it isn't known why" : "it waits for " + listed(peers()),
      hopeless > 0 ? ", which has left" : fmt::format(" (for {:g} s, --timeout)", static_cast<double>(timeout_ns()) * 1e-9));
  return false;
}

/// Waits until everything that this rank has sent has arrived.
void ContextParts::close_links(std::uint64_t deadline_ns) {
  while (!links.close() && !board.aborted() && engine.clock().now_ns() < deadline_ns) posix::sleep_ns(100'000);
}

/// Wakes the ranks of this node if all have finished: those that wait for that needn't be woken by each of many.
void ContextParts::wake_if_last() const {
  for (int i = 0; i < static_cast<int>(memory->layout().local_ranks); ++i) {
    if (!board.has_parted(static_cast<int>(job.first_rank) + i)) return;
  }
  board.ring_all();
}

/// Returns true if a rank waits for this one, which will send nothing more: it has looked in vain twice since this one finished.
bool ContextParts::is_awaited(std::vector<Look>& looks) {
  looks.resize(static_cast<std::size_t>(board.ranks()));
  for (int rank = 0; rank < board.ranks(); ++rank) {
    Look& last = looks[static_cast<std::size_t>(rank)];
    const std::uint64_t sign_ns = board.page(rank).last_sign_ns.load(relaxed);
    if (rank == world_rank() || board.waits_for(rank) != world_rank()) last = {};
    else if (sign_ns != last.sign_ns) last = {.sign_ns = sign_ns, .count = last.count + 1};
    if (last.count > 2) return true;
  }
  return false;
}

/// Waits until all other ranks have finished or are gone, or one waits for this one, whose process's end then tells it how that
/// came; after the deadline, warns of those that haven't.
void ContextParts::await_others(std::uint64_t deadline_ns) {
  const auto missing = [this] {
    std::vector<int> ranks;
    for (int rank = 0; rank < board.ranks(); ++rank) {
      if (rank != world_rank() && !board.has_parted(rank) && !links.parted(rank)) ranks.push_back(rank);
    }
    return ranks;
  };
  int first = 0;  // all before it have finished
  std::vector<Look> looks;
  const auto all_have = [&] {
    while (first < board.ranks() && (first == world_rank() || board.has_parted(first) || links.parted(first))) ++first;
    return first == board.ranks() || board.aborted() || is_awaited(looks);
  };
  if (engine.rest_until(all_have, deadline_ns)) return;
  const std::vector<int> ranks = missing();
  logger().warn("rank {} is done, and has waited {:g} s (--timeout, TSP_TIMEOUT) for {} to finish, too: it leaves the job now",
                world_rank(), static_cast<double>(timeout_ns()) * 1e-9, listed(ranks));
}

/// Ends the job because of a message to this rank that nobody here has received.
void ContextParts::check_unreceived() {
  const auto fail = [this](int from, const std::string& what) {
    engine.break_down(
        Error(Cause::mismatch,
              fmt::format("rank {} has sent a message of {} that rank {} hasn't received, and both have finished. All "
                          "ranks of a group must call the same operations, with the same root; a message needs its recv",
                          from, what, world_rank()),
              world_rank()));
  };
  // A rank that hasn't finished, or whose operations were given up, isn't content.
  const auto is_content = [this](int rank) { return board.life(rank) == Life::finished || links.parted(rank); };
  for (const Links::Unreceived& each : links.unreceived()) {
    if (!is_content(each.from)) continue;
    if (each.stream == kTagged) {
      engine.mail()->take_in(each.from);
      continue;
    }
    fail(each.from, fmt::format("{} ({} B, number {} on stream {})", describe_tag(each.found.envelope.tag), each.found.bytes,
                                each.found.envelope.sequence, name(each.stream)));
  }
  if (const auto parked = engine.mail()->unreceived(); parked && is_content(parked->from)) {
    const Mail::Header& header = parked->header;
    fail(parked->from, header.tag == kNoTag ? fmt::format("its group's channel ({} B)", header.bytes)
                                            : fmt::format("{} ({} B, tag {})", name(header.dtype), header.bytes, header.tag));
  }
}

}  // namespace tsprun::detail
