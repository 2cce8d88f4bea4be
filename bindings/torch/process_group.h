// The torch.distributed backend "tsprun": a process group whose collectives are a communicator's.
//
// All process groups of a process share one Context and one Progress (Member), which live until the process leaves the job. Every
// call posts one operation and returns a work object; a call's tensors are kept until its operation is over.
#pragma once

#include "callback_threads.h"
#include "tsprun/tsprun.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace tsprun::torch_binding {

#if TORCH_VERSION_MAJOR >= 2
using GroupBase = c10d::Backend;
#else
using GroupBase = c10d::ProcessGroup;
#endif
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// This process as a rank of its job: all process groups share it. Used by any thread.
class Member {
 public:
  explicit Member(Context joined) : context_(std::move(joined)), progress_(std::make_shared<Progress>(context_)) {}

  ~Member();

  const Context& context() const { return context_; }
  /// Returns the threads that complete futures.
  CallbackThreads& callbacks() { return *callbacks_; }
  /// Returns what shares the context among threads, to be used for one call. Throws if the process has left the job.
  std::shared_ptr<Progress> progress() const;
  /// Waits for pending operations and callbacks, and leaves the job as Context::leave() does. Must not be called by a callback.
  /// The heap's blocks stay usable as long as this object lives.
  void leave();
  /// Destroys a communicator while nobody else uses the context.
  void drop(std::unique_ptr<Communicator> communicator);
  /// Returns true if the job has failed, or was left.
  bool has_failed() const;
  /// Allocates a block of the rank's heap for a tensor; an empty one if such blocks would take more than half of the heap, or it
  /// has no room, or the process has left or was forked.
  HeapBlock allocate(std::size_t bytes);
  /// Gives a block back. Does nothing in a process that was forked from the rank's.
  void give_back(HeapBlock block);

 private:
  Context context_;
  mutable std::mutex mutex_;            // guards what follows
  std::shared_ptr<Progress> progress_;  // null: the process has left
  std::vector<HeapBlock> kept_;         // given back when nobody could take them any more
  std::uint64_t tensor_bytes_ = 0;      // allocated and not given back; used within Progress::use()
  const pid_t process_ = ::getpid();
  std::unique_ptr<CallbackThreads> callbacks_ = std::make_unique<CallbackThreads>();
};

/// Returns the process's membership; null if it hasn't joined, or has left.
std::shared_ptr<Member> current_membership();

/// Returns the process's membership, after joining if there is none: as rank `rank` of `size`, the first time where tsprun
/// started this process, else through `store`. Throws if the job that was joined has another size or gave this process another
/// rank.
std::shared_ptr<Member> membership(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);
/// Leaves the job, or does nothing if `only_if_failed` and it hasn't failed; process groups that still exist can't be used any
/// more. Throws the mismatch that Context::leave() finds.
void leave(bool only_if_failed = false);
/// Ends the job with this text, as fail() does, and leaves it without waiting for anybody. Does nothing if there is none.
void abort(const std::string& text);
/// Ends the job, as Context::fail() does. Throws also if this process hasn't joined one.
[[noreturn]] void fail(const std::string& text);
/// Makes torch's host tensors of `smallest` bytes or more lie in the rank's heap from now on, where there is room, so that
/// collectives move them with one copy. Throws if this process hasn't joined a job.
void use_heap(std::size_t smallest);
/// Returns a tensor of `size` elements, uninitialized, that lies in the rank's heap where there is room.
at::Tensor in_heap(const std::shared_ptr<Member>& member, std::int64_t size, const at::TensorOptions& options);

/// A process group of torch.distributed.
class TsprunGroup : public GroupBase {
 public:
  /// Makes the group of world ranks `members`, in the order of the group (empty: of all); all of them call it. `store` is the
  /// group's own, `stream` that of its collectives, the same on all ranks; none: the group has a channel of its own. (Messages
  /// have tags, and need neither.) Profiles and errors begin with `name`.
  TsprunGroup(std::shared_ptr<Member> member, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
              const std::vector<int>& members, std::optional<Stream> stream, std::chrono::milliseconds timeout, std::string name);
  ~TsprunGroup() override;

  /// Returns true if a group of this process that has others as members uses the stream.
  static bool uses(Stream stream);

  const std::string getBackendName() const override { return "tsprun"; }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return allreduce(tensors, options);
  }
#endif
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
  at::Tensor allocateTensor(long size, at::TensorOptions options) override { return in_heap(member_, size, options); }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
#endif
#if TORCH_VERSION_MAJOR >= 2
  void setTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }  // overrides the one that later versions of 2.x have
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
#endif
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  /// Lets coalesced() have what this group is given from now on. What an earlier call let it have is forgotten.
  void startCoalescing() override;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  WorkPtr endCoalescing() override { return coalesced(); }
#else
  void endCoalescing(std::vector<WorkPtr>& /*theirs*/) override { coalesced(); }
#endif
  /// Returns one work object for all operations since startCoalescing(), which are on their way, each by itself. Throws if that
  /// wasn't called.
  WorkPtr coalesced();
  /// Waits until all ranks have called it; after the timeout rank 0 names the first that hasn't, or all of them, and tells the
  /// others. It goes by the store, so that nothing is left pending: the group can be used on.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return posted_; }

 private:
  /// One operation to be posted.
  struct Job {
    const char* call;
    c10d::OpType type;
    Tensors inputs;                                   ///< kept until the operation is over, like the outputs
    Tensors outputs;                                  ///< the result, as the work's future gives it
    Tensors shown = {};                               ///< the caller's tensors, for profiles; empty: the inputs
    std::shared_ptr<MessageInfo> received = nullptr;  ///< of a receive
    bool inner = false;                               ///< a part of another operation, which no caller sees
  };
  WorkPtr start(Job job, std::function<void()> finish, const std::function<tsprun::Work(Communicator&)>& post);
  CallOptions call_options() const;
  WorkPtr allreduce_of_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op);
  WorkPtr receive(const char* call, c10d::OpType type, Tensors& tensors, int from, int tag);

  std::string name_;
  std::shared_ptr<Member> member_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<Stream> stream_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> posted_{0};
  std::int64_t life_;            // how many groups this rank has made on the store: it may outlive them, with their keys
  std::uint64_t monitored_ = 0;  // monitored barriers so far
  std::mutex coalescing_mutex_;
  std::optional<std::vector<WorkPtr>> coalescing_;  // guarded by that; none: nobody called startCoalescing()
};

}  // namespace tsprun::torch_binding
