// Identifies an operation's messages, and steps its coroutine.
#include "core/collectives/collective.h"

#include "core/collectives/registry.h"
#include "core/collectives/rounds.h"
#include "core/streams/channel.h"
#include "core/streams/tag.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace tsprun::detail {

Collective::Collective(const Call& call, Start* start, const Arguments* arguments, std::optional<Arguments>&& own)
    : Operation(call.info),
      group_(call.group),
      keep_(call.keep),
      stream_(call.stream),
      algorithm_(start),
      engine_(call.group->engine),
      own_arguments_(std::move(own)),
      arguments_(own_arguments_ ? &*own_arguments_ : arguments),
      counted_(engine_->options().counted),
      sent_(envelope_of(call.info)),
      blocking_(call.blocking),
      task_(may_go_in_rounds(*arguments_) && goes_in_rounds(*this, *arguments_) ? in_rounds(*this, *arguments_)
                                                                                : start(*this, *arguments_)) {
  if (group_->channel != nullptr) set_turns(group_->channel->turns());
  task_.poll();  // as far as its turn()
}

bool Collective::step(Engine&) {
  needs_core_ = false;
  budget = counted_ == nullptr || counted_->in_pieces ? kSegmentBytes : std::numeric_limits<std::size_t>::max();
  if (group_->channel != nullptr) return step_on(*group_->channel);
  return task_.poll() || complete_;
}

/// Does the same on a channel, where the operation is complete when all that it sent has left, too.
bool Collective::step_on(OwnChannel& channel) {
  channel.advance(info_);
  if (!complete_ && task_.poll()) complete_ = true;
  const int unsent = complete_ ? channel.unsent() : -1;
  if (unsent >= 0) set_missing_world(unsent);
  return complete_ && unsent < 0;
}

std::uint64_t Collective::received() const {
  if (info_.tag != kNoTag) return info_.op == Op::recv ? arguments_->recv.bytes() : 0;  // not algorithms of the registry
  const AlgorithmRow& row = row_of(info_.op, algorithm_);
  return row.received == nullptr ? 0 : row.received(*group_, *arguments_);
}

std::uint64_t Collective::received_by_all() const {
  const auto members = static_cast<std::uint64_t>(size());
  switch (info_.op) {
    case Op::send:
    case Op::recv:
    case Op::send_recv:
    case Op::all_to_all: return received() * members;
    default: break;
  }
  const AlgorithmRow& row = row_of(info_.op, algorithm_);
  if (row.received == nullptr) return 0;
  Group seen_by = *group_;
  std::uint64_t sum = 0;
  for (int rank = 0; rank < size(); ++rank) {
    seen_by.rank = rank;
    if (group_->grid) lay_out(seen_by);
    sum += row.received(seen_by, *arguments_);
  }
  return sum;
}

void Collective::copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (counted_ == nullptr && bytes != 0) std::memcpy(to, from, bytes);
  else if (counted_ != nullptr) counted_->copied_bytes += static_cast<double>(bytes);
}

void Collective::reduce(DType dtype, std::span<const std::byte* const> terms, std::byte* out, std::size_t count,
                        kernels::Stores stores) const {
  if (counted_ == nullptr) kernels::reduce(info_.reduction, dtype, terms, out, count, stores);
  else counted_->reduced_bytes += static_cast<double>(terms.size() * count * size_of(dtype));
}

void Collective::reduce_term(DType dtype, const std::byte* partial, const std::byte* term, std::byte* out, std::size_t count,
                             bool last) const {
  if (counted_ != nullptr) {
    counted_->reduced_bytes += static_cast<double>(2 * count * size_of(dtype));
    return;
  }
  kernels::reduce_term(info_.reduction, dtype, partial, term, out, count, last ? static_cast<std::size_t>(size()) : 0);
}

void Collective::widen(DType dtype, const std::byte* term, std::byte* out, std::size_t count) const {
  if (counted_ == nullptr) kernels::widen(dtype, term, out, count);
  else counted_->copied_bytes += static_cast<double>(count * size_of(dtype));
}

Envelope Collective::envelope_of(const OperationInfo& info) {
  // Either end of a message may be a send_recv, so send, recv and send_recv all use the tag of a send.
  const Op op = is_collective(info.op) ? info.op : Op::send;
  return {.signature = info.signature,
          .sequence = info.group_sequence,
          .tag = make_tag(op, info.dtype, info.reduction, 0),
          .purpose = info.purpose};
}

OperationInfo Collective::expected_info() const {
  OperationInfo info = info_;
  if (const ExpectedMessage& expected = arguments_->expected; expected.group_sequence != 0) {
    info.dtype = arguments_->recv.dtype;
    info.bytes = arguments_->recv.bytes();
    info.group_sequence = expected.group_sequence;
    info.signature = expected.signature;
  }
  return info;
}

Call Collective::among(const Group& members, std::uint64_t phase) const {
  Call call{.group = &members, .keep = nullptr, .stream = stream_, .info = info_, .blocking = blocking_};
  // The signature differs by phase, so that messages of different phases between the same two ranks can't be confused.
  call.info.signature += phase;
  return call;
}

/// Returns the world rank of a member that may yet send: one that doesn't wait for this rank, nor in a circle. If there is none,
/// one that waits; if all are gone, one of those. So a wait for anyone has a deadline and a cause like any other.
int Collective::likely_sender() const {
  constexpr std::uint64_t kFreshNs = 10'000'000;
  const std::uint64_t now = engine().clock().now_ns();
  const FlightBoard& board = engine().board();
  const auto is_gone = [&board](int world) {
    const Life life = board.life(world);
    return life != Life::alive && life != Life::unborn;
  };
  if (likely_since_ns_ != 0 && now - likely_since_ns_ < kFreshNs && !is_gone(likely_)) return likely_;
  likely_since_ns_ = now;
  int waits = -1;
  int gone = -1;
  for (int i = 0; i < peers(); ++i) {
    const int world = group_->member(peer(i)).world;
    if (is_gone(world)) {
      gone = world;
      continue;
    }
    const FlightBoard::Chain chain = board.wait_chain(world);
    if (!chain.cycle && std::ranges::find(chain.ranks, engine().world_rank()) == chain.ranks.end()) return likely_ = world;
    waits = world;
  }
  return likely_ = waits >= 0 ? waits : gone;
}

void Collective::fail(Outcome outcome, int group_rank) const {
  const Group::Member& member = group_->member(group_rank);
  engine().fail_receive(outcome, member.world, lane(group_rank), *member.transport, expected_info());
}

bool Subcollective::poll() {
  if (part_.step(me_.engine())) return true;
  me_.set_missing_world(part_.waiting_for());
  me_.needs_core_ = me_.needs_core_ || part_.needs_core();
  return false;
}

}  // namespace tsprun::detail
