// Internal interface to Context, beside the public one (tsprun/context.h): makes ranks on given node memory and phantoms, and
// gives access to a context's heap, engine, flight board and node memory.
#pragma once

#include "core/memory/heap.h"
#include "core/streams/engine.h"
#include "transport/bootstrap/job_description.h"
#include "transport/fault/spec.h"
#include "transport/shm/node_memory.h"
#include "tsprun/context.h"

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace tsprun::detail {

/// Options of a rank that joins a job.
struct ContextOptions {
  std::uint64_t heap_budget = 0;    ///< bytes that the heap may hand out; 0: limited only by its address space
  std::string algorithms;           ///< overrides of the choice table, see ChoiceTable
  bool reassociate = false;         ///< allows summation orders that depend on which rank is on which node
  bool verify = false;              ///< checksums every payload (TCP always does)
  bool blocking = false;            ///< post_…() waits until the operation is complete: shows how much time overlap saves
  double link_gbps = 0;             ///< slows links down to this speed, in 10⁹ bytes per second; 0: full speed
  std::vector<fault::Spec> faults;  ///< all faults of the job; only those of this rank and of messages to it are injected here
  std::uint64_t struck_faults = 0;  ///< bit i: faults[i] struck in an earlier attempt; a fault that strikes once is then skipped
  const Clock* clock = nullptr;     ///< times waits and operations; null: the system's; borrowed
};

/// Joins as rank `local_rank` of the node whose shared memory is `memory`. Throws Error as Context::from_environment().
Context join(shm::NodeMemory memory, int local_rank, const ContextOptions& options = {});
/// Does the same on memory that the caller owns and that must outlive the context: for ranks that are threads of one process and
/// share one mapping (ThreadSanitizer sees races only within one mapping).
Context join(shm::NodeMemory* memory, int local_rank, const ContextOptions& options = {});

/// Options of a phantom rank, see make_phantom().
struct PhantomOptions {
  std::uint64_t heap_budget = 0;   ///< bytes; 0: no limit. Allocations fail where those of a rank with --mem-per-rank would
  std::vector<PhantomPeer> peers;  ///< by rank of the world; empty: all ranks share memory
  std::string algorithms;          ///< as ContextOptions
  bool reassociate = false;        ///< as ContextOptions
  bool touched = false;            ///< its memory can be read and written, for kernels that run; takes address space then
};

/// Makes a phantom: a rank without peers, for forecasts of memory and traffic. Allocations are counted by category, but memory
/// that isn't touched costs nothing; collectives allocate what they need, move nothing and are complete at once; kernels
/// (ComputeStream) compute nothing. A schedule otherwise runs as on a real rank, so the heap's peaks are its memory demand, and
/// Context::traffic() counts what it would have received (but not what it would have sent). Throws Error(refused) unless
/// 0 ≤ rank < size and `options.peers` is empty or has `size` entries.
Context make_phantom(int rank, int size, const PhantomOptions& options = {});
/// Returns options for a phantom that needs as much memory as this rank would; the heap's budget is left out (0).
PhantomOptions likeness(const Context& context);

/// Returns the traffic between two readings of a context's counters.
inline TrafficCounters operator-(TrafficCounters after, const TrafficCounters& before) {
  for (std::size_t i = 0; i < std::size(after.sent); ++i) {
    after.sent[i] -= before.sent[i];
    after.received[i] -= before.received[i];
  }
  return after;
}

/// Adds traffic, by purpose.
inline TrafficCounters& operator+=(TrafficCounters& sum, const TrafficCounters& part) {
  for (std::size_t i = 0; i < std::size(sum.sent); ++i) {
    sum.sent[i] += part.sent[i];
    sum.received[i] += part.received[i];
  }
  return sum;
}

/// Return parts of a context, which they must not outlive.
Heap& heap_of(Context& context);
Engine& engine_of(Context& context);
const FlightBoard& board_of(const Context& context);
const bootstrap::JobDescription& job_of(const Context& context);

}  // namespace tsprun::detail
