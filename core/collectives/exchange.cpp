// Chooses where an Offer's payload lies, and lets Message and Arrival get messages from there.
#include "core/collectives/exchange.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tsprun::detail {

// --- Offer -------------------------------------------------------------------------------------------------------------------

void Offer::set(std::span<const std::byte> memory, std::size_t largest, Readers readers, Owner owner) {
  const Group& group = me_->group();
  memory_ = memory;
  readers_ = readers;
  const bool in_place = is_read_in_place(owner);
  const bool shares_cores = me_->engine().options().oversubscribed;
  const std::size_t copied_up_to = std::min(readers == Readers::one ? kCopiedOnceBytes : kCopiedBytes, group.plain_limit);
  // Of staging memory blocks must be taken in turn, which messages with a tag don't.
  const bool staged =
      owner != Owner::operation && largest > copied_up_to && memory.size() <= kStagedBytes && me_->stream() != kTagged;
  // A rank needs the same memory on all machines, so a ring is reserved where it would be used if ranks shared cores.
  if (staged) group.staging->reserve(me_->stream());
  if (largest <= (in_place && !shares_cores ? kCopiedBytes : copied_up_to)) {
    protocol_ = Protocol::copied;
  } else if (owner == Owner::operation || in_place) {
    protocol_ = Protocol::in_place;
  } else if (staged) {
    protocol_ = Protocol::staged;
  } else {
    protocol_ = owner != Owner::changing && goes_from(memory) ? Protocol::in_place : Protocol::mirrored;
    // Memory whose need is certain is taken when the operation is posted, so that forecasts don't depend on when it begins.
    if (owner == Owner::changing) make_mirror(0, memory.size());
  }
}

/// Returns true if messages of any size go to all peers from where the memory lies.
bool Offer::goes_from(std::span<const std::byte> memory) const {
  const Group& group = me_->group();
  if (group.heap->contains(memory)) return true;
  return std::ranges::all_of(group.members, [&](const Group::Member& member) {
    return member.transport == nullptr || member.transport->can_send_from(memory);
  });
}

/// Returns true if peers read the payload where it lies although it is small enough to be copied.
bool Offer::is_read_in_place(Owner owner) const {
  const Group& group = me_->group();
  const std::size_t copied_up_to = me_->engine().options().oversubscribed ? kStagedFromHeapBytes : kCopiedBytes;
  return owner == Owner::caller && me_->is_blocking() && group.views && memory_.size() > copied_up_to &&
         group.heap->contains(memory_);
}

/// Takes a block of staging memory; returns false if there is none until a peer has read, which it then notes as missing.
bool Offer::find_room() {
  if (block_ != nullptr) return true;
  Staging& staging = *me_->group().staging;
  block_ = staging.take(me_->stream(), memory_.size());
  if (block_ == nullptr) me_->set_missing_world(staging.reader(me_->stream()));
  return block_ != nullptr;
}

bool Offer::prepare(std::size_t offset, std::size_t bytes) {
  if (bytes == 0 || protocol_ == Protocol::copied || protocol_ == Protocol::in_place) return true;
  std::byte* to = nullptr;
  if (protocol_ == Protocol::staged) {
    if (!find_room()) return false;
    to = block_->bytes().data() + offset;
  } else {
    const Mirror* copy = make_mirror(offset, bytes);
    if (copy == nullptr) return false;
    to = copy->block.bytes().data();
  }
  me_->copy(to, memory_.data() + offset, bytes);
  return true;
}

bool Offer::prepare_in_pieces(std::size_t offset, std::size_t bytes) {
  if (protocol_ != Protocol::mirrored || bytes == 0) return prepare(offset, bytes);
  const Mirror* copy = mirror(offset);
  if (copy == nullptr) copy = make_mirror(offset, bytes);
  if (copy == nullptr) return false;
  const std::size_t some = std::min(bytes - prepared_, me_->budget);
  me_->copy(copy->block.bytes().data() + prepared_, memory_.data() + offset + prepared_, some);
  prepared_ += some;
  me_->budget -= some;
  if (some != 0) me_->moved();
  if (prepared_ < bytes) return false;
  prepared_ = 0;
  return true;
}

