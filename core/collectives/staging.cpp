// Staging memory as ring buffers: blocks are taken behind the newest one and become free in the order in which they were taken.
#include "core/collectives/staging.h"

#include <optional>

namespace tsprun::detail {

namespace {

constexpr std::size_t kCacheLine = 64;  // blocks begin at cache lines

}  // namespace

void Staging::reserve(Stream stream) {
  Ring& r = ring(stream);
  if (!r.memory.bytes().empty()) return;
  r.memory = heap_->allocate(kStagingRingBytes, "staging of small payloads");
  r.blocks.resize(kBlocks);
}

Staging::Block* Staging::take(Stream stream, std::size_t bytes) {
  Ring& r = ring(stream);
  while (r.used > 0 && is_free(r.blocks[r.oldest])) {
    r.oldest = (r.oldest + 1) % kBlocks;
    --r.used;
  }
  const std::size_t size = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  const std::size_t capacity = r.memory.bytes().size();
  std::optional<std::size_t> place;
  if (r.used == 0) {
    place = 0;
  } else if (r.used < kBlocks) {
    const Block& newest = r.blocks[(r.oldest + r.used - 1) % kBlocks];
    const std::size_t begin = r.blocks[r.oldest].offset_;
    const std::size_t end = newest.offset_ + (newest.bytes_.size() + kCacheLine - 1) / kCacheLine * kCacheLine;
    const bool wrapped = end <= begin;
    if (end + size <= (wrapped ? begin : capacity)) place = end;
    else if (!wrapped && size <= begin) place = 0;
  }
  if (!place) return nullptr;
  Block& block = r.blocks[(r.oldest + r.used) % kBlocks];
  ++r.used;
  block.offset_ = *place;
  block.bytes_ = r.memory.bytes().subspan(*place, bytes);
  block.taken_ = true;
  return &block;
}

int Staging::reader(Stream stream) const {
  const Ring& r = rings_[static_cast<std::size_t>(stream)];
  const Block& oldest = r.blocks[r.oldest];
  return oldest.readers_.empty() ? -1 : oldest.readers_.back().world;
}

bool Staging::is_free(Block& block) {
  if (block.taken_) return false;
  while (!block.readers_.empty()) {
    const PendingSend& reader = block.readers_.back();
    // Any other outcome frees the block: nobody reads over a failed lane any more, and its next operation reports the failure.
    if (reader.transport->test_send(reader.lane, reader.ticket) == Outcome::pending) return false;
    block.readers_.pop_back();
  }
  return true;
}

}  // namespace tsprun::detail
