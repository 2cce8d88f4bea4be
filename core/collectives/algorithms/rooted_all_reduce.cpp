// all_reduce, rooted: every rank sends its buffer to rank 0, which sums every chunk in the canonical order, so the result has the
// same bits as with the other algorithms, and sends the result to all others. Two steps, 2(n−1) messages among all ranks: for
// groups so large that n² are too many. Rank 0 receives n−1 buffers, the others one each.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

namespace {

constexpr int kSummingRank = 0;
constexpr std::uint32_t kResultOfRoot = 1;  // step

/// Sums chunk c over all ranks, in the order c+1, c+2, …, c.
void sum_one_chunk(Collective& me, const Arguments& call, const PeerMessages& messages, const Chunks& chunks, int c) {
  const std::size_t element = size_of(call.send.dtype);
  const std::size_t count = chunks.count(c);
  if (count == 0) return;
  const std::size_t at = chunks.offset(c) * element;
  PerPeer<const std::byte*> terms(static_cast<std::size_t>(me.size()));
  for (int i = 0; i < me.size(); ++i) {
    const int from = (c + 1 + i) % me.size();
    // The i-th peer of the root is rank i+1.
    terms[static_cast<std::size_t>(i)] =
        from == kSummingRank ? call.send.data + at : messages[from - 1].bytes(at, count * element);
  }
  me.reduce(call.send.dtype, {terms.data(), terms.size()}, call.recv.data + at, count);
}

}  // namespace

Task rooted_all_reduce(Collective& me, const Arguments& call) {
  const std::size_t bytes = call.send.bytes();
  const bool is_root = me.rank() == kSummingRank;
  const Chunks chunks = Chunks::balanced(me.size(), call.send.count);
  Offer offer(me);  // the input; on the root, the result
  if (!is_root) offer.set(call.send.as_bytes(), bytes, Readers::one);
  else if (me.peers() > 0) offer.set(call.recv.as_bytes(), bytes, Readers::several);
  HeapBlock terms;
  if (is_root && !me.group().views) {
    terms = me.group().heap->allocate(static_cast<std::size_t>(me.peers()) * bytes, "peers' parts of an all_reduce");
  }
  Landing landing(me, call.recv.as_bytes());
  co_await me.turn();
  if (!is_root) {
    co_await offer.all_sent_to(kSummingRank);
    // Works in place, too: the root sends the result only when it has read all inputs.
    co_await Arrival(landing, kSummingRank, kResultOfRoot, call.recv.as_bytes());
  } else {
    PeerMessages inputs(me, 0, bytes, terms.bytes().data());
    co_await inputs;
    const std::size_t read = chunks.largest() * size_of(call.send.dtype) * static_cast<std::size_t>(me.size());
    for (int c = 0; c < me.size(); ++c) {
      sum_one_chunk(me, call, inputs, chunks, c);
      if (read < me.budget) me.budget -= read;
      else co_await me.pause();
    }
    inputs.release();
    co_await offer.prepared();
    co_await SendToPeers(me, offer, kResultOfRoot, bytes);
  }
  co_await offer.drained();
  co_await me.finished();
}

std::uint64_t rooted_all_reduce_received(const Group& group, const Arguments& call) {
  return group.rank == kSummingRank ? static_cast<std::uint64_t>(group.size() - 1) * call.send.bytes() : call.send.bytes();
}

}  // namespace tsprun::detail