/// Returns true if all of these messages have been read; else it notes who is missing, and keeps those that haven't.
template <class Sends>
bool Offer::are_read(Sends& sends) {
  while (!sends.empty()) {
    const PendingSend& pending = sends.back();
    switch (pending.transport->test_send(pending.lane, pending.ticket)) {
      case Outcome::done: sends.pop_back(); break;
      case Outcome::pending: me_->set_missing_world(pending.world); return false;
      case Outcome::disconnected: {
        const std::string why = pending.transport->found(pending.lane).detail;
        me_->engine().lost(pending.world, me_->info().op,
                           fmt::format("{}: the way to rank {} was cut before it had read{}{}", name(me_->info().op),
                                       pending.world, why.empty() ? "" : ": ", why));
      }
      default:
        me_->engine().fail(
            Cause::corrupt, pending.world,
            fmt::format("{}: rank {} acknowledges messages that were never sent to it", name(me_->info().op), pending.world));
    }
  }
  return true;
}

/// Returns the copy of the range that begins at `offset`; null: there is none.
Offer::Mirror* Offer::mirror(std::size_t offset) {
  const auto found = std::ranges::find(mirrors_, offset, &Mirror::offset);
  return found == mirrors_.end() ? nullptr : &*found;
}

/// Makes room for a copy of a range, and gives back that of copies that were read. Returns null, and notes who is missing, while
/// copies that were sent and not yet read leave too little of kMirroredBytes.
Offer::Mirror* Offer::make_mirror(std::size_t offset, std::size_t bytes) {
  std::size_t held = 0;
  std::erase_if(mirrors_, [&](Mirror& each) {
    if (each.unsent == 0 && are_read(each.pending)) return true;
    if (each.unsent == 0) held += each.block.bytes().size();
    return false;
  });
  if (held != 0 && held + bytes > kMirroredBytes) return nullptr;
  const int unsent = readers_ == Readers::one ? 1 : me_->peers();
  HeapBlock block = me_->group().heap->allocate(
      bytes, fmt::format("{}: a copy of a buffer that doesn't lie in the heap", name(me_->info().op)));
  return &mirrors_.emplace_back(Mirror{.offset = offset, .block = std::move(block), .unsent = unsent, .pending = {}});
}

bool Offer::send(int to, std::uint32_t step, std::size_t offset, std::size_t bytes) {
  const Group::Member& member = me_->group().member(to);
  Mirror* const copy = bytes == 0 || mirrors_.empty() ? nullptr : mirror(offset);
  const std::byte* from = memory_.data() + offset;
  if (block_ != nullptr) from = block_->bytes().data() + offset;
  if (copy != nullptr) from = copy->block.bytes().data();
  const std::span<const std::byte> payload = bytes == 0 ? std::span<const std::byte>() : std::span(from, bytes);
  const Delivery delivery = protocol_ == Protocol::copied ? Delivery::copy_if_small : Delivery::by_reference;
  const Ticket ticket = member.transport->send(me_->lane(to), me_->sent_envelope(step), payload, delivery);
  if (ticket == kNotNow) {
    me_->set_missing(to);
    return false;
  }
  if (protocol_ == Protocol::copied || bytes == 0) return true;
  const PendingSend sent{member.transport, me_->lane(to), ticket, member.world};
  if (copy == nullptr) {
    pending_.push_back(sent);
  } else {
    copy->pending.push_back(sent);
    --copy->unsent;
  }
  return true;
}

void Offer::all_sent() {
  if (block_ == nullptr) return;
  for (const PendingSend& reader : pending_) block_->add_reader(reader);
  pending_.clear();
  block_->give_back();
  block_ = nullptr;
}

bool Offer::drain() {
  all_sent();
  return are_read(pending_) && std::ranges::all_of(mirrors_, [this](Mirror& each) { return are_read(each.pending); });
}

bool SentInPieces::poll() {
  do {
    const std::size_t some = std::min(bytes_ - at_, me_.message_piece());
    prepared_ = prepared_ || offer_.prepare_in_pieces(at_, some);
    if (!prepared_ || !offer_.send(to_, step_, at_, some)) return false;
    prepared_ = false;
    ++step_;
    at_ += some;
  } while (at_ < bytes_);
  return true;
}

// --- Message -----------------------------------------------------------------------------------------------------------------

Message Message::adopt(Collective& me, Ticket ticket, int from, std::byte* landing) {
  Message message(me, from, 0, 0, landing);
  message.ticket_ = ticket;
  return message;
}

