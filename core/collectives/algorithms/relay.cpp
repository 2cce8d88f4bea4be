// Relay: parts are cut into pieces of kSegmentBytes, each of them one message.
#include "core/collectives/algorithms/relay.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

std::size_t largest_piece(const std::vector<Relay::Part>& parts) {
  std::size_t largest = 0;
  for (const Relay::Part& part : parts) largest = std::max(largest, std::min(part.bytes, kSegmentBytes));
  return largest;
}

}  // namespace

Relay::Relay(Collective& me, std::span<std::byte> buffer, std::vector<Part> parts)
    : me_(me),
      buffer_(buffer),
      parts_(std::move(parts)),
      have_(parts_.size()),
      prepared_(parts_.size()),
      leaves_(parts_.size()),
      offer_(me, buffer, largest_piece(parts_), Readers::several),
      landing_(me, buffer) {}

void Relay::send_to(int peer, std::vector<int> parts) {
  for (const int part : parts) leaves_[static_cast<std::size_t>(part)] = true;
  outgoing_.push_back({.peer = peer, .next = {.parts = std::move(parts)}});
}

void Relay::expect_from(int peer, std::vector<int> parts) {
  RelayedReceive& incoming = incoming_.emplace_back();
  incoming.peer = peer;
  incoming.next.parts = parts;
  incoming.arriving.parts = std::move(parts);
}

void Relay::give(int part, std::size_t bytes) {
  const Part& whole = parts_[static_cast<std::size_t>(part)];
  have(part, bytes == whole.bytes ? pieces(whole) : bytes / kSegmentBytes);
}

/// Returns the number of pieces of a part; an empty part has one, so that there is always a message.
std::size_t Relay::pieces(const Part& part) { return std::max<std::size_t>(1, (part.bytes + kSegmentBytes - 1) / kSegmentBytes); }

Relay::Part Relay::piece_of(const Part& part, std::size_t piece) {
  const std::size_t first = piece * kSegmentBytes;
  return {part.offset + first, std::min(kSegmentBytes, part.bytes - first)};
}

void Relay::advance(Walk& walk) const {
  ++walk.message;
  if (++walk.piece < pieces(part_at(walk))) return;
  walk.piece = 0;
  ++walk.part;
}

/// Notes that the first `pieces` pieces of a part are here.
void Relay::have(int part, std::size_t pieces) {
  std::size_t& here = have_[static_cast<std::size_t>(part)];
  if (pieces <= here) return;
  if (here == prepared_[static_cast<std::size_t>(part)]) fresh_.insert(std::ranges::lower_bound(fresh_, part), part);
  here = pieces;
}

/// Prepares the pieces for sending that are here and are to be forwarded; returns true when all of them are prepared.
bool Relay::prepare() {
  for (auto part = fresh_.begin(); part != fresh_.end(); ++part) {
    const auto p = static_cast<std::size_t>(*part);
    for (; leaves_[p] && prepared_[p] < have_[p]; ++prepared_[p]) {
      const Part piece = piece_of(parts_[p], prepared_[p]);
      if (offer_.prepare(piece.offset, piece.bytes)) continue;
      fresh_.erase(fresh_.begin(), part);
      return false;
    }
  }
  fresh_.clear();
  return true;
}

bool Relay::poll() {
  bool moved = false;
  pass_on();
  const bool collected = collect(moved);
  const bool sent = pass_on();
  if (moved && !(sent && collected)) me_.moved();
  return sent && collected;
}

/// Sends the pieces that are here, as far as lanes have credit; returns true when everything was sent.
bool Relay::pass_on() {
  bool all = prepare();
  for (RelayedSend& outgoing : outgoing_) {
    Walk& next = outgoing.next;
    while (!at_end(next) && next.piece < prepared_[static_cast<std::size_t>(next.parts[next.part])]) {
      const Part piece = piece_of(part_at(next), next.piece);
      if (!offer_.send(outgoing.peer, next.message, piece.offset, piece.bytes)) break;
      advance(next);
    }
    all = all && at_end(next);
  }
  return all;
}

/// Asks for the next pieces from a peer, a few ahead.
void Relay::ask(RelayedReceive& incoming) {
  Walk& next = incoming.next;
  while (!at_end(next) && next.message < incoming.arriving.message + kAskedAhead) {
    const Part piece = piece_of(part_at(next), next.piece);
    Arrival arrival(landing_, incoming.peer, next.message, buffer_.subspan(piece.offset, piece.bytes));
    if (!arrival.ask()) return;
    incoming.arrivals.push_back(arrival);
    advance(next);
  }
}

/// Takes the pieces that have arrived; returns true when nothing more is expected. Notes the first peer whose piece is missing.
bool Relay::collect(bool& moved) {
  bool all = true;
  for (auto incoming = incoming_.rbegin(); incoming != incoming_.rend(); ++incoming) {
    Walk& arriving = incoming->arriving;
    ask(*incoming);
    while (!incoming->arrivals.empty() && me_.budget > 0) {
      Arrival& arrival = incoming->arrivals.front();
      if (!arrival.advance()) break;
      moved = true;
      if (!arrival.done()) break;
      incoming->arrivals.erase(incoming->arrivals.begin());
      have(arriving.parts[arriving.part], arriving.piece + 1);
      advance(arriving);
      ask(*incoming);
    }
    if (at_end(arriving)) continue;
    all = false;
    me_.set_missing(incoming->peer);
  }
  return all;
}

}  // namespace tsprun::detail
