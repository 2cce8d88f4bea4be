// The context of one rank: its place in the job, its heap, and the communicator of all ranks. Joining a job takes one call:
//
//   tsprun::Context context = tsprun::Context::from_environment();
//   context.world().all_reduce(...);
//
// A rank keeps no state in globals, but for what there is once in a process: the terminate handler, and the level of vector
// instructions that kernels use.
#pragma once

#include "tsprun/communicator.h"
#include "tsprun/key_value.h"
#include "tsprun/memory.h"
#include "tsprun/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace tsprun {

namespace detail {
struct ContextParts;
}

/// A rank of a job, to be used by one thread at a time. Communicators, blocks of the heap and everything else obtained from a
/// context must not outlive it. Movable, not copyable; what was obtained from it stays valid when it is moved.
class Context {
 public:
  /// Joins the job that this process belongs to:
  ///   · started by tsprun (`run` or a built-in command): through the inherited descriptor, TSP_NODE_FD;
  ///   · started by torchrun, Slurm (srun) or Open MPI's mpirun, all on this node: by their variables, through an abstract socket
  ///     (PMIx alone doesn't say how many ranks there are, and is refused);
  ///   · started on several nodes by srun --mpi=pmix or Open MPI's mpirun: as join(), by PMIx's store;
  ///   · started by MPICH's mpirun on one node or several, or on several by srun --mpi=pmi2: as join(), by PMI-1's store. The
  ///     program can't call MPI_Init() afterwards;
  ///   · none of these: a world of one rank.
  /// Reads TSP_ALGORITHMS (which algorithm an operation uses), TSP_BLOCKING=1 (post_…() waits until the operation is complete,
  /// which shows how much time overlap saves), TSP_LINK_GBPS (slows links down to that many 10⁹ bytes per second),
  /// TSP_MEM_PER_RANK (budget of the heap in bytes), TSP_REASSOCIATE=1 (allows orders of summation that depend on which rank is
  /// on which node), TSP_VERIFY=1 (checksums every payload; TCP always does) and TSP_FAULTS (injected faults, separated by ';';
  /// tsprun sets them) and, if the rank was not started by tsprun, TSP_TIMEOUT (deadline of waits in seconds, default 30).
  /// Messages of level TSP_LOG_LEVEL (tsprun sets it, too) and above are logged to stderr.
  ///
  /// Installs a std::terminate handler that reports an uncaught exception to the other ranks and, as one line, on stderr. The
  /// process then exits with code 1 if the job had failed already or the exception is an Error(refused); otherwise it aborts
  /// (SIGABRT). While the rank is still joining, an uncaught Error ends the process without a core dump: exit code 2 if refused,
  /// else 1.
  ///
  /// A rank of a job can join only once, in one process; later attempts are refused. A program that is a world of its own may
  /// make another context when the first is gone. Don't fork afterwards, unless the child only executes
  /// another program. Throws Error(refused | out_of_memory | stalled | disconnected), whose text says which variables were found,
  /// what is missing and which rank did not come.
  static Context from_environment();
  /// Joins a job of `size` ranks that no tsprun started, on one node or several; all of them call it, with their numbers and a
  /// store that they have in common and that no other job uses. Ranks of one machine, which must be numbered one after the other,
  /// share memory; TSP_NODE lets one machine stand for several nodes. Between nodes rank 0's process serves the job: it listens
  /// on the machine's addresses, at a port of the kernel's choice. One thread of each node's first rank tells the others what
  /// happens there; so such a rank leaves its job only when the others of its node, and rank 0 when all, have left. Reads the
  /// same variables as from_environment(), but for a rank's place; installs no handler of std::terminate. Throws Error as
  /// from_environment(), and what `store` throws.
  static Context join(int rank, int size, KeyValue& store);

  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  /// Leaves the job, if leave() hasn't yet, but doesn't complete operations that are pending. An Error that leave() would throw
  /// ends the process, as an uncaught one does.
  ~Context();
  /// Leaves the job, as MPI_Finalize() does: completes operations that are pending, counts the rank as finished, and waits until
  /// all other ranks have left, too, or are gone. All of that takes at most the timeout; then the rank leaves with a warning that
  /// names those for whom it has waited, and what is still pending is dropped. Throws Error(mismatch) if a message to this rank
  /// has arrived that it hasn't received: another rank has called something else, such as a broadcast with another root. Does
  /// nothing of that if an exception is being thrown or the job has failed. Afterwards nothing of the context may be used but
  /// blocks of its heap, which live until it is destroyed.
  void leave();

  /// Returns this rank's number in the world, from 0.
  int rank() const;
  /// Returns the number of ranks in the world.
  int size() const;
  /// Returns this rank's number among those of its node, from 0. Ranks are numbered node by node, so rank() − local_rank() is the
  /// first rank of the node: a colour for Communicator::split(). The node's number, from 0, is this rank's number in
  /// world().split(local_rank(), rank()).
  int local_rank() const;
  /// Returns the number of ranks on this node.
  int local_size() const;

  /// Returns the communicator of all ranks of the job.
  Communicator& world();

  /// Gives a sign of life and makes progress on posted operations. Call it at least every --timeout seconds during long
  /// computation, better every millisecond; otherwise peers that wait declare this rank stalled. Throws the first failure of the
  /// job.
  void tick();
  /// Ends the job for a reason of the program's own: this call and all other ranks, out of whatever they wait in, throw an
  /// Error(failed) that names this rank and has this text. If the job has failed already, throws that failure.
  [[noreturn]] void fail(std::string_view text);
  /// Announces that training step `step` (from 1) begins: `tsprun status` shows it, and faults that are due at this step strike
  /// now.
  void begin_step(std::uint64_t step);

  /// Allocates a block of the rank's heap, from which payloads move between ranks with one copy; 0 bytes give an empty block. The
  /// memory isn't zeroed. `what` names the buffer in errors. Throws Error(out_of_memory) naming buffer, size, budget and the
  /// bytes in use by category.
  HeapBlock allocate(std::size_t bytes, std::string_view what, Category category = Category::communication);
  /// Allocates room for `count` elements of T, see allocate().
  template <Element T>
  HeapBlock allocate_elements(std::size_t count, std::string_view what, Category category = Category::communication) {
    constexpr std::size_t kMost = static_cast<std::size_t>(-1) / 2;  // more than any heap has
    return allocate(count < kMost / sizeof(T) ? count * sizeof(T) : kMost, what, category);
  }
  /// Returns the bytes of the heap that were asked for and not yet given back, the library's own included.
  CategoryBytes memory_use() const;
  /// Returns the largest value that each entry of memory_use() has had, total included.
  CategoryBytes memory_peaks() const;
  /// Returns the most that memory_use().total can be: TSP_MEM_PER_RANK, or the size of the rank's heap if that is smaller or
  /// unset.
  std::uint64_t memory_budget() const;

  /// Returns the payload bytes sent and received by this rank so far, summed over all transports.
  TrafficCounters traffic() const;
  /// Returns the same for each transport in use, shm (which is always listed) first.
  std::vector<LinkTraffic> traffic_by_link() const;

 private:
  friend struct detail::ContextParts;
  explicit Context(std::unique_ptr<detail::ContextParts> parts);
  std::unique_ptr<detail::ContextParts> parts_;
};

}  // namespace tsprun
