// Polls of the conditions on all peers' messages.
#include "core/collectives/peers.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Returns the number of elements that are summed at a time: fewer for more ranks, as each is read once for every rank.
std::size_t elements_at_a_time(DType dtype, int ranks) {
  constexpr std::size_t kReadBytes = 4 * kSegmentBytes;
  const std::size_t bytes = std::clamp<std::size_t>(kReadBytes / static_cast<std::size_t>(ranks), 4096, kSegmentBytes);
  return bytes / size_of(dtype);
}

std::span<std::byte> chunk_of(Buffer buffer, const Chunks& chunks, int chunk) {
  return buffer.slice(chunks.offset(chunk), chunks.count(chunk)).as_bytes();
}

HeapBlock landing_for(Collective& me, std::size_t bytes) {
  for (int i = 0; i < me.peers(); ++i) {
    if (!Message::needs_landing(me, me.peer(i))) continue;
    return me.group().heap->allocate(static_cast<std::size_t>(me.peers()) * bytes, "peers' parts of a reduction");
  }
  return {};
}

}  // namespace

bool SendToPeers::poll() {
  for (; sent_ < me_.peers(); ++sent_) {
    const int to = me_.peer(sent_);
    const std::size_t offset = chunks_ == nullptr ? 0 : chunks_->offset(to) * bytes_;
    const std::size_t bytes = chunks_ == nullptr ? bytes_ : chunks_->count(to) * bytes_;
    if (chunks_ != nullptr && !prepared_ && !offer_.prepare_in_pieces(offset, bytes)) return false;
    prepared_ = true;
    if (!offer_.send(to, step_, offset, bytes)) return false;
    prepared_ = false;
  }
  return true;
}

// --- PeerMessages, PeerSum ---------------------------------------------------------------------------------------------------

PeerMessages::PeerMessages(Collective& me, std::uint32_t step, std::size_t bytes, std::byte* landing, std::size_t receive_up_to)
    : shares_cores_(me.engine().options().oversubscribed) {
  messages_.reserve(static_cast<std::size_t>(me.peers()));
  for (int i = 0; i < me.peers(); ++i) {
    std::byte* place = landing == nullptr ? nullptr : landing + static_cast<std::size_t>(i) * bytes;
    messages_.emplace_back(me, me.peer(i), step, bytes, place, receive_up_to);
  }
}

void PeerMessages::ask() {
  while (asked_ < messages_.size() && messages_[asked_].ask()) ++asked_;
}

bool PeerMessages::poll() {
  ask();
  while (arrived_ < messages_.size() && messages_[arrived_].poll()) ++arrived_;
  if (arrived_ == messages_.size()) return true;
  if (shares_cores_) {  // notes all that are missing, see Operation::needs_core(), the first of them last
    for (std::size_t i = messages_.size() - 1; i > arrived_; --i) messages_[i].poll();
    messages_[arrived_].note_missing();
  }
  return false;
}

void PeerMessages::release() {
  for (Message& message : messages_) message.release();
}

PeerSum::PeerSum(Collective& me, DType dtype, std::size_t count, std::uint32_t step)
    : me_(me),
      dtype_(dtype),
      count_(count),
      landing_(landing_for(me, count * size_of(dtype))),
      messages_(me, step, count * size_of(dtype), landing_.bytes().data(), 0),
      terms_(static_cast<std::size_t>(me.size()), boost::container::default_init) {}

void PeerSum::sum(const std::byte* own, std::byte* out, std::size_t first, std::size_t count, kernels::Stores stores) {
  const std::size_t element = size_of(dtype_);
  for (int i = 0; i < me_.peers(); ++i)
    terms_[static_cast<std::size_t>(i)] = messages_[i].bytes(first * element, count * element);
  terms_.back() = own;
  me_.reduce(dtype_, {terms_.data(), terms_.size()}, out, count, stores);
}

bool SumAll::poll() {
  const std::size_t element = size_of(sum_.dtype());
  const std::size_t some = std::min(sum_.count() - summed_, elements_at_a_time(sum_.dtype(), me_.size()));
  const std::size_t at = summed_ * element;
  if (some != 0) sum_.sum(own_ + at, out_ + at, summed_, some, stores_for(sum_.count() * element));
  summed_ += some;
  if (summed_ < sum_.count()) {
    me_.moved();
    return false;
  }
  sum_.release();
  return true;
}

// --- GatherChunks ------------------------------------------------------------------------------------------------------------

GatherChunks::GatherChunks(Collective& me, Buffer recv, const Chunks& chunks, const std::byte* own)
    : me_(me),
      landing_(me, recv.as_bytes()),
      own_(me, chunk_of(recv, chunks, me.rank()).data(), own, chunk_of(recv, chunks, me.rank()).size()) {
  arrivals_.reserve(static_cast<std::size_t>(me.peers()));
  for (int i = 0; i < me.peers(); ++i) arrivals_.emplace_back(landing_, me.peer(i), 0U, chunk_of(recv, chunks, me.peer(i)));
}

bool GatherChunks::poll() {
  for (Arrival& arrival : arrivals_) arrival.ask();
  own_copied_ = own_copied_ || own_.poll();
  bool complete = own_copied_;
  bool moved = false;
  // Backwards, so that the first peer of those whose chunks are missing is noted last.
  for (auto arrival = arrivals_.rbegin(); arrival != arrivals_.rend(); ++arrival) {
    if (arrival->done()) continue;
    moved = (arrival->ask() && arrival->advance()) || moved;
    if (arrival->done()) continue;
    complete = false;
    arrival->note_missing();
  }
  if (moved && !complete) me_.moved();
  return complete;
}

}  // namespace tsprun::detail
