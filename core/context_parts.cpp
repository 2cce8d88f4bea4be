// Puts a rank together, and takes its links apart.
#include "core/context_parts.h"

#include "transport/bootstrap/placement.h"
#include "transport/cause.h"
#include "transport/shm/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unistd.h>

namespace tsprun::detail {

namespace {

constexpr std::uint64_t kDefaultTimeout_ns = 30'000'000'000;

static_assert(PhantomPeer{}.plain_limit == shm::kEagerBytes);

/// Returns how far from its start the heap is likely to be used. Memory that is registered with a NIC isn't given back, so with
/// a budget the heap's blocks spread over somewhat more than the budget.
std::size_t likely_reach(std::uint64_t budget) {
  constexpr std::uint64_t kSpreadOver = 2;
  return budget == 0 || budget > ~std::uint64_t{0} / kSpreadOver ? ~std::size_t{0} : budget + budget / kSpreadOver;
}

}  // namespace

ContextParts::ContextParts(std::optional<shm::NodeMemory> owned, shm::NodeMemory* borrowed, int rank,
                           const ContextOptions& options, const std::vector<int>& pids, AddressSpace of_phantom,
                           const std::vector<PhantomPeer>& phantom_peers)
    : owned_memory(std::move(owned)),
      memory(owned_memory ? &*owned_memory : borrowed),
      job(bootstrap::job_of(*memory)),
      local_rank(checked(rank)),
      board(joined(*memory)),
      imagined(std::move(of_phantom)),
      heap(
          is_phantom() ? imagined_heap(options.heap_budget) : memory->heap(local_rank), options.heap_budget,
          [this](std::size_t offset, std::size_t bytes) { commit(offset, bytes); },
          [this](std::size_t offset, std::size_t bytes) { return release(offset, bytes); }),
      faults(options.faults, options.struck_faults, world_rank(), heap, board),
      watch(pids.empty() ? std::nullopt : std::optional<PeerWatch>(std::in_place, board, static_cast<int>(job.first_rank), pids)),
      links(*memory, job, local_rank,
            {.timeout_ns = timeout_ns(),
             .heap_expected = likely_reach(options.heap_budget),
             .gbps = options.link_gbps,
             .faults = options.faults,
             .strikes = faults.strikes(),
             .check = [this] { look_while_connecting(); }}),
      staging(heap),
      engine(board, world_rank(), with_phantoms(finished(links.routes(), options.verify), phantom_peers),
             memory->doorbell(local_rank),
             {.timeout_ns = timeout_ns(),
              .oversubscribed = memory->layout().local_ranks > job.cores,
              .cores = own_cores(),
              .watch = watch ? &*watch : nullptr,
              .supervised = job.supervised != 0,
              .blocking = options.blocking,
              .faults = faults.any() ? &faults : nullptr,
              .clock = options.clock,
              .phantom = is_phantom()}),
      algorithms(options.algorithms),
      choices(options.algorithms, options.reassociate) {
  std::vector<int> all(memory->layout().world_size);
  std::iota(all.begin(), all.end(), 0);
  world = CommunicatorState::make(engine, heap, staging, choices, std::move(all));
  mail = engine.mail();
  if (!is_phantom()) check_choices();
  RankPage& page = board.page(world_rank());
  heap.show(page.progress.memory, page.progress.memory_peak);
  page.life.store(static_cast<std::uint32_t>(Life::alive), std::memory_order_release);
}

/// Registers this process as the rank and returns the board. A rank can join only once, because its lanes still hold what an
/// earlier program sent. Throws Error(refused) if it joined before.
FlightBoard ContextParts::joined(const shm::NodeMemory& node) const {
  const FlightBoard all(node);
  const auto me = static_cast<std::uint32_t>(::getpid());
  if (const std::uint32_t earlier = all.join(world_rank(), me); earlier != 0) {
    throw Error(Cause::refused,
                fmt::format("rank {} has joined the job already, as {}: a rank has one Context, in one program; start `tsprun "
                            "run` once for each program",
                            world_rank(), earlier == me ? "this process" : fmt::format("process {}", earlier)),
                world_rank());
  }
  return all;
}

/// Throws Error(refused) if an override of the choice table asks for an algorithm that can't run on the job. Groups that can't
/// have one which the job can have take the next row that fits.
void ContextParts::check_choices() const {
  if (world->size() == 1) return;
  for (const ChoiceRow& row : choices.overrides()) {
    const std::string why = CommunicatorState::of(*world).why_not(row.op, row.algorithm);
    if (why.empty()) continue;
    throw Error(Cause::refused, fmt::format("TSP_ALGORITHMS={}: {}={}: {}", algorithms, name(row.op), name(row.algorithm), why));
  }
}

/// Returns as much of a phantom's address space as a real heap with this budget would have.
std::span<std::byte> ContextParts::imagined_heap(std::uint64_t budget) const {
  const std::span<std::byte> all = imagined.bytes;
  return budget == 0 ? all : all.first(std::min<std::uint64_t>(all.size(), Heap::reservation_for(budget)));
}

int ContextParts::checked(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(memory->layout().local_ranks)) {
    throw Error(Cause::refused, fmt::format("local rank {} on a node of {} ranks", rank, memory->layout().local_ranks));
  }
  return rank;
}

