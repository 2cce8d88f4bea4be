// How Offer chooses where a payload lies, and how Incoming and Arrival get messages from there.
#include "core/collectives/exchange.h"

#include "core/streams/tag.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tsprun::detail {

// --- Collective --------------------------------------------------------------------------------------------------------------

Envelope Collective::envelope_of(const OperationInfo& info) {
  // Either end of a message may be a send_recv, so send, recv and send_recv all use the tag of a send.
  const Op op = is_collective(info.op) ? info.op : Op::send;
  return {.signature = info.signature,
          .sequence = info.group_sequence,
          .tag = make_tag(op, info.dtype, info.reduction, 0),
          .purpose = info.purpose};
}

Call Collective::among(const Group& members, std::uint64_t phase) const {
  Call call{.group = &members, .keep = nullptr, .stream = stream_, .info = info_};
  // The signature differs by phase, so that messages of different phases between the same two ranks can't be confused.
  call.info.signature += phase;
  return call;
}

void Collective::fail(Engine& engine, Outcome outcome, int group_rank) const {
  const Group::Member& member = group_->member(group_rank);
  engine.fail_receive(outcome, member.world, lane(group_rank), *member.transport, expected_info());
}

// --- Offer -------------------------------------------------------------------------------------------------------------------

void Offer::set(const Collective& operation, std::span<const std::byte> memory, std::size_t largest, Readers readers,
                Owner owner) {
  const Group& group = operation.group();
  memory_ = memory;
  const std::size_t copied_up_to = readers == Readers::one ? kCopiedOnceBytes : kCopiedBytes;
  if (largest <= std::min<std::size_t>(copied_up_to, group.plain_limit)) {
    way_ = Way::copied;
  } else if (owner == Owner::operation) {
    way_ = Way::in_place;
  } else if (memory.size() <= kStagedBytes) {
    way_ = Way::staged;
    group.staging->reserve(operation.stream());
  } else if (owner == Owner::caller && group.heap->contains(memory)) {
    way_ = Way::in_place;
  } else {
    way_ = Way::mirrored;
  }
}

/// Takes a block of staging memory; returns false if there is none until a peer has read, which it then notes as missing.
bool Offer::find_room(Collective& operation) {
  if (block_ != nullptr) return true;
  Staging& staging = *operation.group().staging;
  block_ = staging.take(operation.stream(), memory_.size());
  if (block_ == nullptr) operation.set_missing_world(staging.reader(operation.stream()));
  return block_ != nullptr;
}

bool Offer::prepare(Collective& operation, std::size_t offset, std::size_t bytes) {
  if (bytes == 0 || way_ == Way::copied || way_ == Way::in_place) return true;
  std::byte* to = nullptr;
  if (way_ == Way::staged) {
    if (!find_room(operation)) return false;
    to = block_->bytes().data();
  } else {
    if (mirror_.bytes().empty()) {
      mirror_ = operation.group().heap->allocate(
          memory_.size(), fmt::format("{}: a copy of a buffer that doesn't lie in the heap", name(operation.info().op)));
    }
    to = mirror_.bytes().data();
  }
  std::memcpy(to + offset, memory_.data() + offset, bytes);
  return true;
}

bool Offer::prepare_all(Collective& operation, Engine& engine, std::size_t& prepared, std::size_t& budget) {
  if (way_ != Way::mirrored) {
    if (prepared < memory_.size() && !prepare(operation, 0, memory_.size())) return false;
    prepared = memory_.size();
    return true;
  }
  const std::size_t some = std::min(memory_.size() - prepared, budget);
  prepare(operation, prepared, some);
  prepared += some;
  budget -= some;
  if (some != 0) engine.moved();
  return prepared == memory_.size();
}

bool Offer::send(Collective& operation, int to, std::uint32_t step, std::size_t offset, std::size_t bytes) {
  const Group::Member& member = operation.group().member(to);
  const std::byte* base = memory_.data();
  if (block_ != nullptr) base = block_->bytes().data();
  if (!mirror_.bytes().empty()) base = mirror_.bytes().data();
  const std::span<const std::byte> payload = bytes == 0 ? std::span<const std::byte>() : std::span(base + offset, bytes);
  const Delivery delivery = way_ == Way::copied ? Delivery::copy_if_small : Delivery::by_reference;
  const Ticket ticket = member.transport->send(operation.lane(to), operation.sent_envelope(step), payload, delivery);
  if (ticket == kNotNow) {
    operation.set_missing(to);
    return false;
  }
  if (way_ != Way::copied && bytes != 0) pending_.push_back({member.transport, operation.lane(to), ticket, member.world});
  return true;
}

void Offer::all_sent() {
  if (block_ == nullptr) return;
  for (const PendingSend& reader : pending_) block_->add_reader(reader);
  pending_.clear();
  block_->give_back();
  block_ = nullptr;
}

