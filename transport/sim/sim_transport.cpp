// Messages of played ranks.
#include "transport/sim/sim_transport.h"

#include <algorithm>

namespace tsprun::detail::sim {

namespace {

// Events of a lane: which message, and what becomes of it.
constexpr std::uint64_t kLeaves = 0;
constexpr std::uint64_t kArrives = 1;
constexpr std::uint64_t kGivenBack = 2;
constexpr std::uint64_t kLaneEvents = 3;

}  // namespace

void SimWorld::make_transports() {
  for (int unit = 0; unit < grid.units(); ++unit) opposite.push_back(grid.opposite(unit));
  for (int rank = 0; rank < grid.unit; ++rank) transports.push_back(std::make_unique<SimTransport>(*this, rank));
}

// --- a lane ------------------------------------------------------------------------------------------------------------------

SimTransport::Message& SimTransport::Lane::at(Ticket ticket) {
  while (first + messages.size() <= ticket) messages.emplace_back();
  return messages[ticket - first];
}

/// Returns true if a message that has arrived is the expected one.
bool SimTransport::Lane::fits(const Message& message) const {
  if (!exact) return message.sent.tag == message.expected.tag;
  return message.sent.matches(message.expected) && message.bytes == message.expects;
}

/// Sends a message on its way `after` seconds, once it may leave.
void SimTransport::Lane::go(Ticket ticket, double after) {
  Message& message = at(ticket);
  if (message.on_its_way || !message.is_sent || (message.bytes > kPlainBytes && !message.is_asked_for)) return;
  message.on_its_way = true;
  if (after > 0) receiver->world_.timeline.add(after, *this, ticket * kLaneEvents + kLeaves);
  else leave(ticket);
}

void SimTransport::Lane::leave(Ticket ticket) {
  const Message& message = at(ticket);
  tell(message, 1);
  receiver->world_.fabric.send(way, static_cast<double>(message.bytes), *this, ticket * kLaneEvents + kArrives);
}

/// Tells the world that both ends begin or end to move bytes.
void SimTransport::Lane::tell(const Message& message, int change) const {
  const SimWorld& world = receiver->world_;
  if (message.bytes == 0 || !world.moves) return;
  world.moves(sender, change);
  world.moves(receiver->rank_, change);
}

void SimTransport::Lane::happen(std::uint64_t what) {
  const Ticket ticket = what / kLaneEvents;
  if (what % kLaneEvents == kLeaves) return leave(ticket);
  if (what % kLaneEvents == kGivenBack) return give_back(ticket);
  Message& message = at(ticket);
  if (message.is_asked_for && !message.viewed) receiver->chores_.copied_bytes += static_cast<double>(message.bytes);
  message.here = true;
  while (missing - first < messages.size() && find(missing)->here) ++missing;
  tell(message, -1);
  drop_finished();
  if (awaited >= missing) return;
  awaited = kNobody;
  receiver->world_.wake(receiver->rank_, stream);
}

void SimTransport::Lane::give_back(Ticket ticket) {
  find(ticket)->released = true;
  drop_finished();
}

/// Forgets the first messages that both ends are done with.
void SimTransport::Lane::drop_finished() {
  bool any = false;
  while (!messages.empty() && messages.front().here && messages.front().is_asked_for &&
         (!messages.front().viewed || messages.front().released) && fits(messages.front())) {
    messages.pop_front();
    ++first;
    any = true;
  }
  if (!any || !sender_waits) return;
  sender_waits = false;
  receiver->world_.wake(sender, stream);
}

// --- lanes of a rank ---------------------------------------------------------------------------------------------------------

SimTransport::Lane& SimTransport::incoming(int from, Stream stream) {
  Lanes& lanes = incoming_[static_cast<std::size_t>(stream)];
  const int unit = world_.grid.unit;
  if (from < unit && lanes.played.empty()) lanes.played.resize(static_cast<std::size_t>(unit));
  std::unique_ptr<Lane>& lane = from < unit ? lanes.played[static_cast<std::size_t>(from)] : lanes.counterparts[from];
  if (lane == nullptr) lane = make_lane(from, stream);
  return *lane;
}

std::unique_ptr<SimTransport::Lane> SimTransport::make_lane(int from, Stream stream) {
  const int unit = world_.grid.unit;
  auto lane = std::make_unique<Lane>();
  lane->receiver = this;
  lane->sender = from % unit;
  lane->stream = stream;
  lane->exact = from < unit;
  // Seen from the sender's unit, this rank is as far away as the sender is from here.
  lane->way = world_.fabric.way(lane->sender, world_.opposite[static_cast<std::size_t>(from / unit)] * unit + rank_);
  return lane;
}

SimTransport::Lane& SimTransport::outgoing(int to, Stream stream) {
  const int unit = world_.grid.unit;
  if (to < unit) return world_.transports[static_cast<std::size_t>(to)]->incoming(rank_, stream);
  return world_.transports[static_cast<std::size_t>(to % unit)]->incoming(
      world_.opposite[static_cast<std::size_t>(to / unit)] * unit + rank_, stream);
}

// --- sending -----------------------------------------------------------------------------------------------------------------

Ticket SimTransport::send(LaneId to, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) {
  Lane& lane = outgoing(to.peer, to.stream);
  const Ticket ticket = ++lane.sent;
  Message& message = lane.at(ticket);
  message.sent = envelope;
  message.payload = payload.data();
  message.bytes = payload.size();
  message.is_sent = true;
  counters_.sent[static_cast<std::size_t>(envelope.purpose)] += payload.size();
  ++world_.messages;
  ++chores_.messages;
  if (payload.size() <= kPlainBytes && delivery == Delivery::copy_if_small)
    chores_.copied_bytes += static_cast<double>(payload.size());
  if (log_ != nullptr) log_->sent(to, ticket, payload.size());
  lane.go(ticket, chore_seconds());
  return ticket;
}

Outcome SimTransport::test_send(LaneId to, Ticket ticket) {
  Lane& lane = outgoing(to.peer, to.stream);
  if (lane.find(ticket) != nullptr) {
    lane.sender_waits = true;
    return Outcome::pending;
  }
  if (log_ != nullptr) log_->send_done(to, ticket);
  return Outcome::done;
}

// --- receiving ---------------------------------------------------------------------------------------------------------------

Ticket SimTransport::ask(LaneId from, const Envelope& envelope, std::size_t bytes, bool view) {
  Lane& lane = incoming(from.peer, from.stream);
  const Ticket ticket = ++lane.asked;
  Message& message = lane.at(ticket);
  message.expected = envelope;
  message.expects = bytes;
  message.is_asked_for = true;
  message.viewed = view;
  if (!view) counters_.received[static_cast<std::size_t>(envelope.purpose)] += bytes;
  ++chores_.messages;
  if (message.here && !view) chores_.copied_bytes += static_cast<double>(bytes);
  if (log_ != nullptr) log_->asked(from, ticket, bytes);
  lane.go(ticket, chore_seconds());
  lane.drop_finished();
  return ticket;
}

Ticket SimTransport::receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) {
  return ask(lane, envelope, into.size(), false);
}

