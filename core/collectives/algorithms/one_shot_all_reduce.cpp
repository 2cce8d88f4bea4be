// all_reduce, one_shot: every rank sends its whole buffer to each of the n−1 others, and sums everything itself, chunk by chunk
// in the canonical order, so the result has the same bits as with the other algorithms. One step instead of two, for small
// buffers; n−1 messages sent by each rank, and each receives n−1 buffers.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

#include <array>

namespace tsprun::detail {

namespace {

/// Sums all chunks. The landing's messages are those of the peers, in the order of Collective::peer().
void sum_every_chunk(Collective& me, const Arguments& call, const PeerMessages& messages) {
  const std::size_t element = size_of(call.send.dtype);
  const auto n = static_cast<std::size_t>(me.size());
  // All ranks' buffers, listed twice: so the terms of chunk c, ranks c+1 … c (cyclic), are consecutive entries.
  boost::container::small_vector<const std::byte*, 32> inputs(2 * n);
  inputs[static_cast<std::size_t>(me.rank())] = call.send.data;
  for (int i = 0; i < me.peers(); ++i) inputs[static_cast<std::size_t>(me.peer(i))] = messages[i].bytes(0, call.send.bytes());
  for (std::size_t r = 0; r < n; ++r) inputs[n + r] = inputs[r];

  PerPeer<const std::byte*> terms(n);
  const Chunks chunks = Chunks::balanced(me.size(), call.send.count);
  for (int c = 0; c < me.size(); ++c) {
    const std::size_t at = chunks.offset(c) * element;
    const std::size_t count = chunks.count(c);
    if (count == 0) break;  // only the first chunks of a buffer shorter than the group have an element
    for (std::size_t i = 0; i < n; ++i) terms[i] = inputs[static_cast<std::size_t>(c) + 1 + i] + at;
    me.reduce(call.send.dtype, {terms.data(), n}, call.recv.data + at, count);
  }
}

}  // namespace

Task one_shot_all_reduce(Collective& me, const Arguments& call) {
  const std::size_t bytes = call.send.bytes();
  // In place, the result would overwrite input that slower peers have yet to read.
  const Owner owner = call.send.data == call.recv.data ? Owner::changing : Owner::caller;
  Offer offer(me, call.send.as_bytes(), bytes, Readers::several, owner);
  const std::size_t all_bytes = static_cast<std::size_t>(me.peers()) * bytes;
  std::array<std::byte, 1024> near_landing;  // small messages are received here
  HeapBlock far_landing;
  std::byte* landing = nullptr;
  if (all_bytes <= near_landing.size() && bytes <= me.group().plain_limit) {
    landing = near_landing.data();
  } else if (!me.group().views) {
    far_landing = me.group().heap->allocate(all_bytes, "peers' parts of an all_reduce");
    landing = far_landing.bytes().data();
  }
  SendToPeers sends(me, offer, 0, bytes);
  PeerMessages messages(me, 0, bytes, landing);
  co_await me.turn();
  co_await offer.prepared();
  co_await all_of(sends, messages);
  sum_every_chunk(me, call, messages);
  messages.release();
  co_await offer.drained();
  co_await me.finished();
}

std::uint64_t one_shot_all_reduce_received(const Group& group, const Arguments& call) {
  return static_cast<std::uint64_t>(group.size() - 1) * call.send.bytes();
}

}  // namespace tsprun::detail
