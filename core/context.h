// A rank's context: everything that one rank has. A program gets its communicators with one call:
//
//   tsprun::Context context = tsprun::Context::from_environment();
//   context.world().all_reduce(...);
//
// Nothing of a rank lives in globals, so that several ranks may live in one process (tests do it with threads).
#pragma once

#include "core/collectives/communicator.h"
#include "core/link_traffic.h"
#include "core/memory/heap.h"
#include "core/streams/engine.h"
#include "transport/fault/spec.h"
#include "transport/shm/node_memory.h"

#include <memory>
#include <string>
#include <vector>

namespace tsprun {

struct ContextOptions {
  std::uint64_t heap_budget = 0;    ///< bytes; 0: the reservation
  std::string algorithms;           ///< overrides of the choice table, see ChoiceTable
  bool reassociate = false;         ///< sums may be added in an order that depends on the nodes
  bool verify = false;              ///< checksum every payload (over tcp they always are)
  bool blocking = false;            ///< posted operations are waited for at once: to tell what a schedule hides
  double link_gbps = 0;             ///< makes links look as slow, in 10⁹ bytes per second; 0: as they are
  std::vector<fault::Spec> faults;  ///< of the whole job: those that strike this rank or messages to it are injected here
  std::uint64_t struck_faults = 0;  ///< a bit for each that struck in an earlier attempt and shall not again
};

/// What a phantom rank is like.
struct PhantomOptions {
  std::uint64_t heap_budget = 0;   ///< bytes; 0: none. Its heap is full where that of a rank with --mem-per-rank is
  std::vector<PhantomPeer> peers;  ///< by rank of the world; empty: all ranks share memory
  std::string algorithms;          ///< as ContextOptions
  bool reassociate = false;        ///< as ContextOptions
};

class Context {
 public:
  /// Joins the job that this process belongs to:
  ///   · started by tsprun (`run` or a built-in command): through the inherited descriptor, TSP_NODE_FD;
  ///   · started by torchrun, Slurm (srun), Open MPI/PMIx, all on this node: by their variables, through an abstract socket;
  ///   · none of these: a world of one rank.
  /// Reads TSP_ALGORITHMS (overrides of the choice table), TSP_BLOCKING=1 and TSP_LINK_GBPS (ContextOptions), TSP_MEM_PER_RANK
  /// (heap budget in bytes), TSP_REASSOCIATE=1, TSP_VERIFY=1 and TSP_FAULTS (injected faults, separated by ';'; tsprun sets them)
  /// and, where no tsprun started the rank, TSP_TIMEOUT (deadline of waits in seconds, default 30). What is said unasked goes to
  /// stderr, down to TSP_LOG_LEVEL (tsprun sets it, too). Installs the terminate handler. A rank joins once, in one process:
  /// whoever comes second is refused. Throws Error(refused | out_of_memory | stalled): says which variables were found, what is
  /// missing, who didn't come.
  static Context from_environment();
  /// Rank `local_rank` of a node whose memory exists.
  Context(shm::NodeMemory memory, int local_rank, const ContextOptions& options = {});
  /// The same on memory that the caller keeps: for ranks that are threads of one process and share one mapping (as TSan needs, to
  /// see what they do to each other). `memory` must outlive the context.
  Context(shm::NodeMemory* memory, int local_rank, const ContextOptions& options = {});

  /// A rank of a world that isn't there: allocations are booked, by category, but memory that isn't touched costs nothing;
  /// operations take what memory they need, move nothing and are complete at once; kernels
  /// (ComputeStream) compute nothing. The schedule that runs on it does all else that it does on a real rank, so that its memory
  /// can be forecast. Throws Error(refused) for no rank of `size`.
  static Context phantom(int rank, int size, const PhantomOptions& options = {});
  /// What makes a phantom like this rank, but for the budget, of which it has none.
  PhantomOptions likeness() const;

  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  /// Closes the rank in good order: the board says `finished`, unless an exception is on its way or operations are pending.
  ~Context();

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;

  /// A training step begins, from 1: faults that shall strike then do.
  void begin_step(std::uint64_t step);

  Communicator& world();
  Heap& heap();
  /// Its tick() is a sign of life and moves posted operations on: to be called now and then by who computes for long, in any case
  /// more often than --timeout, whose peers would else end the job.
  Engine& engine();
  const FlightBoard& board() const;
  const shm::NodeMemory& node_memory() const;
  /// Sums over all transports.
  TrafficCounters traffic() const;
  /// The same by transport, shm first; those that lead to no rank are left out.
  std::vector<LinkTraffic> traffic_by_link() const;

 private:
  struct Parts;
  explicit Context(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Makes uncaught exceptions end this process loudly: the board gets the text, stderr one line, the exit code is 1 for failures
/// that came from another rank and for requests that were refused, SIGABRT otherwise. from_environment() calls it. Before it has
/// joined, an Error ends the process with its text and without a core dump, too: 2 if refused, else 1.
void install_terminate_handler(const Context& context);

}  // namespace tsprun
