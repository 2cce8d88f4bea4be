// Ring algorithms that sum: reduce_scatter, the first half of all_reduce, and reduce. Partial sums travel to the right in the
// accumulator's type, in pieces small enough to stay in the cache; the first term is copied, and each rank adds its own.
#include "core/collectives/operations.h"
#include "core/kernels/reduce.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

std::size_t piece_elements(DType dtype) { return kRingPieceBytes / size_of(kernels::accumulator_of(dtype)); }

}  // namespace

// --- slots -------------------------------------------------------------------------------------------------------------------

void RingSlots::set(const Collective& operation, std::size_t bytes, bool sends) {
  Heap& heap = *operation.group().heap;
  for (HeapBlock& memory : memory_) memory = heap.allocate(sends ? bytes : 0, "partial sums of a ring");
  if (Incoming::needs_landing(operation, operation.left())) landing_ = heap.allocate(bytes, "partial sums of a ring");
}

bool RingSlots::send(Collective& operation, std::size_t hop, std::size_t bytes) {
  Offer& offer = offers_[hop % 2];
  offer.set(operation, memory_[hop % 2].bytes(), bytes, Readers::one, Owner::operation);
  return offer.send(operation, operation.right(), static_cast<std::uint32_t>(hop), 0, bytes);
}

// --- reduce_scatter ----------------------------------------------------------------------------------------------------------

void RingReducePhase::set(const Collective& operation, ConstBuffer send, Chunks chunks, std::byte* own_result) {
  send_ = send;
  chunks_ = std::move(chunks);
  result_ = own_result;
  reduction_ = operation.info().reduction;
  piece_ = piece_elements(send.dtype);
  const std::size_t rounds = std::max<std::size_t>(1, (chunks_.largest() + piece_ - 1) / piece_);
  hops_ = rounds * static_cast<std::size_t>(operation.peers());
  slots_.set(operation, std::min(piece_, chunks_.largest()) * size_of(kernels::accumulator_of(send.dtype)));
}

std::size_t RingReducePhase::piece_count(int chunk) const {
  const std::size_t count = chunks_.count(chunk);
  return std::min(piece_, count - std::min(count, round_ * piece_));
}

const std::byte* RingReducePhase::own_piece(int chunk) const {
  return send_.data + (chunks_.offset(chunk) + std::min(chunks_.count(chunk), round_ * piece_)) * size_of(send_.dtype);
}

bool RingReducePhase::step(Collective& operation, Engine& engine) {
  if (hop_ < hops_) {
    if (!hop(operation, engine)) return false;
    engine.moved();
    if (hop_ < hops_) return false;
  }
  return slots_.drained(operation, engine);
}

/// Sends one piece to the right and adds one from the left; returns true when both are done.
bool RingReducePhase::hop(Collective& operation, Engine& engine) {
  const int n = operation.size();
  const int going = modulo(operation.rank() - 1 - hop_in_round_, n);
  const int coming = modulo(operation.rank() - 2 - hop_in_round_, n);
  const bool last = hop_in_round_ == n - 2;
  const std::size_t wire = size_of(kernels::accumulator_of(send_.dtype));
  if (!filled_) {
    if (!slots_.writable(operation, engine, hop_)) return false;
    kernels::widen(send_.dtype, own_piece(going), slots_.slot(hop_), piece_count(going));
    filled_ = true;
  }
  if (!sent_ && !slots_.send(operation, hop_, piece_count(going) * wire)) return false;
  sent_ = true;

  const std::size_t count = piece_count(coming);
  const auto step = static_cast<std::uint32_t>(hop_);
  operation.set_missing_segment(operation.left(), round_);
  if (!incoming_.posted() && !incoming_.post(operation, operation.left(), step, count * wire, slots_.landing())) return false;
  if (!incoming_.arrived(operation, engine)) return false;
  if (!last && !slots_.writable(operation, engine, hop_ + 1)) return false;
  std::byte* out =
      last ? result_ + std::min(chunks_.count(coming), round_ * piece_) * size_of(send_.dtype) : slots_.slot(hop_ + 1);
  kernels::reduce_term(reduction_, send_.dtype, incoming_.bytes(operation, 0, count * wire), own_piece(coming), out, count, last);
  incoming_.release(operation);
  incoming_ = Incoming();
  ++hop_;
  sent_ = false;
  filled_ = !last;
  hop_in_round_ = last ? 0 : hop_in_round_ + 1;
  if (last) ++round_;
  return true;
}

RingReduceScatter::RingReduceScatter(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks) : Collective(call) {
  reduce_.set(*this, send, std::move(chunks), recv.data);
}

bool RingReduceScatter::step(Engine& engine) { return reduce_.step(*this, engine); }

// --- all_reduce --------------------------------------------------------------------------------------------------------------

RingAllReduce::RingAllReduce(const Call& call, ConstBuffer send, Buffer recv) : Collective(call) {
  const Chunks chunks = Chunks::balanced(size(), send.count);
  reduce_.set(*this, send, chunks, recv.data + chunks.offset(rank()) * size_of(recv.dtype));
  gather_.set(*this, recv, chunks, reduce_.hops());
}

bool RingAllReduce::step(Engine& engine) {
  reduced_ = reduced_ || reduce_.step(*this, engine);
  return reduced_ && gather_.step(*this, engine);
}

// --- reduce ------------------------------------------------------------------------------------------------------------------

RingReduce::RingReduce(const Call& call, ConstBuffer send, Buffer recv, int root)
    : Collective(call),
      send_(send),
      recv_(recv),
      is_first_(left() == root),
      is_root_(rank() == root),
      piece_(piece_elements(send.dtype)),
      pieces_(std::max<std::size_t>(1, (send.count + piece_ - 1) / piece_)) {
  slots_.set(*this, std::min(piece_, send.count) * size_of(kernels::accumulator_of(send.dtype)), !is_root_);
}

std::size_t RingReduce::piece_count() const { return std::min(piece_, send_.count - done_ * piece_); }

bool RingReduce::step(Engine& engine) {
  if (done_ == pieces_) return slots_.drained(*this, engine);
  const std::size_t count = piece_count();
  const std::size_t bytes = count * size_of(kernels::accumulator_of(send_.dtype));
  const std::size_t at = done_ * piece_ * size_of(send_.dtype);
  if (!filled_) {
    if (!is_first_) {
      set_missing_segment(left(), done_);
      const auto step = static_cast<std::uint32_t>(done_);
      if (!incoming_.posted() && !incoming_.post(*this, left(), step, bytes, slots_.landing())) return false;
      if (!incoming_.arrived(*this, engine)) return false;
    }
    if (!is_root_ && !slots_.writable(*this, engine, done_)) return false;
    std::byte* out = is_root_ ? recv_.data + at : slots_.slot(done_);
    if (is_first_) {
      kernels::widen(send_.dtype, send_.data + at, out, count);
    } else {
      kernels::reduce_term(info().reduction, send_.dtype, incoming_.bytes(*this, 0, bytes), send_.data + at, out, count,
                           is_root_);
      incoming_.release(*this);
      incoming_ = Incoming();
    }
    filled_ = true;
  }
  if (!is_root_ && !slots_.send(*this, done_, bytes)) return false;
  filled_ = false;
  ++done_;
  engine.moved();
  return done_ == pieces_ && slots_.drained(*this, engine);
}

}  // namespace tsprun::detail
