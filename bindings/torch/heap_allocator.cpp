// Torch's allocator of host memory that takes large tensors from the rank's heap, where collectives find them without a copy.
#include "process_group.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <memory>
#include <mutex>
#include <optional>
#include <pthread.h>
#include <unordered_map>
#include <utility>

namespace tsprun::torch_binding {

namespace {

/// Priority above that of torch's own allocator.
constexpr std::uint8_t kPriority = 1;

/// The memory of one tensor.
struct Block {
  std::shared_ptr<Member> member;
  HeapBlock memory;
};

/// Torch's own allocator.
c10::Allocator& others() {
  static c10::Allocator* const own = c10::GetCPUAllocator();
  return *own;
}

/// The blocks that tensors have, by address. Torch gives memory back by its address alone: parts of it (convolutions, quantized
/// layers) take raw memory from an allocator, whose deleter then gets any that it ever handed out.
class Blocks {
 public:
  void add(void* data, Block block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.emplace(data, std::move(block));
  }
  /// Returns the block that begins there and forgets it; none: the memory isn't of the heap.
  std::optional<Block> take(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = blocks_.find(data);
    if (at == blocks_.end()) return std::nullopt;
    return std::move(blocks_.extract(at).mapped());
  }
  /// A process that is forked meanwhile gets the lock free.
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
};

/// Never destroyed: torch may free tensors until the process ends.
Blocks& blocks() {
  static auto* const all = [] {
    auto* const made = new Blocks();
    ::pthread_atfork([] { blocks().hold(); }, [] { blocks().let_go(); }, [] { blocks().let_go(); });
    return made;
  }();
  return *all;
}

void give_back(void* data) {
  if (std::optional<Block> block = blocks().take(data)) block->member->give_back(std::move(block->memory));
  else others().raw_deallocate(data);
}

class HeapAllocator : public c10::Allocator {
 public:
  HeapAllocator(const std::shared_ptr<Member>& member, std::size_t smallest) : member_(member), smallest_(smallest) {}

#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override { return block_of(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return block_of(bytes); }
#endif
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

 private:
  c10::DataPtr block_of(std::size_t bytes) const {
    if (bytes >= smallest_) {
      if (std::shared_ptr<Member> member = member_.lock()) {
        if (HeapBlock memory = member->allocate(bytes); !memory.bytes().empty()) {
          void* const data = memory.bytes().data();
          blocks().add(data, {std::move(member), std::move(memory)});
          return {data, data, &give_back, c10::Device(c10::kCPU)};
        }
      }
    }
    return others().allocate(bytes);
  }

  std::weak_ptr<Member> member_;
  std::size_t smallest_;
};

}  // namespace

void use_heap(std::size_t smallest) {
  const std::shared_ptr<Member> member = current_membership();
  TORCH_CHECK(member, "use_heap: this process has no heap yet; call it after init_process_group(\"tsprun\")");
  TORCH_CHECK(smallest > 0, "use_heap: tensors of 1 byte or more can lie in the heap, not of ", smallest);
  others();  // while it is still the one in use
  blocks();
  // Never destroyed: torch may allocate until the process ends.
  c10::SetCPUAllocator(new HeapAllocator(member, smallest), kPriority);
}

at::Tensor in_heap(const std::shared_ptr<Member>& member, std::int64_t size, const at::TensorOptions& options) {
  HeapBlock memory;
  if (options.device().is_cpu()) memory = member->allocate(static_cast<std::size_t>(size) * options.dtype().itemsize());
  if (memory.bytes().empty()) return at::empty({size}, options);
  void* const data = memory.bytes().data();
  blocks().add(data, {member, std::move(memory)});
  return at::from_blob(data, {size}, &give_back, options);
}

}  // namespace tsprun::torch_binding
