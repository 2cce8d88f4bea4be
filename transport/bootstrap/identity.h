// Who am I: a rank's place in its job as its starter's environment tells it.
//
//   tsprun          TSP_NODE_FD with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   torchrun        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; job id TORCHELASTIC_RUN_ID, else MASTER_PORT
//   Open MPI, PMIx  OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}; job id PMIX_NAMESPACE
//   Slurm (srun)    SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NUM_TASKS…; job id SLURM_JOB_ID.SLURM_STEP_ID
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tsprun::bootstrap {

struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node_descriptor = -1;  ///< TSP_NODE_FD, -1 if no tsprun started this process
  std::string starter;       ///< "tsprun", "torchrun", "Open MPI", "PMIx", "Slurm"
  std::string job_id;        ///< unique on this machine while the job lives; empty under tsprun
};

using Getenv = std::function<const char*(const char*)>;

/// None if no known starter's variables are set. Throws Error(refused) naming the variable, its value and what would be valid, if
/// a set is incomplete or contradicts itself (rank ≥ size, local size > size, not numbers).
std::optional<Identity> identity_from_environment(const Getenv& get);
std::optional<Identity> identity_from_environment();

}  // namespace tsprun::bootstrap
