#include "tests/support/run_ranks.h"

#include "transport/machine.h"
#include "transport/shm/node_memory.h"

#include <fmt/format.h>

#include <exception>
#include <thread>

namespace tsp::test {

namespace {

/// The exception of each rank's body; null where it returned.
std::vector<std::exception_ptr> run(int ranks, const RankBody& body, const RankOptions& options) {
  shm::NodeLayout layout;
  layout.local_ranks = static_cast<std::uint32_t>(ranks);
  layout.world_size = layout.local_ranks;
  layout.heap_bytes = options.heap_bytes;
  layout.timeout_ns = options.timeout_ns;
  layout.cores = options.cores != 0 ? options.cores : static_cast<std::uint32_t>(machine::usable_cores());
  // One mapping for all: at two addresses a sanitizer would take the same memory for two.
  shm::NodeMemory memory = shm::NodeMemory::create_memfd(layout);

  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Context context(&memory, rank, ContextOptions{0, options.algorithms});
        body(context);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
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

}  // namespace tsp::test
