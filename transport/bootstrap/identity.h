// A rank's place in its job (rank, world size, local rank, local size), read from the environment that its starter set:
//
//   tsprun          TSP_NODE_FD with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   torchrun        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; job id TORCHELASTIC_RUN_ID (unless "none"), else MASTER_PORT
//   Open MPI        OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}; job id PMIX_NAMESPACE; several nodes meet by PMIx
//   Slurm (srun)    SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NUM_TASKS…; job id SLURM_JOB_ID.SLURM_STEP_ID;
//                   several nodes meet by PMI-1 (PMI_FD) or PMIx (PMIX_RANK)
//   hydra (MPICH)   PMI_RANK, PMI_SIZE; the rest is learnt from the process manager, on the socket PMI_FD
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tsprun::detail::bootstrap {

/// A rank's place in its job.
struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node_descriptor = -1;  ///< TSP_NODE_FD, -1 if no tsprun started this process
  int pmi_descriptor = -1;   ///< PMI_FD, the socket of a process manager (pmi_store.h); -1: none, or the job is on this node
  bool pmix = false;         ///< whether ranks of several nodes meet by PMIx (pmix_store.h)
  std::string starter;       ///< "tsprun", "torchrun", "Open MPI", "Slurm" or "PMI"
  std::string job_id;        ///< unique on this machine while the job runs; empty under tsprun and PMI
};

/// Looks a variable up like getenv(3): null if it isn't set.
using Getenv = std::function<const char*(const char*)>;

/// Reads the identity from the environment, through `get` if given; nothing if no known starter's variables are set. Where
/// several starters' are set, the innermost counts: tsprun, torchrun, Open MPI, Slurm. Throws Error(refused), naming the
/// variable, its value and what would be valid, if a set of variables is incomplete or contradicts itself (rank ≥ size, local
/// size > size, no numbers), or if only those of PMIx are set. Under PMI the local numbers aren't known, and are those of the
/// world.
std::optional<Identity> identity_from_environment(const Getenv& get);
std::optional<Identity> identity_from_environment();

}  // namespace tsprun::detail::bootstrap
