// reduce, ring: partial sums travel in pieces, in the accumulator's type, along the chain of ranks from the root's right
// neighbour to the root, each rank adding its own part. n−2 steps more than there are pieces; each rank but the first receives
// one buffer.
#include "core/collectives/algorithms/ring.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task ring_reduce(Collective& me, const Arguments& call) {
  const DType dtype = call.send.dtype;
  const std::size_t wire = size_of(kernels::accumulator_of(dtype));
  const std::size_t piece = ring_piece(dtype);
  const bool is_first = me.left() == call.root;
  const bool is_root = me.rank() == call.root;
  RingSlots slots(me, std::min(piece, call.send.count) * wire, !is_root);
  co_await me.turn();
  std::uint32_t step = 0;
  for (std::size_t first = 0; first < call.send.count || step == 0; first += piece, ++step) {
    if (step != 0) co_await me.pause();
    const std::size_t count = std::min(piece, call.send.count - first);
    const std::byte* own = call.send.data + first * size_of(dtype);
    Message message(me, me.left(), step, count * wire, slots.landing(), kReceivedBytes, step + 1);
    if (!is_first) co_await message;
    if (!is_root) co_await slots.writable(step);
    std::byte* out = is_root ? call.recv.data + first * size_of(dtype) : slots.slot(step);
    if (is_first) {
      me.widen(dtype, own, out, count);
    } else {
      me.reduce_term(dtype, message.bytes(0, count * wire), own, out, count, is_root);
      message.release();
    }
    if (!is_root) co_await slots.sent(step, count * wire);
  }
  co_await slots.writable(0);
  co_await slots.writable(1);
  co_await me.finished();
}

std::uint64_t ring_reduce_received(const Group& group, const Arguments& call) {
  const bool is_first = group.rank == (call.root + 1) % group.size();
  return is_first ? 0 : call.send.count * size_of(kernels::accumulator_of(call.send.dtype));
}

}  // namespace tsprun::detail
