// Runs each rank in a thread, with a store between pretended nodes, and collects exceptions.
#include "tests/support/run_ranks.h"

#include "core/board/flight_board.h"
#include "transport/bootstrap/job_description.h"
#include "transport/bootstrap/placement.h"
#include "transport/bootstrap/store.h"
#include "transport/factory.h"
#include "transport/machine.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <poll.h>
#include <thread>

namespace tsprun::detail::test {

namespace {

/// Nodes that aren't any: each has memory of its own. Serves the store by which their ranks find each other, and tells all nodes
/// what failed on one, as launchers do.
class PretendedNodes {
 public:
  PretendedNodes(int ranks, const RankOptions& options) : ranks_(ranks), nodes_(options.nodes) {
    const bool sockets = nodes_ > 1 || !options.share;
    const bootstrap::Secret secret = bootstrap::secret_from_text("of these ranks");
    if (sockets) server_.emplace("127.0.0.1", std::uint16_t{0}, secret);
    for (int node = 0; node < nodes_; ++node) {
      const bootstrap::RankBlock block = bootstrap::block_of(ranks, nodes_, node);
      bootstrap::JobDescription job;
      job.first_rank = static_cast<std::uint32_t>(block.first);
      job.node = static_cast<std::uint32_t>(node);
      job.nodes = static_cast<std::uint32_t>(nodes_);
      if (!options.share) job.intra = demand_for("tcp");
      job.timeout_ns = options.timeout_ns;
      // A node's share of the machine's: where ranks outnumber cores, those of every node must know it.
      job.cores = options.clock != nullptr ? 1
                  : options.cores != 0     ? options.cores
                                           : static_cast<std::uint32_t>(machine::usable_cores() * block.count / ranks);
      if (sockets) server_->address().copy(job.store, sizeof job.store - 1);
      // One mapping for all ranks of a node: at two addresses a sanitizer would take the same memory for two.
      memories_.push_back(shm::NodeMemory::create_memfd({.local_ranks = static_cast<std::uint32_t>(block.count),
                                                         .heap_bytes = options.heap_bytes,
                                                         .world_size = static_cast<std::uint32_t>(ranks)}));
      bootstrap::describe_job(memories_.back(), job, secret);
      if (sockets) memories_.back().hang_bells();
    }
    if (sockets) {
      launcher_ = std::thread([this] { serve(); });
    }
  }
  PretendedNodes(const PretendedNodes&) = delete;
  PretendedNodes& operator=(const PretendedNodes&) = delete;
  ~PretendedNodes() {
    over_ = true;
    if (launcher_.joinable()) launcher_.join();
  }

  shm::NodeMemory& memory_of(int rank) { return memories_[node(rank)]; }
  int local_rank(int rank) { return rank - bootstrap::block_of(ranks_, nodes_, static_cast<int>(node(rank))).first; }

 private:
  std::size_t node(int rank) const { return static_cast<std::size_t>(bootstrap::node_of(ranks_, nodes_, rank)); }
  void serve() {
    while (!over_) {
      pollfd waiting{.fd = server_->descriptor(), .events = POLLIN, .revents = 0};
      ::poll(&waiting, 1, 1);
      server_->pump();
      for (const shm::NodeMemory& memory : memories_) {
        FlightBoard board(memory);
        if (!board.aborted() || board.failure().cause == Cause::none) continue;
        for (const shm::NodeMemory& other : memories_) {
          if (&other != &memory) FlightBoard(other).abort(board.failure());
        }
        break;
      }
    }
  }

  int ranks_;
  int nodes_;
  std::optional<bootstrap::StoreServer> server_;
  std::vector<shm::NodeMemory> memories_;
  std::atomic<bool> over_ = false;
  std::thread launcher_;
};

/// The exception of each rank's body; null where it returned.
std::vector<std::exception_ptr> run(int ranks, const RankBody& body, const RankOptions& options) {
  PretendedNodes nodes(ranks, options);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  if (options.clock != nullptr) options.clock->join(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        std::vector<fault::Spec> faults;
        for (const std::string& text : options.faults) faults.push_back(fault::parse(text));
        Context context = join(&nodes.memory_of(rank), nodes.local_rank(rank),
                               {.heap_budget = options.heap_budget,
                                .algorithms = options.algorithms,
                                .reassociate = options.reassociate,
                                .verify = options.verify,
                                .faults = faults,
                                .clock = options.clock});
        body(context);
        context.leave();
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
      if (options.clock != nullptr) options.clock->leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

RankOutcome outcome_of(const std::exception_ptr& thrown) {
  RankOutcome outcome;
  if (!thrown) return outcome;
  outcome.failed = true;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    outcome.cause = error.cause();
    outcome.message = error.what();
    outcome.culprit = error.rank();
    outcome.op = error.op();
    outcome.sequence = error.sequence();
  } catch (const std::exception& error) {
    outcome.message = error.what();
  }
  return outcome;
}

}  // namespace

void run_ranks(int ranks, const RankBody& body, const RankOptions& options) {
  for (const std::exception_ptr& thrown : run(ranks, body, options)) {
    if (thrown) std::rethrow_exception(thrown);
  }
}

std::vector<RankOutcome> try_ranks(int ranks, const RankBody& body, const RankOptions& options) {
  std::vector<RankOutcome> outcomes;
  for (const std::exception_ptr& thrown : run(ranks, body, options)) outcomes.push_back(outcome_of(thrown));
  return outcomes;
}

std::string describe(const std::vector<RankOutcome>& outcomes) {
  std::string text;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    text += outcome.failed ? fmt::format("rank {}: {}, culprit {}, {} #{}: {}\n", rank, name(outcome.cause), outcome.culprit,
                                         outcome.op, outcome.sequence, outcome.message)
                           : fmt::format("rank {}: returned\n", rank);
  }
  return text;
}

}  // namespace tsprun::detail::test