bool Message::ask() {
  if (ticket_ != kNotNow) return true;
  const Group::Member& member = me_->group().member(from_);
  const LaneId lane = me_->lane(from_);
  viewed_ = member.can_view && bytes_ > (landing_ == nullptr ? 0 : receive_up_to_);
  ticket_ = viewed_ ? member.transport->view(lane, me_->expected_envelope(step_), bytes_)
                    : member.transport->receive(lane, me_->expected_envelope(step_), {landing_, bytes_});
  return ticket_ != kNotNow;
}

bool Message::poll() {
  if (here_ || (ask() && arrived())) return true;
  note_missing();
  return false;
}

bool Message::arrived() {
  const Group::Member& member = me_->group().member(from_);
  const bool timed = bytes_ >= kTimedBytes && !me_->is_played();
  const Outcome outcome = member.transport->test_receive(me_->lane(from_), ticket_);
  if (outcome == Outcome::pending) {
    if (timed && pending_ns_ == 0) pending_ns_ = me_->engine().clock().now_ns();
    return false;
  }
  if (outcome != Outcome::done) me_->fail(outcome, from_);
  if (pending_ns_ != 0)
    me_->engine().link_times().arrived(member.world, bytes_, me_->engine().clock().now_ns() - pending_ns_ + 1);
  here_ = true;
  return true;
}

const std::byte* Message::bytes(std::size_t offset, std::size_t count) const {
  if (!viewed_) return landing_ + offset;
  return me_->group().member(from_).transport->access(me_->lane(from_), ticket_, offset, count).data();
}

void Message::release() {
  if (viewed_) me_->group().member(from_).transport->release(me_->lane(from_), ticket_);
  viewed_ = false;
}

// --- copies ------------------------------------------------------------------------------------------------------------------

std::byte* Landing::of(int from, std::span<std::byte> place) {
  const Group::Member& member = me_->group().member(from);
  const bool fits =
      member.can_view || place.size() <= member.transport->plain_limit() || member.transport->can_receive_into(place);
  if (fits) return place.data();
  if (block_.bytes().empty()) {
    block_ = me_->group().heap->allocate(
        whole_.size(), fmt::format("{}: a landing for a buffer that doesn't lie in the heap", name(me_->info().op)));
  }
  return block_.bytes().data() + (place.data() - whole_.data());
}

Arrival Arrival::adopt(Landing& landing, Ticket ticket, int from, std::span<std::byte> place) {
  Arrival arrival(landing, from, 0, place);
  arrival.message_ = Message::adopt(landing.me(), ticket, from, place.data());
  arrival.asked_ = true;
  return arrival;
}

bool ArrivedInPieces::poll() {
  while (arrival_.poll()) {
    at_ += piece().size();
    if (at_ == place_.size()) return true;
    ++step_;
    arrival_ = Arrival(landing_, from_, step_, piece(), step_ + 1);
  }
  return false;
}

bool Arrival::ask() {
  if (asked_) return true;
  message_.land_at(landing_->of(message_.from(), place_));
  return asked_ = message_.ask();
}

bool Arrival::advance() {
  if (done_ || !message_.poll()) return false;
  std::size_t& budget = landing_->me().budget;
  if (message_.is_at(place_.data())) {
    done_ = true;
    budget -= std::min(budget, place_.size());
    return true;
  }
  if (budget == 0) return false;
  const std::size_t some = std::min(budget, place_.size() - copied_);
  if (some != 0) landing_->me().copy(place_.data() + copied_, message_.bytes(copied_, some), some);
  copied_ += some;
  budget -= some;
  if (copied_ == place_.size()) {
    message_.release();
    done_ = true;
  }
  return true;
}

bool Arrival::poll() {
  if (ask() && advance() && !done_) landing_->me().moved();
  if (!done_) note_missing();
  return done_;
}

bool LocalCopy::poll() {
  if (to_ == from_) copied_ = bytes_;
  const std::size_t some = std::min(bytes_ - copied_, me_.budget);
  if (some != 0) {
    me_.copy(to_ + copied_, from_ + copied_, some);
    me_.budget -= some;
    me_.moved();
  }
  copied_ += some;
  return copied_ == bytes_;
}

}  // namespace tsprun::detail
