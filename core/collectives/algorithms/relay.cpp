// Relay: parts are cut into pieces of Collective::segment_bytes(), each of them one message.
#include "core/collectives/algorithms/relay.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

std::size_t largest_of(const Relay::Parts& parts) {
  std::size_t largest = 0;
  for (const Relay::Part& part : parts) largest = std::max(largest, part.bytes);
  return largest;
}

}  // namespace

Relay::Relay(Collective& me, std::span<std::byte> buffer, Parts parts, std::size_t segments)
    : me_(me),
      buffer_(buffer),
      parts_(std::move(parts)),
      piece_bytes_(me.segment_bytes(largest_of(parts_), segments)),
      have_(parts_.size()),
      prepared_(parts_.size()),
      leaves_(parts_.size()),
      offer_(me, buffer, std::min(largest_of(parts_), piece_bytes_), Readers::several),
      landing_(me, buffer) {}

void Relay::send_to(int peer, Order parts) {
  for (const int part : parts) leaves_[static_cast<std::size_t>(part)] = true;
  outgoing_.push_back({.peer = peer, .parts = std::move(parts)});
}

void Relay::expect_from(int peer, Order parts) { incoming_.push_back({.peer = peer, .parts = std::move(parts)}); }

void Relay::give(int part, std::size_t bytes) {
  const Part& whole = parts_[static_cast<std::size_t>(part)];
  have(part, bytes == whole.bytes ? pieces(whole) : bytes / piece_bytes_);
}

/// Returns the number of pieces of a part; an empty part has one, so that there is always a message.
std::size_t Relay::pieces(const Part& part) const {
  return std::max<std::size_t>(1, (part.bytes + piece_bytes_ - 1) / piece_bytes_);
}

Relay::Part Relay::piece_of(const Part& part, std::size_t piece) const {
  const std::size_t first = piece * piece_bytes_;
  return {part.offset + first, std::min(piece_bytes_, part.bytes - first)};
}

void Relay::advance(Walk& walk, const Order& of) const {
  ++walk.message;
  if (++walk.piece < pieces(part_of(of[walk.part]))) return;
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
  if (moved && !(sent && collected) && !me_.is_engine()) me_.moved();
  return sent && collected;
}

/// Sends the pieces that are here, as far as lanes have credit; returns true when everything was sent.
bool Relay::pass_on() {
  bool all = prepare();
  for (RelayedSend& outgoing : outgoing_) {
    auto& [peer, parts, next] = outgoing;
    while (next.part < parts.size() && next.piece < prepared_[static_cast<std::size_t>(parts[next.part])]) {
      const Part piece = piece_of(part_of(parts[next.part]), next.piece);
      if (!offer_.send(peer, next.message, piece.offset, piece.bytes)) break;
      advance(next, parts);
    }
    all = all && next.part == parts.size();
  }
  return all;
}

/// Asks for the next pieces from a peer, a few ahead.
void Relay::ask(RelayedReceive& incoming) {
  auto& [peer, parts, next, arriving, arrivals] = incoming;
  while (next.part < parts.size() && next.message < arriving.message + kAskedAhead) {
    const Part piece = piece_of(part_of(parts[next.part]), next.piece);
    Arrival arrival(landing_, peer, next.message, buffer_.subspan(piece.offset, piece.bytes));
    if (!arrival.ask()) return;
    arrivals.push_back(arrival);
    advance(next, parts);
  }
}

/// Takes the pieces that have arrived; returns true when nothing more is expected. Notes the first peer whose piece is missing.
bool Relay::collect(bool& moved) {
  bool all = true;
  for (auto incoming = incoming_.rbegin(); incoming != incoming_.rend(); ++incoming) {
    auto& [peer, parts, next, arriving, arrivals] = *incoming;
    ask(*incoming);
    while (!arrivals.empty() && me_.budget > 0) {
      Arrival& arrival = arrivals.front();
      if (!arrival.advance()) break;
      moved = true;
      if (!arrival.done()) break;
      arrivals.erase(arrivals.begin());
      have(parts[arriving.part], arriving.piece + 1);
      advance(arriving, parts);
      ask(*incoming);
    }
    if (arriving.part == parts.size()) continue;
    all = false;
    me_.set_missing(peer);
  }
  return all;
}

}  // namespace tsprun::detail
