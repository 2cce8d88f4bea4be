// The communicator's collectives: each checks its arguments, chooses an algorithm and starts the operation. Messages between two
// ranks are in messages.cpp.
#include "core/collectives/arguments.h"
#include "core/collectives/communicator_state.h"

#include <fmt/format.h>

namespace tsprun {

using namespace detail;

namespace detail {

using namespace arguments;

// --- broadcast ---------------------------------------------------------------------------------------------------------------

Work CommunicatorState::start_broadcast(Mode mode, const Buffer& buffer, int root, const CallOptions& options) {
  check_member("broadcast", "root", root, size());
  check_memory("broadcast", "buffer", buffer);
  CheckedCall call(Op::broadcast, buffer.bytes(), buffer.count, {}, buffer);
  call.arguments.root = root;
  return start(mode, std::move(call), options);
}

// --- all_gather, reduce_scatter ------------------------------------------------------------------------------------------------

namespace {

/// The buffers of a call in which one, the whole, consists of a part of every rank.
struct PartAndWhole {
  PartAndWhole(bool gathers, const ConstBuffer& send, const ConstBuffer& recv)
      : part(gathers ? send : recv),
        whole(gathers ? recv : send),
        part_name(gathers ? "send" : "recv"),
        whole_name(gathers ? "recv" : "send") {}
  ConstBuffer part;
  ConstBuffer whole;
  std::string_view part_name;
  std::string_view whole_name;
};

}  // namespace

Work CommunicatorState::start_parts(Mode mode, Op op, const ConstBuffer& send, const Buffer& recv, Reduction reduction,
                                    const Counts& counts, const Placement& placement, const CallOptions& options) {
  const bool gathers = op == Op::all_gather;
  const std::string_view me =
      counts ? (gathers ? "all_gather_v" : "reduce_scatter_v") : (gathers ? "all_gather" : "reduce_scatter");
  const PartAndWhole of(gathers, send, recv);
  check_same_dtype(me, send, recv);
  if (!gathers) check_reduction(me, reduction, send.dtype);
  Chunks chunks = Chunks::uniform(size(), of.part.count);
  if (counts) {
    check_chunks(me, *counts, placement, size(), of.whole_name, of.whole);
    check_own_count(me, *counts, rank(), of.part_name, of.part);
    chunks = placement ? Chunks::placed(*counts, *placement) : Chunks::listed(*counts);
  } else {
    check_whole(me, of.whole_name, of.whole, of.part_name, of.part, size());
  }
  check_memory(me, "send", send);
  check_memory(me, "recv", recv);
  check_overlap(me, of.part_name, of.part, of.whole_name, of.whole, of.whole.slice(chunks.offset(rank()), of.part.count).data);
  CheckedCall call(op, chunks.total() * size_of(send.dtype), chunks.total(), send, recv);
  if (counts) call.agreement.counts = *counts;
  call.arguments.chunks = std::move(chunks);
  call.reduction = reduction;
  return start(mode, std::move(call), options);
}

// --- all_reduce, reduce ------------------------------------------------------------------------------------------------------

Work CommunicatorState::start_all_reduce(Mode mode, const ConstBuffer& send, const Buffer& recv, Reduction reduction,
                                         const CallOptions& options) {
  check_same_dtype("all_reduce", send, recv);
  check_reduction("all_reduce", reduction, send.dtype);
  check_equal_counts("all_reduce", send, recv);
  check_memory("all_reduce", "send", send);
  check_memory("all_reduce", "recv", recv);
  check_overlap("all_reduce", "send", send, "recv", recv, recv.data);
  CheckedCall call(Op::all_reduce, send.bytes(), send.count, send, recv);
  call.reduction = reduction;
  return start(mode, std::move(call), options);
}

Work CommunicatorState::start_reduce(Mode mode, const ConstBuffer& send, const Buffer& recv, Reduction reduction, int root,
                                     const CallOptions& options) {
  check_member("reduce", "root", root, size());
  check_reduction("reduce", reduction, send.dtype);
  check_memory("reduce", "send", send);
  if (rank() == root) {
    check_same_dtype("reduce", send, recv);
    check_equal_counts("reduce", send, recv);
    check_memory("reduce", "recv", recv);
    check_overlap("reduce", "send", send, "recv", recv, recv.data);
  }
  CheckedCall call(Op::reduce, send.bytes(), send.count, send, recv);
  call.arguments.root = root;
  call.reduction = reduction;
  return start(mode, std::move(call), options);
}

// --- all_to_all --------------------------------------------------------------------------------------------------------------

Work CommunicatorState::start_all_to_all(Mode mode, const ConstBuffer& send, const Buffer& recv, const CallOptions& options) {
  check_same_dtype("all_to_all", send, recv);
  check_equal_counts("all_to_all", send, recv);
  if (send.count % static_cast<std::size_t>(size()) != 0) {
    refuse("all_to_all", fmt::format("send has {} {}, which don't divide into equal chunks for {} ranks; all_to_all_v takes any",
                                     send.count, name(send.dtype), size()));
  }
  check_memory("all_to_all", "send", send);
  check_memory("all_to_all", "recv", recv);
  check_disjoint("all_to_all", send, recv);
  const Chunks chunks = Chunks::uniform(size(), send.count / static_cast<std::size_t>(size()));
  CheckedCall call(Op::all_to_all, send.bytes(), send.count, send, recv);
  call.arguments.chunks = chunks;
  call.arguments.send_chunks = chunks;
  return start(mode, std::move(call), options);
}

Work CommunicatorState::start_all_to_all_v(Mode mode, const ConstBuffer& send, std::span<const std::size_t> send_counts,
                                           const Buffer& recv, std::span<const std::size_t> recv_counts,
                                           const CallOptions& options) {
  check_same_dtype("all_to_all_v", send, recv);
  check_counts("all_to_all_v", "send_counts", send_counts, size(), "send", send);
  check_counts("all_to_all_v", "recv_counts", recv_counts, size(), "recv", recv);
  const std::size_t to_self = send_counts[static_cast<std::size_t>(rank())];
  const std::size_t from_self = recv_counts[static_cast<std::size_t>(rank())];
  if (to_self != from_self) {
    refuse("all_to_all_v", fmt::format("rank {} sends itself send_counts[{}] = {}, but expects recv_counts[{}] = {}", rank(),
                                       rank(), to_self, rank(), from_self));
  }
  check_memory("all_to_all_v", "send", send);
  check_memory("all_to_all_v", "recv", recv);
  check_disjoint("all_to_all_v", send, recv);
  // Counts differ from pair to pair, so they aren't part of the signature: each pair compares the size of its message instead.
  constexpr std::size_t kUneven = ~std::size_t{0};
  CheckedCall call(Op::all_to_all, 0, kUneven, send, recv);
  call.arguments.chunks = Chunks::listed(recv_counts);
  call.arguments.send_chunks = Chunks::listed(send_counts);
  return start(mode, std::move(call), options);
}

// --- gather, scatter ---------------------------------------------------------------------------------------------------------

Work CommunicatorState::start_rooted_parts(Mode mode, Op op, const ConstBuffer& send, const Buffer& recv, const Counts& counts,
                                           int root, const CallOptions& options) {
  const bool gathers = op == Op::gather;
  const std::string_view me = gathers ? "gather" : "scatter";
  const std::string_view me_v = gathers ? "gather_v" : "scatter_v";
  const PartAndWhole of(gathers, send, recv);
  check_member(me, "root", root, size());
  check_memory(me, of.part_name, of.part);
  Chunks chunks = Chunks::uniform(size(), of.part.count);
  if (counts) {
    check_one_each(me_v, "counts", *counts, size());
    check_own_count(me_v, *counts, rank(), of.part_name, of.part);
    chunks = Chunks::listed(*counts);
  }
  if (rank() == root) {
    check_same_dtype(me, send, recv);
    if (counts) check_counts(me_v, "counts", *counts, size(), of.whole_name, of.whole);
    else check_whole(me, of.whole_name, of.whole, of.part_name, of.part, size());
    check_memory(me, of.whole_name, of.whole);
    check_overlap(me, of.part_name, of.part, of.whole_name, of.whole, of.whole.slice(chunks.offset(root), of.part.count).data);
  }
  CheckedCall call(op, chunks.total() * size_of(of.part.dtype), chunks.total(), send, recv);
  if (counts) call.agreement.counts = *counts;
  call.arguments.root = root;
  call.arguments.chunks = std::move(chunks);
  return start(mode, std::move(call), options);
}

// --- barrier -----------------------------------------------------------------------------------------------------------------

Work CommunicatorState::start_barrier(Mode mode, const CallOptions& options) {
  return start(mode, CheckedCall(Op::barrier), options);
}

// --- the blocking and the posted form of each --------------------------------------------------------------------------------

}  // namespace detail

void Communicator::broadcast(Buffer buffer, int root, CallOptions options) {
  state_->start_broadcast(CommunicatorState::Mode::blocking, buffer, root, options);
}
Work Communicator::post_broadcast(Buffer buffer, int root, CallOptions options) {
  return state_->start_broadcast(CommunicatorState::Mode::posted, buffer, root, options);
}

void Communicator::all_gather(ConstBuffer send, Buffer recv, CallOptions options) {
  state_->start_parts(CommunicatorState::Mode::blocking, Op::all_gather, send, recv, Reduction::sum, {}, {}, options);
}
Work Communicator::post_all_gather(ConstBuffer send, Buffer recv, CallOptions options) {
  return state_->start_parts(CommunicatorState::Mode::posted, Op::all_gather, send, recv, Reduction::sum, {}, {}, options);
}
void Communicator::all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, CallOptions options) {
  state_->start_parts(CommunicatorState::Mode::blocking, Op::all_gather, send, recv, Reduction::sum, counts, {}, options);
}
Work Communicator::post_all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, CallOptions options) {
  return state_->start_parts(CommunicatorState::Mode::posted, Op::all_gather, send, recv, Reduction::sum, counts, {}, options);
}
void Communicator::all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                                std::span<const std::size_t> offsets, CallOptions options) {
  state_->start_parts(CommunicatorState::Mode::blocking, Op::all_gather, send, recv, Reduction::sum, counts, offsets, options);
}
Work Communicator::post_all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                                     std::span<const std::size_t> offsets, CallOptions options) {
  return state_->start_parts(CommunicatorState::Mode::posted, Op::all_gather, send, recv, Reduction::sum, counts, offsets,
                             options);
}

