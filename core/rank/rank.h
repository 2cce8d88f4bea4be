// A rank as schedules see it: memory by category, the compute stream, communicators, waits and times. A schedule allocates,
// computes and communicates only through this class, so that the same schedule can be audited, traced, and run on a phantom,
// which only counts memory.
#pragma once

#include "core/context.h"
#include "core/memory/owned_tensor.h"
#include "core/program/recorder.h"
#include "core/rank/compute_stream.h"
#include "core/rank/finite_watch.h"
#include "core/rank/piece_sizes.h"

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Options of Rank.
struct RankOptions {
  std::size_t threads = 1;         ///< compute threads; results are the same bits for any number
  TraceRecorder* trace = nullptr;  ///< records kernels, waits and operations; null: no trace; borrowed
  Recorder* recorder = nullptr;    ///< records the rank's program; null: nothing does; borrowed
  PieceSizes pieces = {};          ///< of those that schedules work in
};

/// Times of a rank in seconds, since the Rank was made or since reset_times().
struct RankTimes {
  double total = 0;
  double compute = 0;                ///< in kernels, without the ticks that moved communication
  double communication = 0;          ///< in those ticks, and in waits for communication
  double exposed_communication = 0;  ///< in waits only: the part that computation did not hide
};

/// Memory in which a rank keeps lists of its own, such as labels, counted like its tensors.
class ListMemory {
 public:
  std::span<std::byte> bytes() { return elsewhere_.empty() ? block_.bytes() : std::span(elsewhere_); }

 private:
  friend class Rank;
  HeapBlock block_;
  std::vector<std::byte> elsewhere_;  // of a phantom, whose heap nobody may touch
};

/// Executes what a schedule asks for on this rank: kernels, memory, communication and times. Used by one thread.
class Rank {
 public:
  /// Uses `context`, which must outlive the rank. With a trace, makes it observe the engine.
  explicit Rank(Context& context, const RankOptions& options = {});
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank();

  int rank() const { return context_.rank(); }
  int size() const { return context_.size(); }
  Context& context() { return context_; }
  /// Returns true if nothing is computed or moved: see make_phantom().
  bool is_phantom() const { return engine_of(context_).options().phantom; }
  Communicator& world() { return context_.world(); }
  /// Returns the sizes of the pieces that schedules work in.
  const PieceSizes& pieces() const { return pieces_; }
  ComputeStream& compute() { return compute_; }
  /// Returns the trace, to which schedules add spans (TraceSpan); null: none.
  TraceRecorder* trace() const { return trace_; }

  /// Allocates a contiguous tensor in the heap; it isn't zeroed. `what` names it in errors. Throws Error(out_of_memory).
  OwnedTensor tensor(Category category, DType dtype, std::span<const std::size_t> sizes, std::string_view what);
  OwnedTensor tensor(Category category, DType dtype, std::initializer_list<std::size_t> sizes, std::string_view what) {
    return tensor(category, dtype, std::span(sizes.begin(), sizes.size()), what);
  }
  /// Allocates memory for lists. `what` names them in errors. Throws Error(out_of_memory).
  ListMemory list_memory(Category category, std::size_t bytes, std::string_view what);
  /// Returns the heap's peaks by category, see Heap::peaks().
  const CategoryBytes& memory_peaks() { return heap_of(context_).peaks(); }

  /// Waits until the operation is complete; the time counts as exposed communication.
  void wait(Work work);
  /// Sets the watch that examines the tensors computed from now on; null: none. Borrowed.
  void watch(FiniteWatch* watch) { watch_ = watch; }
  /// Says that what comes next belongs to this part of a pass, for a recorder, and to the stage that name() returns, for a
  /// FiniteWatch. Does nothing without them.
  template <class Name>
  void enter_stage(PassPart part, bool backward, Name&& name) {
    if (recorder_ != nullptr) recorder_->stage(part, backward);
    if (watch_ != nullptr) watch_->enter(name());
  }
  /// Says how many stages of a pass stand before the one that is entered next, for a FiniteWatch. Does nothing without one.
  void skip_to_stage(std::uint64_t stages) {
    if (watch_ != nullptr) watch_->skip_to(stages);
  }
  /// Shows the watch, if there is one, a tensor of the present stage.
  void look(Watched what, const ConstTensor& tensor) {
    if (watch_ != nullptr) watch_->look(what, tensor);
  }
  /// Gives a sign of life and makes progress on communication. Call it during long work outside kernels (file access, for
  /// instance).
  void tick() { context_.tick(); }

  /// Returns the rank's times so far.
  RankTimes times() const;
  /// Starts all times anew at 0.
  void reset_times();

 private:
  Context& context_;
  TraceRecorder* trace_;
  Recorder* recorder_;
  FiniteWatch* watch_ = nullptr;
  ComputeStream compute_;
  std::uint64_t begun_ns_;
  std::uint64_t waited_ns_ = 0;
  RankTimes before_;
  PieceSizes pieces_;
};

/// A tensor together with the posted operation that fills or reads it.
struct Transfer {
  OwnedTensor tensor;
  Work work;
};

}  // namespace tsprun::detail
