// Ranks as threads of one process: the same memory, transports and collectives as with processes, but under one debugger, one
// sanitizer, and started in microseconds.
#pragma once

#include "core/context.h"
#include "tests/support/shared_clock.h"
#include "transport/cause.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::test {

struct RankOptions {
  std::uint64_t heap_bytes = 256ULL << 20;    ///< reservation of each rank; only what is touched costs memory
  std::uint64_t heap_budget = 0;              ///< of each rank; 0: the reservation
  std::uint64_t timeout_ns = 60'000'000'000;  ///< deadline of waits; generous, for sanitizers on two cores
  std::uint32_t cores = 0;                    ///< 0: as many as this process may use
  std::string algorithms = {};                ///< overrides of the choice table
  int nodes = 1;                              ///< pretended: ranks of different nodes talk over tcp
  bool share = true;                          ///< ranks of a node talk over its memory, else over tcp, too
  bool verify = false;                        ///< checksum every payload
  bool reassociate = false;                   ///< sums may be added in an order that depends on the nodes
  std::vector<std::string> faults = {};       ///< texts of --fault
  SharedClock* clock = nullptr;               ///< null: the system's. Ranks then sleep instead of spinning; `nodes` must be 1
};

/// How one rank's body ended.
struct RankOutcome {
  bool failed = false;
  Cause cause = Cause::none;  ///< none with `failed`: it threw something that is no Error
  std::string message;
  int culprit = -1;
  std::string op;
  std::uint64_t sequence = 0;
};

using RankBody = std::function<void(Context&)>;

/// Runs `body` once for each of `ranks` ranks, a thread each, and returns when all have ended. Rethrows the exception
/// of the lowest rank that threw.
void run_ranks(int ranks, const RankBody& body, const RankOptions& options = {});

/// Does the same, but returns how each rank ended instead of throwing.
std::vector<RankOutcome> try_ranks(int ranks, const RankBody& body, const RankOptions& options = {});

/// The outcomes as text, for failure messages: one line a rank.
std::string describe(const std::vector<RankOutcome>& outcomes);

}  // namespace tsprun::detail::test
