// Plays the programs of all ranks in virtual time, on a cluster that isn't there: kernels take what a price list says, operations
// run as on real ranks, over sim's transport, and waits join them.
//
// Ranks are one of two kinds of machine:
//
//   engines   (GPUs) copies and sums of collectives take no time; they may slow kernels while messages are under way
//   cores     (this host) a rank's core does all that the rank does: kernels, and copies and sums of collectives, which go on
//   when
//             it posts an operation, in the ticks of its kernels and in waits. Ranks that outnumber cores share them evenly
#pragma once

#include "core/program/program.h"
#include "core/trace/recorder.h"
#include "core/virtual/task_graph.h"
#include "transport/chores.h"
#include "transport/sim/fabric.h"
#include "tsprun/types.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail {

/// Cores that do all that ranks do, and what communication costs them.
struct CoreOptions {
  int cores = 1;                                          ///< that the ranks share
  double copy_bytes_per_s = 0;                            ///< of a core that copies what others sent
  double reduce_bytes_per_s = 0;                          ///< of a core that sums, in bytes of all terms
  double message_seconds = 0;                             ///< that a core needs for each message that it sends or asks for
  std::function<double(const KernelCost&)> tick_seconds;  ///< work of a kernel from tick to tick

  /// Returns the seconds that chores take a core.
  double seconds_of(const Chores& chores) const {
    return chores.copied_bytes / copy_bytes_per_s + chores.reduced_bytes / reduce_bytes_per_s + chores.messages * message_seconds;
  }
};

/// Fabric, prices and length of a played run.
struct PlayOptions {
  sim::FabricShape fabric;             ///< of the played ranks; its `ranks` is the number of programs
  int ranks = 1;                       ///< of the world; a multiple of the number of programs: see folding in
                                       ///< transport/sim/sim_transport.h
  std::vector<int> units{};            ///< of played ranks along each axis (sim::UnitGrid); empty: all along one
  int steps = 1;                       ///< how often every program is played, one after another; what a step waits for
                                       ///< of the one before it counts as complete
  bool blocking = false;               ///< a posted operation is waited for at once
  double copies_slow_kernels = 1;      ///< how many times longer kernels take while their rank sends or receives
  std::optional<CoreOptions> cores{};  ///< ranks have cores; nothing: they are engines
  std::function<int(const KernelCost&)> launches{};  ///< kernels that a host starts for one; empty: one
  double host_seconds = 0;  ///< that the host of an engine needs to start a kernel, one after another: the engine waits
                            ///< where the host hasn't come so far
  bool trace = false;       ///< records what every played rank does when, and what links carry: PlayedRun
  bool tasks = false;       ///< records what every played rank did as a graph; ranks must be engines
  std::function<double(int rank, const KernelCost&)> price;  ///< seconds that a kernel takes on a played rank
};

/// Times and traffic of one played rank, in virtual time.
struct PlayedTimes {
  double seconds = 0;         ///< from the beginning to its last item
  double compute = 0;         ///< in kernels, and waiting for the host to start them
  double exposed = 0;         ///< in waits
  TrafficCounters traffic{};  ///< payloads, as Context::traffic() counts them
};

/// Events of one played rank, in nanoseconds of virtual time: kernels, waits and operations, and the memory of the schedule.
struct PlayedTrace {
  std::vector<TraceEvent> events;  ///< in the order in which they ended
  std::vector<TraceMemory> memory;
  std::uint64_t left_out = 0;  ///< events beyond TraceRecorder::kMostEvents
};

/// Bytes that a link carried over time.
struct LinkTrack {
  std::size_t link = 0;       ///< its place in PlayedRun::links
  std::string name;           ///< "NIC out 3"
  std::vector<double> bytes;  ///< by slice of time
};

/// Result of a played run.
struct PlayedRun {
  double seconds = 0;               ///< until the last rank was done
  std::vector<PlayedTimes> ranks;   ///< by played rank
  std::vector<sim::Link> links;     ///< with how long they were busy and what they carried
  std::uint64_t messages = 0;       ///< sent by all played ranks
  std::uint64_t events = 0;         ///< of virtual time
  std::vector<PlayedTrace> traces;  ///< by played rank; empty unless PlayOptions::trace
  std::vector<LinkTrack> tracks;    ///< of the links that carried something; likewise
  double slice_seconds = 0;         ///< of a track
  std::vector<RankTasks> tasks;     ///< by played rank; empty unless PlayOptions::tasks
};

/// Plays a program on each rank until all are done. Two calls with the same arguments give the same result, to the bit. Throws
/// Error(refused) if programs and options don't fit, Error(deadlock) naming ranks and operations if ranks wait for what never
/// comes or send what is never received, and Error(mismatch) if they call different operations.
PlayedRun play(std::span<const Program> programs, const PlayOptions& options);

}  // namespace tsprun::detail
