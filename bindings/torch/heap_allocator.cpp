// Torch's allocator of host memory that takes large tensors from the rank's heap, where collectives find them without a copy.
#include "process_group.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <memory>
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

class HeapAllocator : public c10::Allocator {
 public:
  HeapAllocator(c10::Allocator* others, const std::shared_ptr<Member>& member, std::size_t smallest)
      : others_(others), member_(member), smallest_(smallest) {}

#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override { return block_of(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return block_of(bytes); }
#endif

 private:
  c10::DataPtr block_of(std::size_t bytes) const {
    if (bytes >= smallest_) {
      if (std::shared_ptr<Member> member = member_.lock()) {
        if (HeapBlock memory = member->allocate(bytes); !memory.bytes().empty()) {
          void* const data = memory.bytes().data();
          auto block = std::make_unique<Block>(Block{std::move(member), std::move(memory)});
          return {data, block.release(), &give_back, c10::Device(c10::kCPU)};
        }
      }
    }
    return others_->allocate(bytes);
  }

  static void give_back(void* of) {
    const std::unique_ptr<Block> block(static_cast<Block*>(of));
    block->member->give_back(std::move(block->memory));
  }

  c10::Allocator* others_;
  std::weak_ptr<Member> member_;
  std::size_t smallest_;
};

}  // namespace

void use_heap(std::size_t smallest) {
  const std::shared_ptr<Member> member = current_membership();
  TORCH_CHECK(member, "use_heap: this process has no heap yet; call it after init_process_group(\"tsprun\")");
  TORCH_CHECK(smallest > 0, "use_heap: tensors of 1 byte or more can lie in the heap, not of ", smallest);
  static c10::Allocator* const others = c10::GetCPUAllocator();
  // Never destroyed: torch may allocate until the process ends.
  c10::SetCPUAllocator(new HeapAllocator(others, member, smallest), kPriority);
}

}  // namespace tsprun::torch_binding
