// A rank as schedules see it: memory by category, the compute stream, communicators, waits, the clock. Everything that a schedule
// does to bytes goes through here, so that the same schedule can be audited, traced, and run on a phantom, which only books
// memory.
#pragma once

#include "core/context.h"
#include "core/memory/owned_tensor.h"
#include "core/rank/compute_stream.h"
#include "core/rank/finite_watch.h"

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace tsprun {

struct RankOptions {
  std::size_t threads = 1;  ///< compute threads; never change a bit of a result
  Trace* trace = nullptr;   ///< borrowed; notes kernels, waits and operations; null: no trace
};

/// Seconds of a rank since it began (or since reset_times()).
struct RankTimes {
  double total = 0;
  double compute = 0;                ///< in kernels
  double communication = 0;          ///< moving bytes in kernels' ticks, and waiting for them
  double exposed_communication = 0;  ///< the part of it that compute waited for
};

class Rank {
 public:
  /// `context` must outlive the rank.
  explicit Rank(Context& context, const RankOptions& options = {});
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank();

  int rank() const { return context_.rank(); }
  int size() const { return context_.size(); }
  Context& context() { return context_; }
  /// Nothing is computed or moved: see Context::phantom().
  bool is_phantom() const { return context_.engine().options().phantom; }
  Communicator& world() { return context_.world(); }
  ComputeStream& compute() { return compute_; }

  /// Memory that isn't zeroed. `what` names the tensor if it doesn't fit. Throws Error(out_of_memory).
  OwnedTensor tensor(Category category, DType dtype, std::span<const std::size_t> sizes, std::string_view what);
  OwnedTensor tensor(Category category, DType dtype, std::initializer_list<std::size_t> sizes, std::string_view what) {
    return tensor(category, dtype, std::span(sizes.begin(), sizes.size()), what);
  }
  const CategoryBytes& memory_peaks() { return context_.heap().peaks(); }

  /// Returns when the operation is complete; the time counts as exposed communication.
  void wait(Work work);
  /// Who looks at the tensors that are computed from now on; borrowed. Null: nobody.
  void watch(FiniteWatch* watch) { watch_ = watch; }
  /// For whoever computes tensors: what is computed next belongs to this stage; this is one of its tensors. Without a watch
  /// nothing happens.
  template <class Name>
  void enter_stage(Name&& name) {
    if (watch_ != nullptr) watch_->enter(name());
  }
  void look(Watched what, const ConstTensor& tensor) {
    if (watch_ != nullptr) watch_->look(what, tensor);
  }
  /// A sign of life where no kernel runs (file access, say).
  void tick() { context_.engine().tick(); }

  RankTimes times() const;
  void reset_times();

 private:
  Context& context_;
  Trace* trace_;
  FiniteWatch* watch_ = nullptr;
  ComputeStream compute_;
  std::uint64_t begun_ns_;
  std::uint64_t waited_ns_ = 0;
  RankTimes before_;
};

/// A tensor that an operation fills or reads, and that operation.
struct Transfer {
  OwnedTensor tensor;
  Work work;
};

}  // namespace tsprun
