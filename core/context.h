// The context of one rank: its heap, links to other ranks, engine and world communicator. Joining a job takes one call:
//
//   tsprun::Context context = tsprun::Context::from_environment();
//   context.world().all_reduce(...);
//
// Apart from the terminate handler, a rank keeps no state in globals, so several ranks can share one process (tests run ranks as
// threads).
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
};

/// Options of a phantom rank, see Context::phantom().
struct PhantomOptions {
  std::uint64_t heap_budget = 0;   ///< bytes; 0: no limit. Allocations fail where those of a rank with --mem-per-rank would
  std::vector<PhantomPeer> peers;  ///< by rank of the world; empty: all ranks share memory
  std::string algorithms;          ///< as ContextOptions
  bool reassociate = false;        ///< as ContextOptions
};

/// One rank of a job, to be used by one thread at a time. Communicators and everything else obtained from a context must not
/// outlive it.
class Context {
 public:
  /// Joins the job that this process belongs to:
  ///   · started by tsprun (`run` or a built-in command): through the inherited descriptor, TSP_NODE_FD;
  ///   · started by torchrun, Slurm (srun), Open MPI/PMIx, all on this node: by their variables, through an abstract socket;
  ///   · none of these: a world of one rank.
  /// Reads TSP_ALGORITHMS (overrides of the choice table), TSP_BLOCKING=1 and TSP_LINK_GBPS (ContextOptions), TSP_MEM_PER_RANK
  /// (heap budget in bytes), TSP_REASSOCIATE=1, TSP_VERIFY=1 and TSP_FAULTS (injected faults, separated by ';'; tsprun sets them)
  /// and, if the rank was not started by tsprun, TSP_TIMEOUT (deadline of waits in seconds, default 30). Messages of level
  /// TSP_LOG_LEVEL (tsprun sets it, too) and above are logged to stderr. Installs the terminate handler. A rank can join only
  /// once, in one process; later attempts are refused. Throws Error(refused | out_of_memory | stalled | disconnected), whose text
  /// says which variables were found, what is missing and which rank did not come.
  static Context from_environment();
  /// Joins as rank `local_rank` of the node whose shared memory is `memory`. Throws Error as from_environment().
  Context(shm::NodeMemory memory, int local_rank, const ContextOptions& options = {});
  /// Does the same on memory that the caller owns and that must outlive the context: for ranks that are threads of one process
  /// and share one mapping (ThreadSanitizer sees races only within one mapping).
  Context(shm::NodeMemory* memory, int local_rank, const ContextOptions& options = {});

  /// Makes a phantom: a rank without peers, for forecasts of memory. Allocations are counted by category, but memory that isn't
  /// touched costs nothing; collectives allocate what they need, move nothing and are complete at once; kernels (ComputeStream)
  /// compute nothing. A schedule otherwise runs as on a real rank, so the heap's peaks are its memory demand. Throws
  /// Error(refused) unless 0 ≤ rank < size and `options.peers` is empty or has `size` entries.
  static Context phantom(int rank, int size, const PhantomOptions& options = {});
  /// Returns options for a phantom that needs as much memory as this rank would; the heap's budget is left out (0).
  PhantomOptions likeness() const;

  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  /// Leaves the job: waits (at most for the timeout) until data sent over TCP or verbs has arrived, then marks the rank
  /// `finished` on the flight board. Does neither if an exception is being thrown, an operation is pending or the job has failed.
  ~Context();

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;

  /// Tells fault injection that training step `step` (from 1) begins: faults that are due at this step strike now.
  void begin_step(std::uint64_t step);

  /// Returns the communicator of all ranks of the job.
  Communicator& world();
  /// Returns the rank's heap. Buffers allocated here move between ranks with one copy.
  Heap& heap();
  /// Returns the engine. Call engine().tick() at least every --timeout seconds during long computation, better every millisecond:
  /// it makes progress on posted operations and is a sign of life. Otherwise peers that wait declare this rank stalled.
  Engine& engine();
  const FlightBoard& board() const;
  const shm::NodeMemory& node_memory() const;
  /// Returns the bytes sent and received by this rank so far, summed over all transports.
  TrafficCounters traffic() const;
  /// Returns the same for each transport in use, shm (which is always listed) first.
  std::vector<LinkTraffic> traffic_by_link() const;

 private:
  struct Parts;
  explicit Context(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Installs a std::terminate handler that reports an uncaught exception: its text goes to the flight board and, as one line, to
/// stderr. The process then exits with code 1 if the job had failed already or the exception is an Error(refused); otherwise it
/// aborts (SIGABRT). from_environment() calls this. While from_environment() is still joining, an uncaught Error ends the process
/// with its text on stderr and without a core dump: exit code 2 if refused, else 1.
void install_terminate_handler(const Context& context);

}  // namespace tsprun
