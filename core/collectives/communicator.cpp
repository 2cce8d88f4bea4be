// Makes groups, chooses algorithms, and signs operations, so that ranks notice if their calls differ. The operations themselves
// are in calls.cpp and messages.cpp.
#include "core/collectives/communicator_state.h"

#include "transport/cause.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace tsprun {

using namespace detail;

namespace detail {

namespace {

Group make_group(Engine& engine, Heap& heap, Staging& staging, std::vector<int> ranks) {
  Group group;
  group.engine = &engine;
  group.heap = &heap;
  group.staging = &staging;
  group.plain_limit = std::numeric_limits<std::size_t>::max();
  int rank = -1;
  std::unordered_set<int> named;
  named.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int world = ranks[i];
    if (world < 0 || world >= engine.world_size()) {
      throw Error(Cause::refused, fmt::format("communicator: member {} is rank {}, but the world has ranks 0 to {}", i, world,
                                              engine.world_size() - 1));
    }
    if (!named.insert(world).second) {
      throw Error(Cause::refused, fmt::format("communicator: rank {} is named twice", world));
    }
    Group::Member member{.world = world, .node = engine.route(world).node};
    if (world == engine.world_rank()) {
      rank = static_cast<int>(i);
    } else {
      const Route& route = engine.route(world);
      if (route.transport == nullptr && !engine.options().phantom) {
        throw Error(Cause::refused,
                    fmt::format("communicator: no transport leads from rank {} to rank {}", engine.world_rank(), world), world);
      }
      member.transport = route.transport;
      member.peer = route.peer;
      if (engine.options().phantom) {
        member.can_view = route.phantom.views;
        group.plain_limit = std::min(group.plain_limit, route.phantom.plain_limit);
      } else {
        member.can_view = route.transport->can_view(route.peer);
        group.plain_limit = std::min(group.plain_limit, route.transport->plain_limit());
      }
      group.views = group.views && member.can_view;
    }
    group.members.push_back(member);
  }
  if (rank < 0) {
    throw Error(Cause::refused, fmt::format("communicator: rank {} makes a group of {} ranks that it isn't a member of",
                                            engine.world_rank(), ranks.size()));
  }
  group.rank = rank;
  group.ranks = std::move(ranks);
  group.id = engine.new_group(group.ranks);
  lay_out(group);
  return group;
}

}  // namespace

CommunicatorState::CommunicatorState(Engine& engine, Heap& heap, Staging& staging, const ChoiceTable& table,
                                     std::vector<int> members, Channel kind)
    : group(make_group(engine, heap, staging, std::move(members))), choices(&table) {
  const bool real = !engine.options().phantom && engine.options().counted == nullptr;
  if (kind == Channel::own && real && size() > 1) channel = std::make_unique<Own>(group);
}

CommunicatorState::Own::Own(const Group& by_lanes) : channel(*by_lanes.engine, by_lanes.ranks, by_lanes.id), group(by_lanes) {
  group.channel = &channel;
  group.views = false;
  for (Group::Member& member : group.members) {
    member.can_view = false;
    if (member.transport != nullptr) member.transport = &channel.way(member.world);
  }
  lay_out(group);
}

Communicator CommunicatorState::make(Engine& engine, Heap& heap, Staging& staging, const ChoiceTable& table,
                                     std::vector<int> members, Channel kind) {
  return Communicator(std::make_shared<CommunicatorState>(engine, heap, staging, table, std::move(members), kind));
}

}  // namespace detail

