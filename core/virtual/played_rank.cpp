// Makes operations out of a program's calls.
#include "core/virtual/played_rank.h"

#include "core/collectives/collective.h"
#include "core/collectives/registry.h"
#include "core/memory/address_space.h"
#include "core/virtual/folding.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace tsprun::detail {

namespace {

/// Address space of a played rank: larger than all that a program may hold at once.
constexpr std::size_t kImagined = std::size_t{1} << 36;

std::vector<Route> routes_of(sim::SimWorld& world, int rank) {
  std::vector<Route> routes(static_cast<std::size_t>(world.ranks));
  for (int other = 0; other < world.ranks; ++other) {
    Route& route = routes[static_cast<std::size_t>(other)];
    route.node = other / world.ranks_per_node;
    route.kind = "sim";
    if (other == rank) continue;
    route.transport = world.transports[static_cast<std::size_t>(rank)].get();
    route.peer = other;
  }
  return routes;
}

/// Returns the algorithm by which a call is played. Throws Error(refused) if ranks that stand for others can't make it.
Start* foldable(const ProgramCall& call, std::size_t ranks, bool circle) {
  if (Start* const start = folded_algorithm(call, ranks, circle); start != nullptr) return start;
  throw Error(Cause::refused,
              fmt::format("a {} among ranks of which some stand for others can't be played: some of them would do what "
                          "others don't; play every rank",
                          name(call.op)));
}

}  // namespace

PlayedRank::PlayedRank(sim::SimWorld& world, int rank, const Program& program, shm::NodeMemory& memory)
    : program_(program),
      grid_(world.grid),
      imagined_(imagine_address_space(kImagined)),
      heap_(imagined_.bytes, 0, {}),
      staging_(heap_),
      engine_(FlightBoard(memory), rank, routes_of(world, rank), memory.doorbell(0),
              {.counted = &world.transports[static_cast<std::size_t>(rank)]->chores(), .clock = &world.timeline}) {}

PlayedRank::Member& PlayedRank::member_of(std::uint64_t group) {
  Member& member = groups_[group];
  if (member.state == nullptr) {
    const std::vector<int>& members = program_.groups.at(group);
    member.folded = std::ranges::any_of(members, [this](int rank) { return rank >= grid_.unit; });
    member.circle = is_circle(members, grid_);
    member.state = std::make_shared<CommunicatorState>(engine_, heap_, staging_, choices_, members);
  }
  return member;
}

void PlayedRank::post(const ProgramItem& item) {
  const ProgramCall& call = program_.calls[item.index];
  const auto stream = static_cast<Stream>(item.stream);
  if (stream == kTagged) {
    throw Error(Cause::refused,
                fmt::format("a {} with a tag can't be played: what it takes depends on what comes first", name(call.op)));
  }
  Member& member = member_of(call.group);
  OperationInfo info = call;
  Arguments arguments = call.arguments;
  // All buffers overlap, since nobody looks at them; but what is in place stays there.
  arguments.recv.data = imagined_.bytes.data();
  arguments.send.data = arguments.recv.data + (call.sent_from == ProgramCall::kElsewhere ? kImagined / 2 : call.sent_from);
  // Messages are numbered by sender, receiver and stream, collectives by group and stream.
  const auto number = [&](int other, std::uint64_t direction) {
    return ++member.messages[(static_cast<std::uint64_t>(other) * kQueues + item.stream) * 2 + direction];
  };
  constexpr std::uint64_t kOut = 0;
  constexpr std::uint64_t kIn = 1;
  switch (call.op) {
    case Op::send: info.group_sequence = number(call.root, kOut); break;
    case Op::recv: info.group_sequence = number(call.root, kIn); break;
    case Op::send_recv:
      info.group_sequence = number(call.root, kOut);
      arguments.expected.group_sequence = number(call.source, kIn);
      break;
    default: info.group_sequence = ++member.sequence[item.stream]; break;
  }
  const AlgorithmRow& row = row_of(call.op, call.algorithm);
  if (const std::string_view why = row.why_not == nullptr ? "" : row.why_not(member.state->group.shape()); !why.empty()) {
    throw Error(Cause::refused, fmt::format("{} was recorded as {}, which can't run on this fabric: {}", name(call.op),
                                            name(row.algorithm), why));
  }
  const Call made{.group = &member.state->group, .keep = nullptr, .stream = stream, .info = info};
  std::unique_ptr<Operation> operation(new (engine_.frames()) Collective(
      made, member.folded ? foldable(call, member.state->group.members.size(), member.circle) : call.algorithm,
      std::move(arguments)));
  posted_[item.stream].push_back(engine_.post(stream, std::move(operation)));
}

bool PlayedRank::is_complete(std::uint8_t stream, std::uint64_t number) {
  if (number > posted_[stream].size()) {
    throw Error(Cause::refused, fmt::format("a program waits for operation {} on stream {}, and has posted {}", number,
                                            name(static_cast<Stream>(stream)), posted_[stream].size()));
  }
  return has_completed(stream, number) && (number == 0 || posted_[stream][number - 1].test());
}

bool PlayedRank::has_completed(std::uint8_t stream, std::uint64_t number) const {
  return number == 0 || engine_.completed(static_cast<Stream>(stream)) >= posted_before_[stream] + number;
}

void PlayedRank::begin_again() {
  for (std::size_t stream = 0; stream < kQueues; ++stream) posted_before_[stream] += posted_[stream].size();
  for (std::vector<Work>& works : posted_) works.clear();
}

std::string PlayedRank::describe_wait(std::uint8_t stream, std::uint64_t number) {
  std::string_view what = "operation";
  for (const ProgramItem& item : program_.items) {
    const bool posts = item.kind == ItemKind::post || item.kind == ItemKind::call;
    if (posts && item.stream == stream && item.amount == number) what = name(program_.calls[item.index].op);
  }
  const Operation* running = engine_.running(static_cast<Stream>(stream));
  const int missing = running == nullptr ? -1 : running->waiting_for();
  return fmt::format("{} #{} on stream {}{}", what, number, name(static_cast<Stream>(stream)),
                     missing < 0 ? "" : fmt::format(", for rank {}", missing));
}

}  // namespace tsprun::detail
