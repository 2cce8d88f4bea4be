// Orders the tasks of the stages of a pipeline.
#include "layers/schedules/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace tsprun::detail {

namespace {

/// Messages over a boundary in one direction, in order.
struct Messages {
  std::size_t sent = 0;
  std::size_t received = 0;
};

/// Returns whether a task need not wait, and if so, does what it does to the messages, [boundary][gradient].
bool goes_on(const ModelTask& task, std::vector<std::array<Messages, 2>>& messages) {
  if (task.kind != TaskKind::send && task.kind != TaskKind::receive) return true;
  Messages& over = messages[task.boundary][task.gradient ? 1 : 0];
  if (over.sent != over.received + (task.kind == TaskKind::send ? 0 : 1)) return false;
  ++(task.kind == TaskKind::send ? over.sent : over.received);
  return true;
}

}  // namespace

TaskList training_tasks(PipelineSchedule schedule, const PipelineStage& stage, std::size_t micro_batches) {
  TaskList tasks;
  const auto pass = [&](std::size_t micro_batch, bool backward) {
    std::ranges::copy(pass_tasks(stage, micro_batch, backward), std::back_inserter(tasks));
  };
  const std::size_t ahead = schedule == PipelineSchedule::gpipe ? micro_batches : stage.count - stage.number;
  // The backward pass that is due after a forward pass is that of the micro-batch `ahead` − 1 before it.
  for (std::size_t i = 0; i + 1 < micro_batches + ahead; ++i) {
    if (i < micro_batches) pass(i, false);
    if (i + 1 >= ahead && i + 1 - ahead < micro_batches) pass(i + 1 - ahead, true);
  }
  tasks.push_back({.kind = TaskKind::reduce});
  tasks.push_back({.kind = TaskKind::update});
  return tasks;
}

void check_pipeline(std::span<const TaskList> stages, std::size_t layers, std::size_t micro_batches) {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    try {
      check_training_tasks(stages[i], PipelineStage::of(layers, stages.size(), i), micro_batches);
    } catch (const std::logic_error& error) {
      throw std::logic_error(fmt::format("stage {}: {}", i, error.what()));
    }
  }
  // Each goes on as far as it can, again and again: who waits then, waits for ever. No order of the stages leads elsewhere, since
  // no task takes from one stage what another one may have.
  std::vector<std::size_t> done(stages.size());
  std::vector<std::array<Messages, 2>> messages(stages.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (; done[i] < stages[i].size() && goes_on(stages[i][done[i]], messages); ++done[i]) moved = true;
    }
  }
  std::string waiting;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (done[i] < stages[i].size()) waiting += fmt::format("\nstage {}: {}", i, print({stages[i][done[i]]}));
  }
  if (!waiting.empty()) throw std::logic_error("stages that wait for each other:" + waiting);
}

}  // namespace tsprun::detail