bool Offer::drained(Collective& operation, Engine& engine) {
  while (!pending_.empty()) {
    const std::size_t last = pending_.size() - 1;
    const PendingSend& pending = pending_[last];
    switch (pending.transport->test_send(pending.lane, pending.ticket)) {
      case Outcome::done: pending_.take_out(last); break;
      case Outcome::pending: operation.set_missing_world(pending.world); return false;
      case Outcome::disconnected:
        engine.lost(pending.world, operation.info().op,
                    fmt::format("{}: the way to rank {} was cut before it had read", name(operation.info().op), pending.world));
      default:
        engine.fail(Cause::corrupt, pending.world,
                    fmt::format("{}: rank {} acknowledges messages that were never sent to it", name(operation.info().op),
                                pending.world));
    }
  }
  return true;
}

// --- Incoming ----------------------------------------------------------------------------------------------------------------

bool Incoming::post(const Collective& operation, int from, std::uint32_t step, std::size_t bytes, std::byte* landing,
                    std::size_t receive_up_to) {
  const Group::Member& member = operation.group().member(from);
  const LaneId lane = operation.lane(from);
  from_ = from;
  landing_ = landing;
  timed_bytes_ = bytes < kTimedBytes ? 0 : bytes;
  pending_ns_ = 0;
  here_ = false;
  viewed_ = member.can_view && bytes > (landing == nullptr ? 0 : receive_up_to);
  ticket_ = viewed_ ? member.transport->view(lane, operation.expected_envelope(step), bytes)
                    : member.transport->receive(lane, operation.expected_envelope(step), {landing, bytes});
  return ticket_ != kNotNow;
}

void Incoming::adopt(Ticket ticket, int from, std::byte* landing) {
  ticket_ = ticket;
  from_ = from;
  landing_ = landing;
}

bool Incoming::arrived(const Collective& operation, Engine& engine) {
  if (here_) return true;
  const Group::Member& member = operation.group().member(from_);
  const Outcome outcome = member.transport->test_receive(operation.lane(from_), ticket_);
  if (outcome == Outcome::pending) {
    if (timed_bytes_ != 0 && pending_ns_ == 0) pending_ns_ = posix::now_ns();
    return false;
  }
  if (outcome != Outcome::done) operation.fail(engine, outcome, from_);
  if (pending_ns_ != 0) engine.link_times().arrived(member.world, timed_bytes_, posix::now_ns() - pending_ns_ + 1);
  here_ = true;
  return true;
}

const std::byte* Incoming::bytes(const Collective& operation, std::size_t offset, std::size_t count) const {
  if (!viewed_) return landing_ + offset;
  return operation.group().member(from_).transport->access(operation.lane(from_), ticket_, offset, count).data();
}

void Incoming::release(const Collective& operation) {
  if (viewed_) operation.group().member(from_).transport->release(operation.lane(from_), ticket_);
  viewed_ = false;
}

// --- copies ------------------------------------------------------------------------------------------------------------------

std::byte* Landing::of(const Collective& operation, int from, std::span<std::byte> whole, std::span<std::byte> place) {
  const Group::Member& member = operation.group().member(from);
  const bool fits =
      member.can_view || place.size() <= member.transport->plain_limit() || member.transport->can_receive_into(place);
  if (fits) return place.data();
  if (block_.bytes().empty()) {
    block_ = operation.group().heap->allocate(
        whole.size(), fmt::format("{}: a landing for a buffer that doesn't lie in the heap", name(operation.info().op)));
  }
  return block_.bytes().data() + (place.data() - whole.data());
}

bool Arrival::post(const Collective& operation, int from, std::uint32_t step, std::span<std::byte> whole,
                   std::span<std::byte> place, Landing& landing) {
  std::byte* where = landing.of(operation, from, whole, place);
  place_ = place.data();
  bytes_ = place.size();
  in_place_ = where == place_;
  return message_.post(operation, from, step, bytes_, where);
}

void Arrival::adopt(Ticket ticket, int from, std::span<std::byte> place) {
  place_ = place.data();
  bytes_ = place.size();
  in_place_ = true;
  message_.adopt(ticket, from, place_);
}

bool Arrival::advance(const Collective& operation, Engine& engine, std::size_t& budget) {
  if (done_ || !message_.arrived(operation, engine)) return false;
  if (in_place_ && !message_.viewed()) {
    copied_ = bytes_;
    done_ = true;
    budget -= std::min(budget, bytes_);
    return true;
  }
  if (budget == 0) return false;
  const std::size_t some = std::min(budget, bytes_ - copied_);
  if (some != 0) std::memcpy(place_ + copied_, message_.bytes(operation, copied_, some), some);
  copied_ += some;
  budget -= some;
  if (copied_ == bytes_) {
    message_.release(operation);
    done_ = true;
  }
  return true;
}

bool copy_some(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t& done, std::size_t& budget) {
  const std::size_t some = std::min(bytes - done, budget);
  if (some != 0) {
    if (to != from) std::memcpy(to + done, from + done, some);
    done += some;
    budget -= to == from ? 0 : some;
  }
  return done == bytes;
}

}  // namespace tsprun::detail
