// Takes the number of nodes, this node's number and the meeting point from the environment of the program that started this
// tsprun on several machines. Options that were given take precedence.
//
//   srun             SLURM_STEP_NUM_NODES, SLURM_NODEID, SLURM_STEP_NODELIST; the port from SLURM_JOB_ID and SLURM_STEP_ID. Tasks
//                    of srun alone: a batch script is one process, and what it starts by itself is a job of one machine
//   torchrun's       PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_RDZV_ENDPOINT, or PET_MASTER_ADDR and PET_MASTER_PORT
//   Open MPI         OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_SIZE; MASTER_ADDR and MASTER_PORT
//   hydra (MPICH)    PMI_SIZE, PMI_RANK, MPI_LOCALNRANKS; MASTER_ADDR and MASTER_PORT
//
// MASTER_ADDR and MASTER_PORT name the meeting point under each of these starters.
#pragma once

#include "launcher/options.h"
#include "transport/bootstrap/identity.h"

#include <string>

namespace tsprun::detail::launcher {

/// Fills --nnodes, --node-rank and --rendezvous where they weren't given, and -n from PET_NPROC_PER_NODE. Returns a line that
/// says what was taken from where; empty: nothing was. Takes nothing if --nodes or --nnodes 1 is given, if this process is a rank
/// of another tsprun, or if its starter started it alone. Throws Error(refused) naming variables that contradict each other, that
/// are missing, or that say that several tspruns were started on one machine.
std::string take_from_starter(GlobalOptions& options, const bootstrap::Getenv& get);

/// Returns the first name in Slurm's list of nodes: "n01" of "n[01-03,7],m4"; empty if it can't be read.
std::string first_of_node_list(std::string_view list);

}  // namespace tsprun::detail::launcher
