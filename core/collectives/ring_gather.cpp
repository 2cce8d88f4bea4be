// Ring algorithms that only move bytes: all_gather, the second half of all_reduce, and broadcast. A message from the left is
// received into its final place and sent on to the right from there.
#include "core/collectives/operations.h"

#include <algorithm>

namespace tsprun::detail {

// --- all_gather --------------------------------------------------------------------------------------------------------------

void RingGatherPhase::set(const Collective& operation, Buffer recv, Chunks chunks, std::uint32_t first_step) {
  recv_ = recv;
  chunks_ = std::move(chunks);
  first_step_ = first_step;
  piece_ = kSegmentBytes / size_of(recv.dtype);
  const std::size_t rounds = std::max<std::size_t>(1, (chunks_.largest() + piece_ - 1) / piece_);
  hops_ = rounds * static_cast<std::size_t>(operation.peers());
  const std::size_t largest = std::min(piece_, chunks_.largest()) * size_of(recv.dtype);
  offer_.set(operation, std::span<const std::byte>(recv_.as_bytes()), largest, Readers::one);
}

std::span<std::byte> RingGatherPhase::piece(int chunk) const {
  const std::size_t count = chunks_.count(chunk);
  const std::size_t first = std::min(count, round_ * piece_);
  return recv_.slice(chunks_.offset(chunk) + first, std::min(piece_, count - first)).as_bytes();
}

bool RingGatherPhase::step(Collective& operation, Engine& engine) {
  if (hop_ == hops_) return offer_.drained(operation, engine);
  const int n = operation.size();
  const auto step = first_step_ + static_cast<std::uint32_t>(hop_);
  if (!sent_) {
    const std::span<std::byte> going = piece(modulo(operation.rank() - hop_in_round_, n));
    const auto offset = static_cast<std::size_t>(going.data() - recv_.data);
    if (!offer_.prepare(operation, offset, going.size())) return false;
    if (!offer_.send(operation, operation.right(), step, offset, going.size())) return false;
    sent_ = true;
  }
  operation.set_missing_segment(operation.left(), round_);
  const std::span<std::byte> coming = piece(modulo(operation.rank() - 1 - hop_in_round_, n));
  if (!arrival_.posted() && !arrival_.post(operation, operation.left(), step, recv_.as_bytes(), coming, landing_)) return false;
  std::size_t budget = kSegmentBytes;
  if (!arrival_.advance(operation, engine, budget)) return false;
  engine.moved();
  if (!arrival_.done()) return false;
  arrival_ = Arrival();
  sent_ = false;
  hop_in_round_ = hop_in_round_ == n - 2 ? 0 : hop_in_round_ + 1;
  if (hop_in_round_ == 0) ++round_;
  if (++hop_ < hops_) return false;
  offer_.all_sent();
  return offer_.drained(operation, engine);
}

RingAllGather::RingAllGather(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks)
    : Collective(call), send_(send), own_place_(recv.slice(chunks.offset(rank()), chunks.count(rank())).as_bytes()) {
  gather_.set(*this, recv, std::move(chunks), 0);
}

bool RingAllGather::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (!copy_some(own_place_.data(), send_.data, send_.bytes(), own_copied_, budget)) {
    engine.moved();
    return false;
  }
  return gather_.step(*this, engine);
}

// --- broadcast ---------------------------------------------------------------------------------------------------------------

RingBroadcast::RingBroadcast(const Call& call, Buffer buffer, int root)
    : Collective(call),
      buffer_(buffer),
      is_first_(rank() == root),
      is_last_(right() == root),
      segments_(std::max<std::size_t>(1, (buffer.bytes() + kSegmentBytes - 1) / kSegmentBytes)) {
  if (is_first_) received_ = segments_;
  if (is_last_) sent_ = segments_;
  offer_.set(*this, std::span<const std::byte>(buffer_.as_bytes()), std::min(buffer_.bytes(), kSegmentBytes), Readers::one);
}

std::span<std::byte> RingBroadcast::segment(std::size_t index) const {
  const std::size_t first = index * kSegmentBytes;
  return {buffer_.data + first, std::min(kSegmentBytes, buffer_.bytes() - first)};
}

bool RingBroadcast::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (sent_ < received_) {
    const std::span<std::byte> going = segment(sent_);
    if (prepared_ == sent_ && offer_.prepare(*this, sent_ * kSegmentBytes, going.size())) ++prepared_;
    if (prepared_ > sent_ &&
        offer_.send(*this, right(), static_cast<std::uint32_t>(sent_), sent_ * kSegmentBytes, going.size())) {
      engine.moved();
      if (++sent_ == segments_) offer_.all_sent();
    }
  }
  if (received_ < segments_) {
    set_missing_segment(left(), received_);
    if (!arrival_.posted() &&
        !arrival_.post(*this, left(), static_cast<std::uint32_t>(received_), buffer_.as_bytes(), segment(received_), landing_))
      return false;
    if (arrival_.advance(*this, engine, budget)) engine.moved();
    if (arrival_.done()) {
      arrival_ = Arrival();
      ++received_;
    }
  }
  return received_ == segments_ && sent_ == segments_ && offer_.drained(*this, engine);
}

}  // namespace tsprun::detail
