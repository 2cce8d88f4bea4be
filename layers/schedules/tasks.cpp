// Makes lists of tasks and the visits that follow from them.
#include "layers/schedules/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tsprun::detail {

namespace {

constexpr std::array kPieces = {Piece::embedding, Piece::layers, Piece::head};

ModelTask task(TaskKind kind, std::size_t micro_batch, Piece piece, std::size_t layers) {
  return {
      .kind = kind, .micro_batch = micro_batch, .piece = piece, .first_layer = 0, .layers = piece == Piece::layers ? layers : 0};
}

std::string_view name(TaskKind kind) {
  switch (kind) {
    case TaskKind::forward: return "forward";
    case TaskKind::backward: return "backward";
    case TaskKind::reduce: return "reduce";
    case TaskKind::update: return "update";
  }
  return "";
}

std::string describe(const Visit& visit) {
  return fmt::format("micro-batch {}, layer {}, {}, {}", visit.micro_batch, visit.layer,
                     visit.sublayer == Sublayer::attention ? "attention" : "MLP", visit.backward ? "backward" : "forward");
}

}  // namespace

TaskList training_tasks(std::size_t layers, std::size_t micro_batches) {
  TaskList tasks;
  for (std::size_t m = 0; m < micro_batches; ++m) {
    for (const Piece piece : kPieces) tasks.push_back(task(TaskKind::forward, m, piece, layers));
    for (auto piece = kPieces.rbegin(); piece != kPieces.rend(); ++piece)
      tasks.push_back(task(TaskKind::backward, m, *piece, layers));
  }
  tasks.push_back({.kind = TaskKind::reduce});
  tasks.push_back({.kind = TaskKind::update});
  return tasks;
}

void check_training_tasks(const TaskList& tasks, std::size_t layers, std::size_t micro_batches) {
  const TaskList of_one = training_tasks(layers, 1);
  const std::size_t each = of_one.size() - 2;  // besides reduce and update
  std::vector<std::size_t> done(micro_batches);
  std::size_t ended = 0;
  const auto fits = [&](std::size_t i) {
    ModelTask task = tasks[i];
    if (ended == micro_batches) return i - each * micro_batches < 2 && task == of_one[i - each * (micro_batches - 1)];
    const std::size_t m = std::exchange(task.micro_batch, 0);
    if (m >= micro_batches || done[m] == each || task != of_one[done[m]]) return false;
    if (task.kind == TaskKind::backward && m != ended) return false;
    // The head of the last one sums up the losses of all, and that of the first begins the sum of their gradients.
    if (task.kind == TaskKind::forward && m > 0 && done[m - 1] <= done[m]) return false;
    if (++done[m] == each) ++ended;
    return true;
  };
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!fits(i)) throw std::logic_error(fmt::format("a task where the list of a step can't have it:\n{}", print({tasks[i]})));
  }
  if (tasks.size() != each * micro_batches + 2) throw std::logic_error("a list of a step that ends early");
}

TaskList forward_tasks(std::size_t layers, bool head) {
  TaskList tasks;
  for (const Piece piece : kPieces) {
    if (piece != Piece::head || head) tasks.push_back(task(TaskKind::forward, 0, piece, layers));
  }
  return tasks;
}

std::string print(const TaskList& tasks) {
  std::string text;
  for (const ModelTask& each : tasks) {
    if (each.kind == TaskKind::reduce || each.kind == TaskKind::update) {
      text += fmt::format("{}\n", name(each.kind));
      continue;
    }
    const std::size_t last = each.first_layer + std::max<std::size_t>(each.layers, 1) - 1;
    const bool backward = each.kind == TaskKind::backward;
    const std::string piece = each.piece == Piece::embedding ? "embedding"
                              : each.piece == Piece::head    ? "head"
                              : backward                     ? fmt::format("layers {} to {}", last, each.first_layer)
                                                             : fmt::format("layers {} to {}", each.first_layer, last);
    text += fmt::format("{:<10}micro-batch {:<4}{}\n", name(each.kind), each.micro_batch, piece);
  }
  return text;
}

Visits::Visits(const TaskList& tasks) {
  for (const ModelTask& each : tasks) {
    if (each.piece != Piece::layers) continue;
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
