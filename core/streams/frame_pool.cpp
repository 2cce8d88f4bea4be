// The pool's lists of free blocks.
#include "core/streams/frame_pool.h"

#include <new>
#include <utility>

namespace tsprun::detail {

FramePool::~FramePool() {
  for (Header* first : free_) {
    while (first != nullptr) ::operator delete(std::exchange(first, first->next));
  }
}

void* FramePool::take(std::size_t bytes) {
  const std::size_t size = (bytes + kUnit - 1) / kUnit;
  Header* header = size < kSizes ? free_[size] : nullptr;
  if (header != nullptr) {
    free_[size] = header->next;
  } else {
    header = new (::operator new(sizeof(Header) + size * kUnit)) Header{.pool = this, .size = size, .next = nullptr};
    ++allocated_;
  }
  return header + 1;
}

void FramePool::give_back(void* block) {
  Header* header = static_cast<Header*>(block) - 1;
  if (header->size >= kSizes) {
    ::operator delete(header);
    return;
  }
  header->next = std::exchange(header->pool->free_[header->size], header);
}

}  // namespace tsprun::detail
