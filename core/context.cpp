// Joins a rank to its job, with options from the environment, and answers what a program asks of its rank.
#include "core/context.h"

#include "core/context_parts.h"
#include "core/joining.h"
#include "core/streams/mail.h"
#include "core/uncaught.h"
#include "transport/bootstrap/identity.h"
#include "transport/bootstrap/meeting.h"
#include "transport/bootstrap/pmi_store.h"
#include "transport/bootstrap/pmix_store.h"
#include "transport/cause.h"
#include "transport/environment.h"
#include "transport/number.h"
#include "transport/verbs/choice.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace tsprun {

using namespace detail;

namespace detail {

namespace {

/// Returns the faults in TSP_FAULTS for a world of `ranks`: texts of --fault, separated by ';'.
std::vector<fault::Spec> faults_of(std::string_view texts, int ranks) {
  std::vector<fault::Spec> faults;
  while (!texts.empty()) faults.push_back(fault::parse(take_word(texts, ';'), ranks, "TSP_FAULTS"));
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

/// Returns the value of TSP_ALGORITHMS. Throws Error(refused) if ChoiceTable can't read it.
std::string algorithms_of(const Environment& environment) {
  std::string algorithms = environment.algorithms();
  try {
    const ChoiceTable table(algorithms);
  } catch (const Error& error) {
    throw Error(Cause::refused, fmt::format("TSP_ALGORITHMS={}: {}", algorithms, error.what()));
  }
  return algorithms;
}

/// Throws Error(refused) if TSP_RDMA can't be read.
void check_rdma(const Environment& environment) {
  try {
    verbs::DeviceChoice::parse(environment.rdma());
  } catch (const Error& error) {
    constexpr std::string_view kOption = "--rdma ";
    const std::string_view what = error.what();
    throw Error(Cause::refused,
                what.starts_with(kOption) ? fmt::format("TSP_RDMA={}", what.substr(kOption.size())) : std::string(what));
  }
}

/// Returns the options of a rank in a world of `ranks`. Throws Error(refused) for any value that can't be used, by the variable's
/// name.
ContextOptions options_of(const Environment& environment, int ranks) {
  ContextOptions options;
  static_cast<void>(environment.log_level());  // the logger takes an unknown one for "info"
  static_cast<void>(environment.inter());      // read again where ranks of several nodes meet, as TSP_RDMA is
  check_rdma(environment);
  options.heap_budget = environment.mem_per_rank();
  options.algorithms = algorithms_of(environment);
  options.reassociate = environment.flag("TSP_REASSOCIATE");
  options.verify = environment.flag("TSP_VERIFY");
  options.blocking = environment.flag("TSP_BLOCKING");
  options.link_gbps = environment.link_gbps();
  options.faults = faults_of(environment.faults(), ranks);
  return options;
}

/// Meets the ranks of a job by a store, and makes this one's parts.
std::unique_ptr<ContextParts> joined_parts(KeyValue& store, int rank, int size, const Environment& environment) {
  const ContextOptions options = options_of(environment, size);
  Joined joined = join_by(store, rank, size, environment);
  try {
    auto parts = std::make_unique<ContextParts>(std::move(joined.meeting.memory), nullptr, joined.local_rank, options,
                                                joined.meeting.pids);
    parts->courier = std::move(joined.courier);
    return parts;
  } catch (...) {
    joined.courier.reset();  // tells other nodes, before an exception that nobody catches ends the process
    throw;
  }
}

}  // namespace

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
  // The buffers of what is still pending may be gone. What throws here ends the process, as any uncaught exception does.
  if (::getpid() == parts_->process) parts_->part(false);
  else static_cast<void>(parts_.release());  // a child's ends of what it inherited are the rank's own, such as queue pairs
}

void Context::leave() {
  if (::getpid() != parts_->process) return;
  parts_->part(true);
  if (parts_->left) parts_->engine.leave();
}

Context Context::from_environment() {
  catch_uncaught_early();
  const std::optional<bootstrap::Identity> identity = bootstrap::identity_from_environment();
  const Environment environment;
  const ContextOptions options = options_of(environment, identity ? identity->size : 1);
  std::unique_ptr<ContextParts> parts;
  if (!identity) {
    shm::NodeMemory memory = shm::NodeMemory::create_memfd({.heap_bytes = shm::default_heap_bytes()});
    bootstrap::describe_job(memory, {.timeout_ns = environment.timeout_ns()});
    parts = std::make_unique<ContextParts>(std::move(memory), nullptr, 0, options, std::vector<int>{});
  } else if (identity->node_descriptor >= 0) {
    shm::NodeMemory memory = shm::NodeMemory::attach(inherited_memory(identity->node_descriptor));
    memory.claim_bells();
    parts = std::make_unique<ContextParts>(std::move(memory), nullptr, identity->local_rank, options, std::vector<int>{});
    if (const auto place = environment.text(ProgramTracePlace::kVariable))
      parts->trace = std::make_unique<ProgramTrace>(ProgramTracePlace::parse(*place), parts->engine, parts->heap);
  } else if (identity->pmi_descriptor >= 0) {
    bootstrap::PmiStore store(identity->pmi_descriptor, environment.timeout_ns());
    parts = joined_parts(store, identity->rank, identity->size, environment);
  } else if (identity->pmix) {
    bootstrap::PmixStore store(environment.timeout_ns());
    parts = joined_parts(store, identity->rank, identity->size, environment);
  } else {
    bootstrap::Meeting meeting = bootstrap::meet(*identity, environment.timeout_ns());
    parts = std::make_unique<ContextParts>(std::move(meeting.memory), nullptr, identity->local_rank, options, meeting.pids);
  }
  report_uncaught(*parts->memory, parts->world_rank());
  return Context(std::move(parts));
}

Context Context::join(int rank, int size, KeyValue& store) {
  if (rank < 0 || rank >= size) throw Error(Cause::refused, fmt::format("join: rank {} of {}", rank, size));
  return Context(joined_parts(store, rank, size, Environment()));
}

int Context::rank() const { return parts_->engine.world_rank(); }
int Context::size() const { return parts_->engine.world_size(); }
int Context::local_rank() const { return parts_->local_rank; }
int Context::local_size() const { return static_cast<int>(parts_->memory->layout().local_ranks); }
void Context::begin_step(std::uint64_t step) {
  parts_->board.page(rank()).progress.step.store(step, relaxed);
  parts_->faults.at_step(step);
}
Communicator& Context::world() { return *parts_->world; }
void Context::tick() { parts_->engine.tick(); }
void Context::fail(std::string_view text) { parts_->engine.break_down(Error(Cause::failed, std::string(text), rank())); }
HeapBlock Context::allocate(std::size_t bytes, std::string_view what, Category category) {
  if (parts_->left) throw Error(Cause::refused, fmt::format("{}: this rank has left the job", what), rank());
  return parts_->heap.allocate(bytes, what, category);
}
CategoryBytes Context::memory_use() const { return parts_->heap.use(); }
CategoryBytes Context::memory_peaks() const { return parts_->heap.peaks(); }
std::uint64_t Context::memory_budget() const { return parts_->heap.budget(); }
TrafficCounters Context::traffic() const {
  TrafficCounters sum = parts_->engine.imagined_traffic();
  for (std::size_t i = 0; i < kPurposes; ++i) sum.received[i] += parts_->engine.mail()->unasked_taken()[i];
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

}  // namespace detail
}  // namespace tsprun
