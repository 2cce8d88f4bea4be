// Writes a rank's program (program.h): the compute stream tells it of kernels, the engine of operations and waits, the rank
// and its heap of memory.
#pragma once

#include "core/memory/heap.h"
#include "core/program/program.h"
#include "core/streams/engine.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tsprun::detail {

/// Time that one run of a kernel took.
struct KernelTime {
  std::uint64_t ns = 0;     ///< without communication in its ticks
  std::uint64_t ticks = 0;  ///< that it called
};

/// Records the program of one rank, real or phantom; used by the rank's thread. It is given to a Rank (RankOptions), which tells
/// it of memory from its beginning, and writes items between begin() and end() only.
class Recorder {
 public:
  /// Starts a program; `use` is what is in use in the rank's heap.
  void begin(const CategoryBytes& use);
  /// Lets the kernels of a phantom run, whose operations still move nothing, so that they can be timed: see kernel_times(). Call
  /// it before the Rank is made. What others would have sent is zero.
  void run_kernels() { runs_kernels_ = true; }
  bool runs_kernels() const { return runs_kernels_; }
  /// Lets each call note what all members of its group receive, which takes time that grows with the group's size squared.
  void count_received() { counts_received_ = true; }
  /// Returns true if new memory must be written, so that kernels which only read it read memory, not the system's page of zeros.
  bool needs_pages() const { return runs_kernels_ && !recording_; }
  /// Ends the program and returns it. Nothing is recorded until the next begin().
  Program end();

  /// Notes how many operations a stream has had before the first that the recorder will hear of.
  void count(Stream stream, std::uint64_t posted) { posted_[static_cast<std::size_t>(stream)] = posted; }
  /// Each adds an item. Numbers are the engine's: of an operation on its stream, from 1.
  void kernel(const KernelCost& cost);
  /// Notes how long the last kernel took, if kernels run.
  void kernel_took(const KernelTime& time) {
    if (recording_ && runs_kernels_) times_.push_back(time);
  }
  /// Returns the times of the kernels since the last begin(), one for each item of kind kernel.
  const std::vector<KernelTime>& kernel_times() const { return times_; }
  void post(Stream stream, const Operation& operation, std::uint64_t number) { add(ItemKind::post, stream, operation, number); }
  void call(Stream stream, const Operation& operation, std::uint64_t number) { add(ItemKind::call, stream, operation, number); }
  void wait(Stream stream, std::uint64_t number);
  void stage(PassPart part, bool backward);
  void take(std::span<const std::byte> memory, Category category);
  /// Does nothing if take() wasn't told of this memory: operations' own memory isn't the schedule's.
  void give(std::span<const std::byte> memory);

 private:
  void add(ItemKind kind, Stream stream, const Operation& operation, std::uint64_t number);
  /// Returns the number within the program of an operation; 0: it was posted before.
  std::uint64_t relative(Stream stream, std::uint64_t number) const;

  bool recording_ = false;
  bool runs_kernels_ = false;
  bool counts_received_ = false;
  std::vector<KernelTime> times_;
  Program program_;
  std::unordered_multimap<std::size_t, std::uint32_t> costs_;  // hash of a cost -> its index
  std::unordered_multimap<std::size_t, std::uint32_t> calls_;
  std::uint64_t before_[kQueues] = {};  // operations of each stream that were posted before the program
  std::uint64_t posted_[kQueues] = {};
  std::unordered_map<const std::byte*, Category> taken_;
};

}  // namespace tsprun::detail
