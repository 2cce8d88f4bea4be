// Pipelines: the layers of a model are cut into stages, which hold other layers and compute one after the other. Micro-batches
// keep them busy at once: while a stage computes one, the stages before it compute later ones. A schedule says in which order a
// stage does its tasks, and so how many micro-batches are under way on it. F is a forward, B a backward pass, three
// micro-batches:
//
//   gpipe   stage 0  F0 F1 F2 ..................... B0 B1 B2        all of them on every stage
//           stage 1     F0 F1 F2 B0 B1 B2
//   1f1b    stage 0  F0 F1 .... B0 F2 .... B1 .... B2               on the last stage one, on each before it one more
//           stage 1     F0 B0 F1 B1 F2 B2
//
// Both leave each stage idle for (P − 1)/(M + P − 1) of a step, if stages are alike: P stages, M micro-batches.
//
// What passes a boundary is a message of its own for each micro-batch and direction. A receive waits for its message. A send
// doesn't wait for the receive of its own message, or neighbours that send to each other would wait for ever; it waits for the
// receive of the message before, over the same boundary in the same direction, so that a rank keeps at most one that nobody has
// taken.
#pragma once

#include "layers/schedules/tasks.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

enum class PipelineSchedule : std::uint8_t {
  gpipe,                    ///< all forward passes, then all backward passes
  one_forward_one_backward  ///< 1f1b: a backward pass as soon as it can be, then the next forward pass
};

/// Returns the list of a training step on a stage.
TaskList training_tasks(PipelineSchedule schedule, const PipelineStage& stage, std::size_t micro_batches);
/// Checks the lists of a step on all stages of a model of so many layers: each is as check_training_tasks() says, and together
/// they come to their ends, whatever time each task takes. Throws std::logic_error that names the stage, and for stages that
/// would wait for each other the task of each.
void check_pipeline(std::span<const TaskList> stages, std::size_t layers, std::size_t micro_batches);

}  // namespace tsprun::detail
