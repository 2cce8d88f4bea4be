// Joins a rank to its job (options from the environment, memory, links, engine), makes phantoms, and handles uncaught exceptions.
#include "core/context.h"

#include "core/board/peer_watch.h"
#include "core/collectives/communicator_state.h"
#include "core/collectives/staging.h"
#include "core/fault/rank_faults.h"
#include "core/links.h"
#include "core/memory/address_space.h"
#include "transport/bootstrap/identity.h"
#include "transport/bootstrap/meeting.h"
#include "transport/bootstrap/placement.h"
#include "transport/cause.h"
#include "transport/environment.h"
#include "transport/shm/lane.h"
#include "transport/verify/verify_transport.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <time.h>
#include <unistd.h>

namespace tsprun {

using namespace detail;

namespace detail {

namespace {

constexpr std::uint64_t kDefaultTimeout_ns = 30'000'000'000;

static_assert(PhantomPeer{}.plain_limit == shm::kEagerBytes);

/// Returns the faults in TSP_FAULTS: texts of --fault, separated by ';'.
std::vector<fault::Spec> faults_of(std::string_view texts) {
  std::vector<fault::Spec> faults;
  while (!texts.empty()) {
    const std::size_t end = std::min(texts.find(';'), texts.size());
    faults.push_back(fault::parse(texts.substr(0, end)));
    texts.remove_prefix(std::min(end + 1, texts.size()));
  }
  return faults;
}

/// Returns a duplicate of the inherited descriptor of node memory. The inherited one stays open in this process, but is closed in
/// programs that it starts.
posix::UniqueFd inherited_memory(int descriptor) {
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0 || ::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    throw Error(
        Cause::refused,
        fmt::format("TSP_NODE_FD={}: {}. It is inherited by a rank's program alone, not by what that starts in its turn: only "
                    "one process joins for a rank; without TSP_NODE_FD and RANK the program is a world of its own",
                    descriptor, std::strerror(errno)));
  }
  return posix::UniqueFd(own);
}

ContextOptions options_of(const Environment& environment) {
  ContextOptions options;
  options.heap_budget = environment.mem_per_rank();
  options.algorithms = environment.algorithms();
  options.reassociate = environment.flag("TSP_REASSOCIATE");
  options.verify = environment.flag("TSP_VERIFY");
  options.blocking = environment.flag("TSP_BLOCKING");
  options.link_gbps = environment.link_gbps();
  options.faults = faults_of(environment.faults());
  return options;
}

}  // namespace

namespace {

void install_early_terminate_handler();
void install_terminate_handler(const shm::NodeMemory& memory, int rank);

}  // namespace

/// All that a rank is made of.
struct ContextParts {
  std::optional<shm::NodeMemory> owned_memory;
  shm::NodeMemory* memory;
  bootstrap::JobDescription job;
  int local_rank;
  FlightBoard board;
  AddressSpace imagined;  ///< a phantom's heap; empty for real ranks
  Heap heap;
  RankFaults faults;
  Links links;
  std::vector<std::unique_ptr<verify::VerifyTransport>> verified;  ///< with --verify, around transports that don't check
  std::optional<PeerWatch> watch;
  Staging staging;
  Engine engine;
  std::string algorithms;
  ChoiceTable choices;
  std::optional<Communicator> world;
  int exceptions_at_start = std::uncaught_exceptions();

  ContextParts(std::optional<shm::NodeMemory> owned, shm::NodeMemory* borrowed, int rank, const ContextOptions& options,
               const std::vector<int>& pids, AddressSpace of_phantom = {}, const std::vector<PhantomPeer>& phantom_peers = {})
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
        links(*memory, job, local_rank,
              {.timeout_ns = timeout_ns(),
               .heap_expected = likely_reach(options.heap_budget),
               .gbps = options.link_gbps,
               .faults = options.faults,
               .strikes = faults.strikes(),
               .check =
                   [this] {
                     board.page(world_rank()).last_sign_ns.store(posix::now_ns(), relaxed);
                     throw_if_aborted();
                   }}),
        watch(pids.empty() ? std::nullopt : std::optional<PeerWatch>(std::in_place, board, pids)),
        staging(heap),
        engine(board, world_rank(), with_phantoms(finished(links.routes(), options.verify), phantom_peers),
               memory->doorbell(local_rank),
               {.timeout_ns = timeout_ns(),
                .oversubscribed = memory->layout().local_ranks > job.cores,
                .watch = watch ? &*watch : nullptr,
                .supervised = job.supervised != 0,
                .blocking = options.blocking,
                .faults = faults.any() ? &faults : nullptr,
                .phantom = is_phantom()}),
        algorithms(options.algorithms),
        choices(options.algorithms, options.reassociate) {
    std::vector<int> all(memory->layout().world_size);
    std::iota(all.begin(), all.end(), 0);
    world = CommunicatorState::make(engine, heap, staging, choices, std::move(all));
    if (!is_phantom()) check_choices();
    RankPage& page = board.page(world_rank());
    page.life.store(static_cast<std::uint32_t>(Life::alive), std::memory_order_release);
  }