Communicator::Communicator(std::shared_ptr<CommunicatorState> state) : state_(std::move(state)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

int Communicator::rank() const { return state_->rank(); }
int Communicator::size() const { return state_->size(); }
int Communicator::world_rank(int group_rank) const { return state_->world_rank(group_rank); }
std::span<const int> Communicator::members() const { return state_->group.ranks; }
Algorithm Communicator::algorithm(Op op, std::size_t bytes) const { return state_->choose(op, bytes, {}).algorithm; }
std::string Communicator::why_not_hierarchical(Op op) const { return state_->why_not(op, Algorithm::hierarchical); }

// --- groups ------------------------------------------------------------------------------------------------------------------

Communicator Communicator::subgroup(std::span<const int> group_ranks, Channel channel) const {
  std::vector<int> ranks;
  ranks.reserve(group_ranks.size());
  for (const int member : group_ranks) {
    if (member < 0 || member >= size()) {
      throw Error(Cause::refused, fmt::format("subgroup: {} is no rank of this group, which has 0 to {}", member, size() - 1));
    }
    ranks.push_back(world_rank(member));
  }
  const Group& group = state_->group;
  return CommunicatorState::make(*group.engine, *group.heap, *group.staging, *state_->choices, std::move(ranks), channel);
}

Communicator Communicator::split(int colour, int key) {
  struct Vote {
    std::int32_t colour;
    std::int32_t key;
  };
  const Vote mine{colour, key};
  std::vector<Vote> votes(static_cast<std::size_t>(size()));
  all_gather(ConstBuffer(&mine, sizeof mine, DType::byte), Buffer(votes.data(), votes.size() * sizeof(Vote), DType::byte));
  std::vector<int> alike;
  for (int r = 0; r < size(); ++r) {
    if (votes[static_cast<std::size_t>(r)].colour == colour) alike.push_back(r);
  }
  std::stable_sort(alike.begin(), alike.end(), [&votes](int a, int b) {
    return votes[static_cast<std::size_t>(a)].key < votes[static_cast<std::size_t>(b)].key;
  });
  return subgroup(alike);
}

// --- calls -------------------------------------------------------------------------------------------------------------------

namespace detail {

const AlgorithmRow& CommunicatorState::choose(Op op, std::size_t bytes, const CallOptions& options) const {
  const Algorithm wanted = options.algorithm;
  if (wanted != Algorithm::automatic && !has_algorithm(op, wanted)) {
    throw Error(Cause::refused,
                fmt::format("{}: there is no algorithm {} for it; {} {} there", name(op), name(wanted), algorithm_names(op),
                            algorithm_names(op).find(" and ") == std::string::npos ? "is" : "are"));
  }
  if (size() == 1) return *find_algorithm(op, Algorithm::direct);
  if (wanted == Algorithm::automatic) return *find_algorithm(op, choices->choose(op, bytes, in_order().shape()));
  if (const std::string why = why_not(op, wanted); !why.empty())
    throw Error(Cause::refused, fmt::format("{}: it can't be {}: {}", name(op), name(wanted), why));
  return *find_algorithm(op, wanted);
}

Call CommunicatorState::describe(const CheckedCall& call, const AlgorithmRow& algorithm, const CallOptions& options) {
  const int root = call.arguments.root;
  const Stream stream = queue(options);
  // The buffer that every rank has.
  const ConstBuffer own =
      call.op == Op::broadcast || call.op == Op::scatter ? ConstBuffer(call.arguments.recv) : call.arguments.send;
  Signed all{.op = static_cast<std::uint64_t>(call.op),
             .dtype = static_cast<std::uint64_t>(own.dtype),
             .reduction = static_cast<std::uint64_t>(call.reduction),
             .algorithm = static_cast<std::uint64_t>(algorithm.algorithm),
             .root = root,
             .other = 0,
             .count = call.agreement.count,
             .counts = 0,
             .group = group.id};
  if (const auto counts = call.agreement.counts; !counts.empty()) all.counts = XXH3_64bits(counts.data(), counts.size_bytes());
  return {.group = &in_order(),
          .keep = nullptr,
          .stream = stream,
          .info = {.op = call.op,
                   .dtype = own.dtype,
                   .reduction = call.reduction,
                   .root = root < 0 ? -1 : world_rank(root),
                   .bytes = own.bytes(),
                   .group = group.id,
                   .group_sequence = ++sequence[static_cast<std::size_t>(stream)],
                   .signature = XXH3_64bits(&all, sizeof all),
                   .purpose = options.purpose,
                   .relayed = algorithm.relayed}};
}

Work CommunicatorState::start(Mode mode, CheckedCall&& call, const CallOptions& options) {
  const AlgorithmRow& algorithm = choose(call.op, call.bytes, options);
  return start(mode, describe(call, algorithm, options), algorithm.start, std::move(call.arguments));
}

Work CommunicatorState::start(Mode mode, Call&& call, Start* algorithm, Arguments&& arguments) {
  Engine& engine = *group.engine;
  if (mode == Mode::blocking) {
    call.blocking = true;
    Collective operation(call, algorithm, arguments);
    engine.run(call.stream, operation);
    return {};
  }
  call.keep = {shared_from_this(), &group};
  const std::uint64_t held = group.heap->use().total;
  std::unique_ptr<Collective> operation(new (engine.frames()) Collective(call, algorithm, std::move(arguments)));
  if (group.heap->use().total != held) operation->set_holds_memory();
  return engine.post(call.stream, std::move(operation));
}

}  // namespace detail
}  // namespace tsprun
