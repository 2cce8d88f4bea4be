// A played step in GOAL, the format of LogGOPSim (T. Hoefler and others): of each rank what it computes, sends and receives, and
// what has to be over before.
//
//   num_ranks 2
//   rank 0 {
//   l0: calc 5000                          a kernel: nanoseconds
//   l1: send 4096b to 1 tag 5 cpu 2        a message of an operation on stream weights
//   l1 requires l0
//   …
//   }
//
// Kernels occupy cpu 0 of their rank, messages cpu 1 + their stream, so that both go on at once, as on a GPU. A message's tag is
// its number on its way, times four, plus its stream: both ends have it, and no other message between the two. `calc 0` joins
// tasks. A message without payload has 1 byte, since LogGOPSim takes one byte off each size.
#pragma once

#include "core/virtual/task_graph.h"

#include <span>
#include <string>

namespace tsprun::detail::launcher {

/// Writes the tasks of all ranks. Throws Error(refused) if the file can't be written.
void write_goal(std::span<const RankTasks> ranks, const std::string& path);

}  // namespace tsprun::detail::launcher
