// Plays the programs of all ranks in virtual time, on a cluster that isn't there: kernels take what a price list says, operations
// run as on real ranks, over sim's transport, and waits join them. Copies and reductions of operations take no time: on a GPU
// they don't use the compute units.
#pragma once

#include "core/program/program.h"
#include "transport/sim/fabric.h"
#include "tsprun/types.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail {

/// How programs are played.
struct PlayOptions {
  sim::FabricShape fabric;                         ///< of the played ranks; its `ranks` is the number of programs
  int ranks = 1;                                   ///< of the world; a multiple of the number of programs: see folding in
                                                   ///< transport/sim/sim_transport.h
  int steps = 1;                                   ///< how often every program is played, one after another
  bool blocking = false;                           ///< a posted operation is waited for at once
  std::function<double(const KernelCost&)> price;  ///< seconds that a kernel takes
};

/// What a played rank did, in virtual time.
struct PlayedTimes {
  double seconds = 0;         ///< from the beginning to its last item
  double compute = 0;         ///< in kernels
  double exposed = 0;         ///< in waits
  TrafficCounters traffic{};  ///< payloads, as Context::traffic() counts them
};

/// What a played run took.
struct PlayedRun {
  double seconds = 0;              ///< until the last rank was done
  std::vector<PlayedTimes> ranks;  ///< by played rank
  std::vector<sim::Link> links;    ///< with how long they were busy and what they carried
  std::uint64_t messages = 0;      ///< sent by all played ranks
  std::uint64_t events = 0;        ///< of virtual time
};

/// Plays a program on each rank until all are done. Two calls with the same arguments give the same result, to the bit. Throws
/// Error(deadlock) naming ranks and operations if ranks wait for what never comes, and Error(mismatch) if they call different
/// operations.
PlayedRun play(std::span<const Program> programs, const PlayOptions& options);

}  // namespace tsprun::detail
