// Makes lists of tasks and the visits that follow from them.
#include "layers/schedules/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>

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
  return fmt::format("layer {}, {}, {}", visit.layer, visit.sublayer == Sublayer::attention ? "attention" : "MLP",
                     visit.backward ? "backward" : "forward");
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

const Visit& Visits::arrive(bool backward, std::size_t layer, Sublayer sublayer) {
  const Visit* const next = upcoming(1);
  if (next == nullptr || next->backward != backward || next->layer != layer || next->sublayer != sublayer) {
    throw std::logic_error(fmt::format("computed: {}; in the list of tasks comes next: {}",
                                       describe({.micro_batch = 0, .backward = backward, .layer = layer, .sublayer = sublayer}),
                                       next == nullptr ? "nothing" : describe(*next)));
  }
  ++next_;
  return *next;
}

}  // namespace tsprun::detail
