#include "core/collectives/staging.h"

namespace tsp {

Staging::Block* Staging::take(std::size_t bytes, int& reader) {
  std::size_t size = 0;
  while (kSmallest << size < bytes) ++size;
  Pool& pool = pools_.at(size);
  // The oldest is the likeliest to be free; one slow reader on one stream must not make the pool grow with every operation.
  for (std::size_t i = 0; i < pool.blocks.size(); ++i) {
    const std::size_t at = (pool.oldest + i) % pool.blocks.size();
    Block& block = *pool.blocks[at];
    if (!is_free(block)) continue;
    block.taken_ = true;
    pool.oldest = (at + 1) % pool.blocks.size();
    return &block;
  }
  if (!heap_->has_room(kSmallest << size)) {
    give_back_idle();
    reader = some_reader();
    if (!heap_->has_room(kSmallest << size) && reader >= 0) return nullptr;
  }
  auto fresh = std::make_unique<Block>();
  fresh->memory_ = heap_->allocate(kSmallest << size, "staging of small payloads");
  fresh->taken_ = true;
  const auto place = pool.blocks.begin() + static_cast<std::ptrdiff_t>(pool.oldest);
  Block* block = pool.blocks.insert(place, std::move(fresh))->get();
  pool.oldest = (pool.oldest + 1) % pool.blocks.size();
  return block;
}

/// A rank that still reads a block; -1: none does.
int Staging::some_reader() const {
  for (const Pool& pool : pools_) {
    for (const std::unique_ptr<Block>& block : pool.blocks) {
      if (!block->readers_.empty()) return block->readers_.back().world;
    }
  }
  return -1;
}

void Staging::give_back_idle() {
  for (Pool& pool : pools_) {
    std::erase_if(pool.blocks, [](const std::unique_ptr<Block>& block) { return is_free(*block); });
    pool.oldest = 0;
  }
}

bool Staging::is_free(Block& block) {
  if (block.taken_) return false;
  while (!block.readers_.empty()) {
    const PendingSend& reader = block.readers_.back();
    // A lane that failed reads no more; the failure itself is found by the next operation on it.
    if (reader.transport->test_send(reader.lane, reader.ticket) == Outcome::pending) return false;
    block.readers_.pop_back();
  }
  return true;
}

}  // namespace tsp