void Communicator::reduce_scatter(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options) {
  state_->start_parts(CommunicatorState::Mode::blocking, Op::reduce_scatter, send, recv, reduction, {}, {}, options);
}
Work Communicator::post_reduce_scatter(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options) {
  return state_->start_parts(CommunicatorState::Mode::posted, Op::reduce_scatter, send, recv, reduction, {}, {}, options);
}
void Communicator::reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, Reduction reduction,
                                    CallOptions options) {
  state_->start_parts(CommunicatorState::Mode::blocking, Op::reduce_scatter, send, recv, reduction, counts, {}, options);
}
Work Communicator::post_reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, Reduction reduction,
                                         CallOptions options) {
  return state_->start_parts(CommunicatorState::Mode::posted, Op::reduce_scatter, send, recv, reduction, counts, {}, options);
}
void Communicator::reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                                    std::span<const std::size_t> offsets, Reduction reduction, CallOptions options) {
  state_->start_parts(CommunicatorState::Mode::blocking, Op::reduce_scatter, send, recv, reduction, counts, offsets, options);
}
Work Communicator::post_reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                                         std::span<const std::size_t> offsets, Reduction reduction, CallOptions options) {
  return state_->start_parts(CommunicatorState::Mode::posted, Op::reduce_scatter, send, recv, reduction, counts, offsets,
                             options);
}

