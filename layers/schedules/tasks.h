// What a rank computes, as a list that exists before it runs: tasks, in order. A training step of two micro-batches and three
// layers:
//
//   forward   micro-batch 0   embedding
//   forward   micro-batch 0   layers 0 to 2
//   forward   micro-batch 0   head
//   backward  micro-batch 0   head
//   backward  micro-batch 0   layers 2 to 0
//   backward  micro-batch 0   embedding
//   forward   micro-batch 1   …
//   reduce                                    sums over ranks that have copies, as far as they didn't begin before
//   update                                    of the parameters, with the gradients' norm
//
// A stage of a pipeline has some of the layers. It receives the residual from the stage before and sends it on to the next, and
// gradients the other way (pipeline.h). The last of two, of four layers, in the first micro-batch:
//
//   receive   micro-batch 0   residual over boundary 0
//   forward   micro-batch 0   layers 2 to 3
//   forward   micro-batch 0   head
//   backward  micro-batch 0   head
//   backward  micro-batch 0   layers 3 to 2
//   send      micro-batch 0   gradient over boundary 0
//
// The list drives the model (layers/model/model.h), and the ways of computing blocks look ahead in it: while one sublayer is
// computed, the weights of the next begin to move. Which is next the list says, and nobody guesses from the number of a layer.
#pragma once

#include "layers/layout/pipeline_stage.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail {

enum class TaskKind : std::uint8_t { forward, backward, send, receive, reduce, update };

/// Parts of a model that a task computes.
enum class Piece : std::uint8_t {
  embedding,
  layers,  ///< consecutive ones
  head     ///< with the final norm and the loss
};

/// One step of a list. `reduce` and `update` are of the whole model, or of all that the rank has of it.
struct ModelTask {
  TaskKind kind;
  std::size_t micro_batch = 0;
  Piece piece = Piece::layers;
  std::size_t first_layer = 0;  ///< of Piece::layers: computes [first_layer, first_layer + layers), backward the last first
  std::size_t layers = 0;
  /// Boundary behind the stage of this number, of `send` and `receive`, and whether the gradient goes back over it. Together
  /// with the micro-batch they tell the message from all others of the step.
  std::size_t boundary = 0;
  bool gradient = false;

  /// Returns whether it is part of a micro-batch's backward pass.
  bool is_backward() const { return kind == TaskKind::backward || gradient; }
  bool operator==(const ModelTask&) const = default;
};

/// Tasks in the order in which a rank does them.
using TaskList = std::vector<ModelTask>;

/// Returns what a stage does for a micro-batch on its way forward, or back.
TaskList pass_tasks(const PipelineStage& stage, std::size_t micro_batch, bool backward);
/// Returns the list of a training step without a pipeline: forward and backward pass of each micro-batch, one after another.
TaskList training_tasks(std::size_t layers, std::size_t micro_batches);
/// Checks the list of a training step in which several micro-batches may be under way at once: each has its pass_tasks(), in
/// their order, each of its forward tasks behind that of the micro-batch before, its backward pass behind all of that one's, so
/// that losses and gradients are added in order, and `reduce` and `update` come last. Throws std::logic_error that names the
/// first task that is elsewhere.
void check_training_tasks(const TaskList& tasks, const PipelineStage& stage, std::size_t micro_batches);
/// Returns the list of a forward pass alone: an evaluation's, or without the head a prompt's.
TaskList forward_tasks(std::size_t layers, bool head = true);
/// Returns the list as text, a line for each task, as at the top of this file.
std::string print(const TaskList& tasks);

enum class Sublayer : std::uint8_t { attention, mlp };

/// One computation with the weights of a sublayer.
struct Visit {
  std::size_t micro_batch;
  bool backward;
  std::size_t layer;
  Sublayer sublayer;

  /// Returns whether both are of one micro-batch and direction.
  bool same_pass(const Visit& other) const { return micro_batch == other.micro_batch && backward == other.backward; }
  bool operator==(const Visit&) const = default;
};

/// The visits of a list's tasks, in order, and how far a rank has come. A way of computing blocks says where it has arrived and
/// asks what comes next. Used by the rank's thread.
class Visits {
 public:
  Visits() = default;
  explicit Visits(const TaskList& tasks);

  /// Goes on to the next visit and returns it; it must be this one. Throws std::logic_error if the list has another or none: then
  /// whoever drives the sublayers and the list disagree.
  const Visit& arrive(const Visit& at);
  /// Returns the visit k places after the current one, from 1, or after the beginning if nothing has arrived yet; null: the list
  /// ends before.
  const Visit* upcoming(std::size_t k) const { return next_ + k - 1 < all_.size() ? &all_[next_ + k - 1] : nullptr; }
  /// Returns the first visit to come of this micro-batch and direction; null: the list has none.
  const Visit* next_of(std::size_t micro_batch, bool backward) const;
  /// Returns the next visit if it is of the current one's pass, else null: of another pass the rank may still wait for what it
  /// needs, or other ranks may still read what this one holds.
  const Visit* next_in_pass() const {
    const Visit* const next = upcoming(1);
    return next != nullptr && next_ > 0 && next->same_pass(all_[next_ - 1]) ? next : nullptr;
  }

 private:
  std::vector<Visit> all_;
  std::size_t next_ = 0;  // visits that have arrived
};

}  // namespace tsprun::detail
