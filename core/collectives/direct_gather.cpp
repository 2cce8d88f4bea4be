// Direct algorithms that only move bytes: all_gather, all_to_all, broadcast. A rank first sends everything, then copies messages
// in the order in which they arrive.
#include "core/collectives/operations.h"

namespace tsprun::detail {

namespace {

/// Copies the messages that have arrived; returns true when all are complete. Notes the first peer whose message is missing.
bool collect_all(Collective& operation, Engine& engine, SmallVector<Arrival, kInlinePeers>& arrivals, std::size_t& budget) {
  bool complete = true;
  bool moved = false;
  for (int i = operation.peers() - 1; i >= 0; --i) {
    Arrival& arrival = arrivals[static_cast<std::size_t>(i)];
    if (arrival.done()) continue;
    if (arrival.posted()) moved = arrival.advance(operation, engine, budget) || moved;
    if (!arrival.done()) {
      complete = false;
      operation.set_missing(operation.peer(i));
    }
  }
  if (moved && !complete) engine.moved();
  return complete;
}

std::span<std::byte> part(Buffer buffer, const Chunks& chunks, int chunk) {
  return buffer.slice(chunks.offset(chunk), chunks.count(chunk)).as_bytes();
}

}  // namespace

// --- all_gather --------------------------------------------------------------------------------------------------------------

DirectAllGather::DirectAllGather(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks)
    : Collective(call), send_(send), recv_(recv), chunks_(std::move(chunks)) {
  if (peers() > 0) offer_.set(*this, send_.as_bytes(), send_.bytes(), Readers::several);
  arrivals_.fill(static_cast<std::size_t>(peers()), Arrival());
}

bool DirectAllGather::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (peers() > 0 && !offer_.prepare_all(*this, engine, prepared_, budget)) return false;
  if (sent_ < peers()) {
    while (sent_ < peers() && offer_.send(*this, peer(sent_), 0, 0, send_.bytes())) ++sent_;
    if (sent_ == peers()) offer_.all_sent();
  }
  for (int i = 0; i < peers(); ++i) {
    Arrival& arrival = arrivals_[static_cast<std::size_t>(i)];
    if (!arrival.posted()) arrival.post(*this, peer(i), 0, recv_.as_bytes(), part(recv_, chunks_, peer(i)), landing_);
  }
  const std::size_t budget_before = budget;
  const bool own = copy_some(part(recv_, chunks_, rank()).data(), send_.data, send_.bytes(), own_copied_, budget);
  if (budget != budget_before) engine.moved();
  const bool others = collect_all(*this, engine, arrivals_, budget);
  return own && others && sent_ == peers() && offer_.drained(*this, engine);
}

// --- all_to_all --------------------------------------------------------------------------------------------------------------

DirectAllToAll::DirectAllToAll(const Call& call, ConstBuffer send, Chunks send_chunks, Buffer recv, Chunks recv_chunks)
    : Collective(call), send_(send), recv_(recv), send_chunks_(std::move(send_chunks)), recv_chunks_(std::move(recv_chunks)) {
  if (peers() > 0) offer_.set(*this, send_.as_bytes(), send_chunks_.largest() * size_of(send_.dtype), Readers::one);
  arrivals_.fill(static_cast<std::size_t>(peers()), Arrival());
}

bool DirectAllToAll::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (peers() > 0 && !offer_.prepare_all(*this, engine, prepared_, budget)) return false;
  const std::size_t element = size_of(send_.dtype);
  if (sent_ < peers()) {
    while (sent_ < peers() && offer_.send(*this, peer(sent_), 0, send_chunks_.offset(peer(sent_)) * element,
                                          send_chunks_.count(peer(sent_)) * element)) {
      ++sent_;
    }
    if (sent_ == peers()) offer_.all_sent();
  }
  for (int i = 0; i < peers(); ++i) {
    Arrival& arrival = arrivals_[static_cast<std::size_t>(i)];
    if (!arrival.posted()) arrival.post(*this, peer(i), 0, recv_.as_bytes(), part(recv_, recv_chunks_, peer(i)), landing_);
  }
  const std::span<std::byte> own_place = part(recv_, recv_chunks_, rank());
  const std::size_t budget_before = budget;
  const bool own =
      copy_some(own_place.data(), send_.data + send_chunks_.offset(rank()) * element, own_place.size(), own_copied_, budget);
  if (budget != budget_before) engine.moved();
  const bool others = collect_all(*this, engine, arrivals_, budget);
  return own && others && sent_ == peers() && offer_.drained(*this, engine);
}

// --- broadcast ---------------------------------------------------------------------------------------------------------------

DirectBroadcast::DirectBroadcast(const Call& call, Buffer buffer, int root) : Collective(call), buffer_(buffer), root_(root) {
  if (rank() == root_ && peers() > 0) {
    offer_.set(*this, std::span<const std::byte>(buffer_.as_bytes()), buffer_.bytes(), Readers::several);
  }
}

bool DirectBroadcast::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (rank() == root_) {
    if (peers() == 0) return true;
    if (!offer_.prepare_all(*this, engine, prepared_, budget)) return false;
    while (sent_ < peers()) {
      if (!offer_.send(*this, peer(sent_), 0, 0, buffer_.bytes())) return false;
      if (++sent_ == peers()) offer_.all_sent();
    }
    return offer_.drained(*this, engine);
  }
  set_missing(root_);
  if (!arrival_.posted() && !arrival_.post(*this, root_, 0, buffer_.as_bytes(), buffer_.as_bytes(), landing_)) return false;
  if (arrival_.advance(*this, engine, budget) && !arrival_.done()) engine.moved();
  return arrival_.done();
}

}  // namespace tsprun::detail
