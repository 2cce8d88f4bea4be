// Description of a job that all ranks of a node share, and its secret, in the part of node memory that is left to the job
// (NodeMemory::job_bytes()). The process that creates node memory writes both before others map it; they never change.
//
//      0 ┌──────────────────────────────┐
//        │ JobDescription, 296 bytes    │
//   1024 ├──────────────────────────────┤
//        │ the job's secret, 32 bytes   │  zeros if the job has no store
//   2048 └──────────────────────────────┘
#pragma once

#include "transport/bootstrap/secret.h"
#include "transport/shm/node_memory.h"

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tsprun::detail::bootstrap {

/// The kind of transport that --intra or --inter demands: `automatic`, or 1 + the kind's place in the table of transports
/// (transport/factory.h).
enum class Demand : std::uint32_t { automatic };

struct JobDescription {
  std::uint32_t first_rank = 0;  ///< rank in the world of local rank 0
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;
  std::uint32_t cores = 1;           ///< cores that this node's ranks may use together (affinity, quota); 0: less than one
  std::uint64_t timeout_ns = 0;      ///< deadline of waits (--timeout), for all ranks of the node
  std::uint32_t supervised = 0;      ///< 1: a launcher watches the ranks' processes and writes to the board how they end
  std::uint32_t tls = 0;             ///< 1: connections to the store, and lanes over tcp, use TLS
  Demand intra = Demand::automatic;  ///< between this node's ranks
  Demand inter = Demand::automatic;  ///< between ranks of different nodes
  char rdma[192] = {};               ///< value of --rdma; empty: choose a device
  char store[64] = {};               ///< "host:port" of the job's key-value store; empty if ranks need none

  std::string_view rdma_device() const;
  std::string_view store_address() const;
};
static_assert(sizeof(JobDescription) == 296 && std::is_trivially_copyable_v<JobDescription>);

/// Writes the description and the secret into a node's memory. Throws Error(refused) if the node's ranks don't fit the world.
void describe_job(const shm::NodeMemory& memory, const JobDescription& job, const Secret& secret = {});
/// Returns a copy of the description in a node's memory. Throws Error(corrupt) if there is none that can be true.
JobDescription job_of(const shm::NodeMemory& memory);
/// Returns a copy of the job's secret; the empty one if the job has no store.
Secret secret_of(const shm::NodeMemory& memory);

}  // namespace tsprun::detail::bootstrap