  /// Registers this process as the rank and returns the board. A rank can join only once, because its lanes still hold what an
  /// earlier program sent. Throws Error(refused) if it joined before.
  FlightBoard joined(const shm::NodeMemory& node) const {
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
  void check_choices() const {
    if (world->size() == 1) return;
    for (const ChoiceRow& row : choices.overrides()) {
      const std::string why = CommunicatorState::of(*world).why_not(row.op, row.algorithm);
      if (why.empty()) continue;
      throw Error(Cause::refused, fmt::format("choice of algorithms: {}={}: {}", name(row.op), name(row.algorithm), why));
    }
  }

  bool is_phantom() const { return !imagined.bytes().empty(); }

  /// Returns as much of a phantom's address space as a real heap with this budget would have.
  std::span<std::byte> imagined_heap(std::uint64_t budget) const {
    const std::span<std::byte> all = imagined.bytes();
    return budget == 0 ? all : all.first(std::min<std::uint64_t>(all.size(), Heap::reservation_for(budget)));
  }

  int checked(int rank) const {
    if (rank < 0 || rank >= static_cast<int>(memory->layout().local_ranks)) {
      throw Error(Cause::refused, fmt::format("local rank {} on a node of {} ranks", rank, memory->layout().local_ranks));
    }
    return rank;
  }

  /// Makes a part of the heap usable, for peers too.
  void commit(std::size_t offset, std::size_t bytes) {
    if (is_phantom()) return;
    memory->commit(local_rank, offset, bytes);
    links.register_memory(memory->heap(local_rank).subspan(offset, bytes));
  }

  /// Returns how far from its start the heap is likely to be used. Memory that is registered with a NIC isn't given back, so with
  /// a budget the heap's blocks spread over somewhat more than the budget.
  static std::size_t likely_reach(std::uint64_t budget) {
    constexpr std::uint64_t kSpreadOver = 2;
    return budget == 0 || budget > ~std::uint64_t{0} / kSpreadOver ? ~std::size_t{0} : budget + budget / kSpreadOver;
  }

  /// Gives pages of the heap back to the system; returns false if they can't be, as they are registered with a NIC.
  bool release(std::size_t offset, std::size_t bytes) {
    if (is_phantom()) return true;
    return !links.pins_memory() && memory->release(local_rank, offset, bytes);
  }

  int world_rank() const { return static_cast<int>(job.first_rank) + local_rank; }
  std::uint64_t timeout_ns() const { return job.timeout_ns != 0 ? job.timeout_ns : kDefaultTimeout_ns; }

  /// Adds to the routes the nodes to which they lead and, if `verify`, transports that check payloads.
  std::vector<Route> finished(std::vector<Route> routes, bool verify) {
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
  std::vector<Route> with_phantoms(std::vector<Route> routes, const std::vector<PhantomPeer>& peers) const {
    for (std::size_t rank = 0; is_phantom() && rank < routes.size(); ++rank) {
      if (!peers.empty()) routes[rank].phantom = peers[rank];
      routes[rank].node = routes[rank].phantom.node;
    }
    return routes;
  }

  void throw_if_aborted() const {
    if (!board.aborted()) return;
    const Failure first = board.failure();
    throw Error(first.cause == Cause::none ? Cause::interrupted : first.cause, first.detail, first.rank);
  }

  /// Waits, at most for the timeout, until everything that this rank has sent has arrived.
  void close_links();

  /// Returns a context that consists of these parts.
  static Context context(std::unique_ptr<ContextParts> parts) { return Context(std::move(parts)); }
  /// Returns the parts of a context.
  static ContextParts& of(const Context& context) { return *context.parts_; }
};

void ContextParts::close_links() {
  const std::uint64_t deadline = posix::now_ns() + timeout_ns();
  while (!links.close() && !board.aborted() && posix::now_ns() < deadline) {
    const timespec pause{0, 100'000};
    ::nanosleep(&pause, nullptr);
  }
}

Context join(shm::NodeMemory memory, int local_rank, const ContextOptions& options) {
  return ContextParts::context(
      std::make_unique<ContextParts>(std::move(memory), nullptr, local_rank, options, std::vector<int>{}));
}

Context join(shm::NodeMemory* memory, int local_rank, const ContextOptions& options) {
  return ContextParts::context(std::make_unique<ContextParts>(std::nullopt, memory, local_rank, options, std::vector<int>{}));
}

}  // namespace detail

Context::Context(std::unique_ptr<ContextParts> parts) : parts_(std::move(parts)) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

Context::~Context() {
  if (!parts_) return;
  const bool in_order =
      std::uncaught_exceptions() <= parts_->exceptions_at_start && parts_->engine.idle() && !parts_->board.aborted();
  if (!in_order) return;
  parts_->close_links();
  RankPage& page = parts_->board.page(rank());
  page.life.store(static_cast<std::uint32_t>(Life::finished), std::memory_order_release);
}

Context Context::from_environment() {
  install_early_terminate_handler();
  const std::optional<bootstrap::Identity> identity = bootstrap::identity_from_environment();
  const Environment environment;
  const ContextOptions options = options_of(environment);
  std::unique_ptr<ContextParts> parts;
  if (!identity) {
    shm::NodeMemory memory = shm::NodeMemory::create_memfd({.heap_bytes = shm::default_heap_bytes()});
    bootstrap::describe_job(memory, {.timeout_ns = environment.timeout_ns()});
    parts = std::make_unique<ContextParts>(std::move(memory), nullptr, 0, options, std::vector<int>{});
  } else if (identity->node_descriptor >= 0) {
    shm::NodeMemory memory = shm::NodeMemory::attach(inherited_memory(identity->node_descriptor));
    memory.claim_bells();
    parts = std::make_unique<ContextParts>(std::move(memory), nullptr, identity->local_rank, options, std::vector<int>{});
  } else {
    bootstrap::Meeting meeting = bootstrap::meet(*identity, environment.timeout_ns());
    parts = std::make_unique<ContextParts>(std::move(meeting.memory), nullptr, identity->local_rank, options, meeting.pids);
  }
  install_terminate_handler(*parts->memory, parts->world_rank());
  return Context(std::move(parts));
}

Context Context::meet(int rank, int size, std::string_view job) {
  if (rank < 0 || rank >= size) throw Error(Cause::refused, fmt::format("meet: rank {} of {}", rank, size));
  const bootstrap::Identity identity{
      .rank = rank, .size = size, .local_rank = rank, .local_size = size, .starter = "a program", .job_id = std::string(job)};
  bootstrap::Meeting meeting = bootstrap::meet(identity, Environment().timeout_ns());
  return Context(
      std::make_unique<ContextParts>(std::move(meeting.memory), nullptr, rank, options_of(Environment()), meeting.pids));
}

namespace detail {

PhantomOptions likeness(const Context& context) {
  const ContextParts& parts = ContextParts::of(context);
  PhantomOptions like{.heap_budget = 0, .peers = {}, .algorithms = parts.algorithms, .reassociate = parts.choices.reassociates()};
  for (const Group::Member& member : CommunicatorState::of(*parts.world).group.members) {
    PhantomPeer& peer = like.peers.emplace_back();
    peer.node = member.node;
    if (member.transport == nullptr) continue;  // this rank itself
    peer.views = member.can_view;
    peer.plain_limit = member.transport->plain_limit();
  }
  return like;
}

Context make_phantom(int rank, int size, const PhantomOptions& like) {
#ifdef TSP_SANITIZE_THREAD
  // ThreadSanitizer supports mappings in 3 TiB of address space only: this leaves room for the phantoms of eight threads.
  constexpr std::size_t kAddressSpace = std::size_t{257} << 30;
#else
  constexpr std::size_t kAddressSpace = std::size_t{1} << 43;
#endif
  if (size < 1 || rank < 0 || rank >= size) throw Error(Cause::refused, fmt::format("phantom rank {} of {}", rank, size));
  // The phantom is on a node of its own, without transports to the others.
  const auto number = static_cast<std::uint32_t>(rank);
  const auto ranks = static_cast<std::uint32_t>(size);
  shm::NodeMemory alone = shm::NodeMemory::create_memfd({.heap_bytes = std::uint64_t{1} << 20, .world_size = ranks});
  bootstrap::describe_job(alone, {.first_rank = number, .node = number, .nodes = ranks});
  ContextOptions options;
  options.heap_budget = like.heap_budget;
  options.algorithms = like.algorithms;
  options.reassociate = like.reassociate;
  if (!like.peers.empty() && like.peers.size() != static_cast<std::size_t>(size)) {
    throw Error(Cause::refused, fmt::format("phantom rank {} of {}: {} peers are described", rank, size, like.peers.size()));
  }
  return ContextParts::context(std::make_unique<ContextParts>(std::move(alone), nullptr, 0, options, std::vector<int>{},
                                                              AddressSpace(kAddressSpace), like.peers));
}

}  // namespace detail

int Context::rank() const { return parts_->engine.world_rank(); }
int Context::size() const { return parts_->engine.world_size(); }
int Context::local_rank() const { return parts_->local_rank; }
int Context::local_size() const { return static_cast<int>(parts_->memory->layout().local_ranks); }
void Context::begin_step(std::uint64_t step) { parts_->faults.at_step(step); }
Communicator& Context::world() { return *parts_->world; }
void Context::tick() { parts_->engine.tick(); }
HeapBlock Context::allocate(std::size_t bytes, std::string_view what, Category category) {
  return parts_->heap.allocate(bytes, what, category);
}
CategoryBytes Context::memory_use() const { return parts_->heap.use(); }
CategoryBytes Context::memory_peaks() const { return parts_->heap.peaks(); }
TrafficCounters Context::traffic() const {
  TrafficCounters sum = parts_->engine.imagined_traffic();
  for (const LinkTraffic& link : parts_->links.traffic()) {
    for (std::size_t i = 0; i < kPurposes; ++i) {
      sum.sent[i] += link.counters.sent[i];
      sum.received[i] += link.counters.received[i];
    }
  }
  return sum;
}
std::vector<LinkTraffic> Context::traffic_by_link() const { return parts_->links.traffic(); }

namespace detail {

Heap& heap_of(Context& context) { return ContextParts::of(context).heap; }
Engine& engine_of(Context& context) { return ContextParts::of(context).engine; }
const FlightBoard& board_of(const Context& context) { return ContextParts::of(context).board; }
const bootstrap::JobDescription& job_of(const Context& context) { return ContextParts::of(context).job; }

// --- uncaught exceptions -----------------------------------------------------------------------------------------------------

namespace {

/// State of the terminate handler. It must be global, because std::terminate takes no argument. The handler may run after the
/// context is gone and must still find the board, so node memory is mapped once more, for good.
struct TerminateState {
  const FlightBoard* board = nullptr;
  int rank = -1;
};
TerminateState terminate_state;
/// Exit code of a process whose rank was refused before it joined; tsprun uses the same.
constexpr int kRefusedCode = 2;
/// The handler that on_terminate() replaced. While there is no board, it handles exceptions that aren't an Error.
std::terminate_handler earlier_handler = nullptr;

void say(const std::string& line) { [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size()); }

[[noreturn]] void on_terminate() {
  Failure failure;
  failure.cause = Cause::exception;
  failure.detail = "std::terminate without an exception";
  bool own_words = false;
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const Error& error) {
      failure = failure_of(error);
      own_words = true;
    } catch (const std::exception& error) {
      failure.detail = error.what();
    } catch (...) {
      failure.detail = "an exception that is no std::exception";
    }
  }
  const FlightBoard* board = terminate_state.board;
  if (board == nullptr) {
    // The rank couldn't join: the error's text says why, and a core dump would add nothing.
    if (own_words) {
      say(fmt::format("tsp: {}\n", failure.detail));
      ::_exit(failure.cause == Cause::refused ? kRefusedCode : 1);
    }
    if (earlier_handler != nullptr) earlier_handler();
    std::abort();
  }
  const bool job_was_over = board->aborted();
  say(fmt::format("rank {}: {}: {}\n", terminate_state.rank, job_was_over ? "ended with the job" : "uncaught exception",
                  failure.detail));
  if (job_was_over) ::_exit(1);  // the cause is another rank's; no core dump for this one
  board->note_first_error(terminate_state.rank, failure);
  if (own_words && failure.cause == Cause::refused) ::_exit(1);  // the user's mistake: no core dump
  std::abort();
}

void install_early_terminate_handler() {
  const std::terminate_handler before = std::set_terminate(on_terminate);
  if (before != on_terminate) earlier_handler = before;
}

/// Makes uncaught exceptions go to the board of the node whose memory this is.
void install_terminate_handler(const shm::NodeMemory& memory, int rank) {
  // A second mapping that is never unmapped: the handler may run after the context is gone.
  static std::optional<shm::NodeMemory> kept;
  kept.emplace(shm::NodeMemory::attach(posix::UniqueFd(::dup(memory.descriptor()))));
  static std::optional<FlightBoard> board;
  board.emplace(*kept);
  terminate_state = {.board = &*board, .rank = rank};
  std::set_terminate(on_terminate);
}

}  // namespace

}  // namespace detail
}  // namespace tsprun