/// Makes a part of the heap usable, for peers too.
void ContextParts::commit(std::size_t offset, std::size_t bytes) {
  if (is_phantom()) return;
  // Large pages may take long if the system must first make room for them: others must not take this rank for silent meanwhile.
  RankPage& page = board.page(world_rank());
  const auto give_sign = [&page] {
    page.last_sign_ns.store(posix::now_ns(), relaxed);
    page.count_sign();
  };
  const std::span<std::byte> own = memory->heap(local_rank);
  const std::span<std::byte> all = links.registration_of(own.subspan(offset, bytes));
  memory->commit(local_rank, static_cast<std::size_t>(all.data() - own.data()), all.size(), give_sign, own_cores());
  links.register_memory(own.subspan(offset, bytes));
}

/// Gives pages of the heap back to the system; returns false if they can't be, as they are registered with a NIC.
bool ContextParts::release(std::size_t offset, std::size_t bytes) {
  if (is_phantom()) return true;
  return !links.pins_memory() && memory->release(local_rank, offset, bytes);
}

/// Returns how many of the node's cores are this rank's share, at least one.
std::size_t ContextParts::own_cores() const { return std::max<std::size_t>(1, job.cores / memory->layout().local_ranks); }

std::uint64_t ContextParts::timeout_ns() const { return job.timeout_ns != 0 ? job.timeout_ns : kDefaultTimeout_ns; }

/// Adds to the routes the nodes to which they lead and, if `verify`, transports that check payloads.
std::vector<Route> ContextParts::finished(std::vector<Route> routes, bool verify) {
  std::map<Transport*, Transport*> checking;
  for (std::size_t rank = 0; rank < routes.size(); ++rank) {
    Route& route = routes[rank];
    route.node = bootstrap::node_of(static_cast<int>(routes.size()), static_cast<int>(job.nodes), static_cast<int>(rank));
    if (!verify || route.transport == nullptr || route.transport->checks_payloads()) continue;
    Transport*& outer = checking[route.transport];
    if (outer == nullptr) {
      outer = verified.emplace_back(std::make_unique<verify::VerifyTransport>(*route.transport)).get();
    }
    route.transport = outer;
  }
  return routes;
}

/// Adds to a phantom's routes the properties of its peers; without `peers`, all ranks share memory.
std::vector<Route> ContextParts::with_phantoms(std::vector<Route> routes, const std::vector<PhantomPeer>& peers) const {
  for (std::size_t rank = 0; is_phantom() && rank < routes.size(); ++rank) {
    if (!peers.empty()) routes[rank].phantom = peers[rank];
    routes[rank].node = routes[rank].phantom.node;
  }
  return routes;
}

/// Gives a sign of life. Throws the job's failure, or that a rank of this node has ended.
void ContextParts::look_while_connecting() {
  constexpr std::uint64_t kBetweenPolls_ns = 20'000'000;
  const std::uint64_t now = posix::now_ns();
  board.page(world_rank()).last_sign_ns.store(now, relaxed);
  const bool looks = watch && now - watched_ns >= kBetweenPolls_ns;
  if (looks) watch->look();
  throw_if_aborted();
  if (!looks) return;
  watched_ns = now;
  const int first = watch->first();
  for (int rank = first; rank < first + static_cast<int>(memory->layout().local_ranks); ++rank) {
    if (board.life(rank) == Life::exited)
      throw Error(
          Cause::exited,
          fmt::format("rank {} is gone (how it ended isn't known: no tsprun watches it) before all ranks were connected", rank),
          rank);
  }
}

void ContextParts::throw_if_aborted() const {
  if (!board.aborted()) return;
  const Failure first = board.first_failure();
  throw Error(first.cause, first.detail, first.rank);
}

}  // namespace tsprun::detail