void Communicator::all_reduce(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options) {
  state_->start_all_reduce(CommunicatorState::Mode::blocking, send, recv, reduction, options);
}
Work Communicator::post_all_reduce(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options) {
  return state_->start_all_reduce(CommunicatorState::Mode::posted, send, recv, reduction, options);
}

void Communicator::reduce(ConstBuffer send, Buffer recv, Reduction reduction, int root, CallOptions options) {
  state_->start_reduce(CommunicatorState::Mode::blocking, send, recv, reduction, root, options);
}
Work Communicator::post_reduce(ConstBuffer send, Buffer recv, Reduction reduction, int root, CallOptions options) {
  return state_->start_reduce(CommunicatorState::Mode::posted, send, recv, reduction, root, options);
}

void Communicator::all_to_all(ConstBuffer send, Buffer recv, CallOptions options) {
  state_->start_all_to_all(CommunicatorState::Mode::blocking, send, recv, options);
}
Work Communicator::post_all_to_all(ConstBuffer send, Buffer recv, CallOptions options) {
  return state_->start_all_to_all(CommunicatorState::Mode::posted, send, recv, options);
}
void Communicator::all_to_all_v(ConstBuffer send, std::span<const std::size_t> send_counts, Buffer recv,
                                std::span<const std::size_t> recv_counts, CallOptions options) {
  state_->start_all_to_all_v(CommunicatorState::Mode::blocking, send, send_counts, recv, recv_counts, options);
}
Work Communicator::post_all_to_all_v(ConstBuffer send, std::span<const std::size_t> send_counts, Buffer recv,
                                     std::span<const std::size_t> recv_counts, CallOptions options) {
  return state_->start_all_to_all_v(CommunicatorState::Mode::posted, send, send_counts, recv, recv_counts, options);
}

