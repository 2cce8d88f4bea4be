#include "core/collectives/staging.h"

namespace tsp {

Staging::Block& Staging::take(std::size_t bytes) {
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
    return block;
  }
  auto fresh = std::make_unique<Block>();
  fresh->memory_ = heap_->allocate(kSmallest << size, "staging of small payloads");
  fresh->taken_ = true;
  const auto place = pool.blocks.begin() + static_cast<std::ptrdiff_t>(pool.oldest);
  Block& block = **pool.blocks.insert(place, std::move(fresh));
  pool.oldest = (pool.oldest + 1) % pool.blocks.size();
  return block;
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