Ticket SimTransport::view(LaneId lane, const Envelope& envelope, std::size_t bytes) { return ask(lane, envelope, bytes, true); }

Outcome SimTransport::test_receive(LaneId from, Ticket ticket) {
  Lane& lane = incoming(from.peer, from.stream);
  // A lane keeps its order, though a small message may get there before a large one.
  if (ticket >= lane.missing) {
    lane.awaited = std::min(lane.awaited, ticket);
    return Outcome::pending;
  }
  const Message* message = lane.find(ticket);
  if (message != nullptr && !lane.fits(*message)) return Outcome::mismatch;
  if (log_ != nullptr) log_->receive_done(from, ticket);
  return Outcome::done;
}

std::span<const std::byte> SimTransport::access(LaneId from, Ticket ticket, std::size_t offset, std::size_t bytes) {
  const Message* message = incoming(from.peer, from.stream).find(ticket);
  counters_.received[static_cast<std::size_t>(message->expected.purpose)] += bytes;
  return {message->payload + offset, bytes};
}

void SimTransport::release(LaneId from, Ticket ticket) {
  Lane& lane = incoming(from.peer, from.stream);
  if (const double after = chore_seconds(); after > 0) world_.timeline.add(after, lane, ticket * kLaneEvents + kGivenBack);
  else lane.give_back(ticket);
}

int SimTransport::unread() const {
  const auto is_unread = [](const std::unique_ptr<Lane>& lane) { return lane != nullptr && lane->sent > lane->asked; };
  for (const Lanes& lanes : incoming_) {
    const auto played = std::ranges::find_if(lanes.played, is_unread);
    if (played != lanes.played.end()) return static_cast<int>(played - lanes.played.begin());
    for (const auto& [peer, lane] : lanes.counterparts) {
      if (is_unread(lane)) return peer;
    }
  }
  return -1;
}

Found SimTransport::found(LaneId from) const {
  const Lanes& lanes = incoming_[static_cast<std::size_t>(from.stream)];
  const Lane* lane = nullptr;
  if (from.peer >= world_.grid.unit) {
    if (const auto used = lanes.counterparts.find(from.peer); used != lanes.counterparts.end()) lane = used->second.get();
  } else if (!lanes.played.empty()) {
    lane = lanes.played[static_cast<std::size_t>(from.peer)].get();
  }
  if (lane == nullptr) return {};
  for (const Message& message : lane->messages) {
    if (message.here && !lane->fits(message)) {
      return {.envelope = message.sent, .bytes = message.bytes, .detail = {}};
    }
  }
  return {};
}

}  // namespace tsprun::detail::sim