void Communicator::gather(ConstBuffer send, Buffer recv, int root, CallOptions options) {
  state_->start_rooted_parts(CommunicatorState::Mode::blocking, Op::gather, send, recv, {}, root, options);
}
Work Communicator::post_gather(ConstBuffer send, Buffer recv, int root, CallOptions options) {
  return state_->start_rooted_parts(CommunicatorState::Mode::posted, Op::gather, send, recv, {}, root, options);
}
void Communicator::gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, int root, CallOptions options) {
  state_->start_rooted_parts(CommunicatorState::Mode::blocking, Op::gather, send, recv, counts, root, options);
}
Work Communicator::post_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, int root,
                                 CallOptions options) {
  return state_->start_rooted_parts(CommunicatorState::Mode::posted, Op::gather, send, recv, counts, root, options);
}
void Communicator::scatter(ConstBuffer send, Buffer recv, int root, CallOptions options) {
  state_->start_rooted_parts(CommunicatorState::Mode::blocking, Op::scatter, send, recv, {}, root, options);
}
Work Communicator::post_scatter(ConstBuffer send, Buffer recv, int root, CallOptions options) {
  return state_->start_rooted_parts(CommunicatorState::Mode::posted, Op::scatter, send, recv, {}, root, options);
}
void Communicator::scatter_v(ConstBuffer send, std::span<const std::size_t> counts, Buffer recv, int root, CallOptions options) {
  state_->start_rooted_parts(CommunicatorState::Mode::blocking, Op::scatter, send, recv, counts, root, options);
}
Work Communicator::post_scatter_v(ConstBuffer send, std::span<const std::size_t> counts, Buffer recv, int root,
                                  CallOptions options) {
  return state_->start_rooted_parts(CommunicatorState::Mode::posted, Op::scatter, send, recv, counts, root, options);
}

void Communicator::barrier(CallOptions options) { state_->start_barrier(CommunicatorState::Mode::blocking, options); }
Work Communicator::post_barrier(CallOptions options) { return state_->start_barrier(CommunicatorState::Mode::posted, options); }

}  // namespace tsprun
