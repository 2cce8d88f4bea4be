// Makes lists of tasks and the visits that follow from them.
#include "layers/schedules/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tsprun::detail {

namespace {

std::string_view name(TaskKind kind) {
  switch (kind) {
    case TaskKind::forward: return "forward";
    case TaskKind::backward: return "backward";
    case TaskKind::send: return "send";
    case TaskKind::receive: return "receive";
    case TaskKind::reduce: return "reduce";
    case TaskKind::update: return "update";
  }
  return "";
}

/// Returns what a task of a micro-batch computes or moves.
std::string object(const ModelTask& task) {
  if (task.kind == TaskKind::send || task.kind == TaskKind::receive)
    return fmt::format("{} over boundary {}", task.gradient ? "gradient" : "residual", task.boundary);
  if (task.piece == Piece::embedding) return "embedding";
  if (task.piece == Piece::head) return "head";
  const std::size_t last = task.first_layer + std::max<std::size_t>(task.layers, 1) - 1;
  return task.kind == TaskKind::backward ? fmt::format("layers {} to {}", last, task.first_layer)
                                         : fmt::format("layers {} to {}", task.first_layer, last);
}

std::string describe(const Visit& visit) {
  return fmt::format("micro-batch {}, layer {}, {}, {}", visit.micro_batch, visit.layer,
                     visit.sublayer == Sublayer::attention ? "attention" : "MLP", visit.backward ? "backward" : "forward");
}

}  // namespace

TaskList pass_tasks(const PipelineStage& stage, std::size_t micro_batch, bool backward) {
  const TaskKind computes = backward ? TaskKind::backward : TaskKind::forward;
  const ModelTask embedding{.kind = computes, .micro_batch = micro_batch, .piece = Piece::embedding};
  const ModelTask layers{.kind = computes, .micro_batch = micro_batch, .first_layer = stage.first_layer, .layers = stage.layers};
  const ModelTask head{.kind = computes, .micro_batch = micro_batch, .piece = Piece::head};
  const auto message = [&](TaskKind kind, std::size_t boundary) {
    return ModelTask{.kind = kind, .micro_batch = micro_batch, .boundary = boundary, .gradient = backward};
  };
  if (backward) {
    return {stage.last() ? head : message(TaskKind::receive, stage.number), layers,
            stage.first() ? embedding : message(TaskKind::send, stage.number - 1)};
  }
  return {stage.first() ? embedding : message(TaskKind::receive, stage.number - 1), layers,
          stage.last() ? head : message(TaskKind::send, stage.number)};
}

TaskList training_tasks(std::size_t layers, std::size_t micro_batches) {
  TaskList tasks;
  for (std::size_t m = 0; m < micro_batches; ++m) {
    for (const bool backward : {false, true})
      std::ranges::copy(pass_tasks(PipelineStage::whole(layers), m, backward), std::back_inserter(tasks));
  }
  tasks.push_back({.kind = TaskKind::reduce});
  tasks.push_back({.kind = TaskKind::update});
  return tasks;
}

void check_training_tasks(const TaskList& tasks, const PipelineStage& stage, std::size_t micro_batches) {
  TaskList of_one = pass_tasks(stage, 0, false);
  std::ranges::copy(pass_tasks(stage, 0, true), std::back_inserter(of_one));
  const std::array last = {ModelTask{.kind = TaskKind::reduce}, ModelTask{.kind = TaskKind::update}};
  const std::size_t all = of_one.size() * micro_batches;
  std::vector<std::size_t> done(micro_batches);
  std::size_t ended = 0;
  const auto fits = [&](std::size_t i) {
    ModelTask task = tasks[i];
    if (ended == micro_batches) return i - all < last.size() && task == last[i - all];
    const std::size_t m = std::exchange(task.micro_batch, 0);
    if (m >= micro_batches || done[m] == of_one.size() || task != of_one[done[m]]) return false;
    if (task.is_backward() && m != ended) return false;
    // The head of the last one sums up the losses of all, and that of the first begins the sum of their gradients.
    if (!task.is_backward() && m > 0 && done[m - 1] <= done[m]) return false;
    if (++done[m] == of_one.size()) ++ended;
    return true;
  };
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!fits(i)) throw std::logic_error(fmt::format("a task where the list of a step can't have it:\n{}", print({tasks[i]})));
  }
  if (tasks.size() != all + last.size()) throw std::logic_error("a list of a step that ends early");
}

TaskList forward_tasks(std::size_t layers, bool head) {
  TaskList tasks = pass_tasks(PipelineStage::whole(layers), 0, false);
  if (!head) tasks.pop_back();
  return tasks;
}

std::string print(const TaskList& tasks) {
  std::string text;
  for (const ModelTask& each : tasks) {
    if (each.kind == TaskKind::reduce || each.kind == TaskKind::update) {
      text += fmt::format("{}\n", name(each.kind));
      continue;
    }
    text += fmt::format("{:<10}micro-batch {:<4}{}\n", name(each.kind), each.micro_batch, object(each));
  }
  return text;
}

Visits::Visits(const TaskList& tasks) {
  for (const ModelTask& each : tasks) {
    if (each.piece != Piece::layers) continue;  // of messages and sums there are no layers
    for (std::size_t i = 0; i < each.layers; ++i) {
      if (each.kind == TaskKind::forward) {
        const std::size_t layer = each.first_layer + i;
        all_.push_back({each.micro_batch, false, layer, Sublayer::attention});
        all_.push_back({each.micro_batch, false, layer, Sublayer::mlp});
      } else {
        const std::size_t layer = each.first_layer + each.layers - 1 - i;
        all_.push_back({each.micro_batch, true, layer, Sublayer::mlp});
        all_.push_back({each.micro_batch, true, layer, Sublayer::attention});
      }
    }
  }
}

const Visit* Visits::next_of(std::size_t micro_batch, bool backward) const {
  for (std::size_t i = next_; i < all_.size(); ++i) {
    if (all_[i].micro_batch == micro_batch && all_[i].backward == backward) return &all_[i];
  }
  return nullptr;
}

const Visit& Visits::arrive(const Visit& at) {
  const Visit* const next = upcoming(1);
  if (next == nullptr || *next != at) {
    throw std::logic_error(fmt::format("computed: {}; in the list of tasks comes next: {}", describe(at),
                                       next == nullptr ? "nothing" : describe(*next)));
  }
  ++next_;
  return *next;
}

}  // namespace tsprun::detail
