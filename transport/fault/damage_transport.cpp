// Maps tickets of the caller to tickets below, so that lost messages are skipped, and damages payloads.
#include "transport/fault/damage_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace tsprun::detail::fault {

Ticket DamageTransport::Lane::below(Ticket ticket) const {
  const auto before = std::ranges::count_if(lost, [&](const Lost& each) { return each.instead <= ticket; });
  return ticket + static_cast<Ticket>(before);
}

/// Posts a receive below by `post`, and strikes its message if a strike is due. A caller whose receive finds no credit posts
/// the same receive again; what was posted below for a message that is to be lost isn't posted twice.
template <class Post>
Ticket DamageTransport::expect(LaneId lane, const Envelope& envelope, std::byte* where, std::size_t bytes, const Post& post) {
  // Messages that decorators add don't count, and an empty one has nothing to damage.
  const bool can_be_struck = envelope.purpose != Purpose::none && bytes != 0;
  const int from = world(lane.peer);
  // Copies: below, a DelayTransport may carry out strikes of its own.
  const std::optional<Strike> loss = can_be_struck ? strikes_->due(Kind::drop, lane.stream, from) : std::nullopt;
  std::optional<Strike> damage = can_be_struck ? strikes_->due(Kind::corrupt, lane.stream, from) : std::nullopt;
  Lane& here = lanes_[lane];
  if (loss && !here.losing) {
    const Ticket below = post();
    if (below == kNotNow) return kNotNow;
    here.last = below;
    here.lost.push_back({.instead = below - here.lost.size(), .below = below, .is_view = where == nullptr});
    here.losing = true;
    strikes_->done(*loss, {loss->fault, lane.stream, from, bytes, "the message is lost"});
  }
  // The message that replaces a lost one isn't the one to be damaged.
  if (here.losing) damage.reset();
  const bool below_its_check = damage && inner().checks_payloads();
  const std::size_t byte = damage ? damage->draw % bytes : 0;
  const unsigned bit = damage ? static_cast<unsigned>(damage->draw >> 61) : 0;
  const std::byte flip = std::byte{1} << bit;
  if (below_its_check) arrivals_->damage(lane, here.last + 1, byte, flip);
  const Ticket below = post();
  if (below == kNotNow) return kNotNow;
  here.last = below;
  here.losing = false;
  const Ticket ticket = below - here.lost.size();
  if (damage) {
    const std::string what = fmt::format("bit {} of byte {} is flipped", bit, byte);
    if (!below_its_check) {
      here.damaged[ticket] = {.bytes = where, .byte = byte, .flip = flip, .copy = {}};
      if (where == nullptr) here.damaged[ticket].copy.resize(bytes);
    }
    strikes_->done(*damage, {damage->fault, lane.stream, from, bytes, what});
  }
  return ticket;
}

Ticket DamageTransport::receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) {
  return expect(lane, envelope, into.data(), into.size(), [&] { return inner().receive(lane, envelope, into); });
}

Ticket DamageTransport::view(LaneId lane, const Envelope& envelope, std::size_t bytes) {
  return expect(lane, envelope, nullptr, bytes, [&] { return inner().view(lane, envelope, bytes); });
}

/// Takes from the lane below the lost messages that precede this ticket. Returns pending until they have come.
Outcome DamageTransport::take_lost(Lane& here, LaneId lane, Ticket ticket) {
  for (Lost& lost : here.lost) {
    if (lost.taken || lost.instead > ticket) continue;
    if (const Outcome outcome = inner().test_receive(lane, lost.below); outcome != Outcome::done) return outcome;
    if (lost.is_view) inner().release(lane, lost.below);
    lost.taken = true;
  }
  return Outcome::done;
}

Outcome DamageTransport::test_receive(LaneId lane, Ticket ticket) {
  if (strikes_->why_cut(world(lane.peer)) != nullptr) return Outcome::disconnected;
  Lane& here = lanes_[lane];
  if (const Outcome outcome = take_lost(here, lane, ticket); outcome != Outcome::done) return outcome;
  const Outcome outcome = inner().test_receive(lane, here.below(ticket));
  const auto damaged = here.damaged.find(ticket);
  if (outcome != Outcome::done || damaged == here.damaged.end() || damaged->second.bytes == nullptr) return outcome;
  damaged->second.bytes[damaged->second.byte] ^= damaged->second.flip;
  here.damaged.erase(damaged);
  return outcome;
}

std::span<const std::byte> DamageTransport::access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) {
  Lane& here = lanes_[lane];
  const std::span<const std::byte> part = inner().access(lane, here.below(ticket), offset, bytes);
  const auto damaged = here.damaged.find(ticket);
  if (damaged == here.damaged.end()) return part;
  Damaged& damage = damaged->second;
  std::ranges::copy(part, damage.copy.begin() + static_cast<std::ptrdiff_t>(offset));
  if (damage.byte >= offset && damage.byte - offset < bytes) damage.copy[damage.byte] ^= damage.flip;
  return std::span(damage.copy).subspan(offset, bytes);
}

void DamageTransport::release(LaneId lane, Ticket ticket) {
  Lane& here = lanes_[lane];
  inner().release(lane, here.below(ticket));
  here.damaged.erase(ticket);
}

Found DamageTransport::found(LaneId lane) const {
  if (const std::string* why = strikes_->why_cut(world(lane.peer))) return {.envelope = {}, .bytes = 0, .detail = *why};
  return inner().found(lane);
}

}  // namespace tsprun::detail::fault
