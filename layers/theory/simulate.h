// The time of a step on a cluster that isn't there: the schedules themselves run on phantom ranks, whose programs are recorded,
// and the programs are played in virtual time (core/virtual/player.h) on the links of a machine (machine.h).
//
// Prices are those of kernel_price.h. While messages of its rank are under way a kernel takes longer by the machine's factor.
// Kernels of a GPU run one after another; copies and sums of collectives take no time beside them. Links are those of
// transport/sim/fabric.h.
//
// On a machine of cores (core_machine.h) a kernel takes what was measured, and the rank's core does copies and sums.
//
// Not all ranks are played where some do the same (played_ranks.h), nor all layers where many ranks have many that are alike
// (few_layers.h); memory is that of all.
#pragma once

#include "core/program/program.h"
#include "core/virtual/player.h"
#include "layers/theory/kernel_price.h"
#include "layers/theory/layouts.h"
#include "layers/theory/machine.h"
#include "layers/theory/played_ranks.h"
#include "transport/sim/fabric.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::theory {

/// A rank whose kernels take longer.
struct SlowRank {
  int rank = 0;
  double factor = 1;  ///< how many times longer
};

/// Settings of a simulation.
struct SimulateOptions {
  bool fold = true;                          ///< play one unit of ranks for all, and some of many layers
  bool training = true;                      ///< a training step, else a forward pass
  bool blocking = false;                     ///< posted operations are waited for at once: shows what overlap saves
  int steps = 1;                             ///< played one after another; times are of one
  double host_seconds = 0;                   ///< as in PlayOptions
  bool binds = false;                        ///< finds out what binds, which takes one or a few more runs of virtual time
  bool trace = false;                        ///< records what every played rank does when
  bool tasks = false;                        ///< keeps programs, and what every played rank did as a graph of tasks
  std::vector<SlowRank> slow_ranks = {};     ///< stragglers; they need fold = false
  std::vector<sim::SlowWay> slow_ways = {};  ///< likewise, ways between ranks
  std::string algorithms = {};               ///< overrides of the choice table, see ChoiceTable
  bool reassociate = false;                  ///< allows summation orders that depend on which rank is on which node
  std::size_t threads = 1;                   ///< that record and play, where there are several steps or ranks to do; the result
                                             ///< doesn't depend on it
};

/// Traffic of the busiest link of one kind, in one step.
struct LinkUse {
  std::string kind;
  double busy = 0;   ///< share of the time in which it carried something
  double bytes = 0;  ///< bytes that it carried
};

/// Program of a rank for one step, with the prices of its kernels.
struct PricedProgram {
  Program program;
  std::vector<double> kernel_seconds;  ///< of each of its costs
};

/// A step in virtual time.
struct Simulated {
  double seconds = 0;
  double compute_seconds = 0;                       ///< of the rank that computes longest
  double exposed_seconds = 0;                       ///< in waits, of the rank that waits longest
  double flops = 0;                                 ///< of products and attention on all ranks of the world
  CategoryBytes memory_peaks{};                     ///< of the rank that holds most
  int fullest = 0;                                  ///< number of the rank that holds most
  std::array<std::uint64_t, kPurposes> received{};  ///< payload bytes of all ranks of the world, by purpose
  std::vector<LinkUse> links;
  std::uint64_t messages = 0;                                     ///< of all ranks of the world
  int played = 0;                                                 ///< ranks that were played
  double ranks_difference = 0;                                    ///< FewestRanks::difference()
  std::size_t layers = 0;                                         ///< layers that were played (few_layers.h)
  double layers_difference = 0;                                   ///< part by which what two more layers take differs
  std::vector<PlayedTrace> traces;                                ///< by played rank; empty unless that was asked for
  std::vector<LinkTrack> tracks;                                  ///< likewise: of all links, or of each kind's busiest
  double slice_seconds = 0;                                       ///< of a track
  std::vector<PricedProgram> programs;                            ///< by played rank; empty unless `tasks` asked for it
  std::vector<RankTasks> tasks;                                   ///< likewise, of all steps
  std::vector<std::map<std::uint64_t, std::vector<int>>> groups;  ///< of the traces' operations: by rank, and number, the members
  std::string binds;  ///< what would shorten the step most, or nearly so, if it took no time; empty if that wasn't asked for
};

/// Plays one step of the layout on the machine. Token ids are taken as equally frequent on every rank. Throws
/// Error(refused) for an impossible layout, or a machine that doesn't state FLOP/s for the dtype.
Simulated simulate(const MeshSetting& of, const Machine& machine, const SimulateOptions& options);

}  // namespace tsprun::detail::theory
