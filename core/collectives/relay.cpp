// Relay: parts are cut into pieces of kSegmentBytes, each of them one message.
#include "core/collectives/relay.h"

#include <algorithm>

namespace tsprun::detail {

void Relay::set(const Collective& operation, std::span<std::byte> buffer, std::vector<Part> parts) {
  buffer_ = buffer;
  parts_ = std::move(parts);
  have_.assign(parts_.size(), 0);
  prepared_.assign(parts_.size(), 0);
  leaves_.assign(parts_.size(), false);
  std::size_t largest = 0;
  for (const Part& part : parts_) largest = std::max(largest, std::min(part.bytes, kSegmentBytes));
  offer_.set(operation, std::span<const std::byte>(buffer_), largest, Readers::several);
}

void Relay::send_to(int peer, std::vector<int> parts) {
  for (const int part : parts) leaves_[static_cast<std::size_t>(part)] = true;
  outgoing_.push_back({.peer = peer, .next = {.parts = std::move(parts)}});
}

void Relay::expect_from(int peer, std::vector<int> parts) {
  RelayedReceive incoming{.peer = peer, .next = {.parts = parts}, .arriving = {}};
  incoming.arriving.parts = std::move(parts);
  incoming_.push_back(std::move(incoming));
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
  here = std::max(here, pieces);
}

/// Prepares the pieces for sending that are here and are to be forwarded; returns true when all of them are prepared.
bool Relay::prepare(Collective& operation) {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    for (; leaves_[p] && prepared_[p] < have_[p]; ++prepared_[p]) {
      const Part piece = piece_of(parts_[p], prepared_[p]);
      if (!offer_.prepare(operation, piece.offset, piece.bytes)) return false;
    }
  }
  return true;
}

bool Relay::step(Collective& operation, Engine& engine, std::size_t budget) {
  bool moved = false;
  pass_on(operation);
  const bool collected = collect(operation, engine, budget, moved);
  const bool sent = pass_on(operation);
  if (sent && !all_sent_) {
    all_sent_ = true;
    offer_.all_sent();
  }
  if (moved && !(sent && collected)) engine.moved();
  return sent && collected && offer_.drained(operation, engine);
}

/// Sends the pieces that are here, as far as lanes have credit; returns true when everything was sent.
bool Relay::pass_on(Collective& operation) {
  bool all = prepare(operation);
  for (RelayedSend& outgoing : outgoing_) {
    Walk& next = outgoing.next;
    while (!at_end(next) && next.piece < prepared_[static_cast<std::size_t>(next.parts[next.part])]) {
      const Part piece = piece_of(part_at(next), next.piece);
      if (!offer_.send(operation, outgoing.peer, next.message, piece.offset, piece.bytes)) break;
      advance(next);
    }
    all = all && at_end(next);
  }
  return all;
}

/// Takes the pieces that have arrived; returns true when nothing more is expected. Notes the first peer whose piece is missing.
bool Relay::collect(Collective& operation, Engine& engine, std::size_t& budget, bool& moved) {
  bool all = true;
  for (auto incoming = incoming_.rbegin(); incoming != incoming_.rend(); ++incoming) {
    Walk& next = incoming->next;
    Walk& arriving = incoming->arriving;
    const auto ask = [&] {
      while (!at_end(next) && next.message < arriving.message + kAskedAhead) {
        const Part piece = piece_of(part_at(next), next.piece);
        if (!incoming->arrivals[next.message % kAskedAhead].post(operation, incoming->peer, next.message, buffer_,
                                                                 buffer_.subspan(piece.offset, piece.bytes), landing_))
          return;
        advance(next);
      }
    };
    ask();
    while (arriving.message < next.message && budget > 0) {
      Arrival& arrival = incoming->arrivals[arriving.message % kAskedAhead];
      if (!arrival.advance(operation, engine, budget)) break;
      moved = true;
      if (!arrival.done()) break;
      arrival = Arrival();
      have(arriving.parts[arriving.part], arriving.piece + 1);
      advance(arriving);
      ask();
    }
    if (at_end(arriving)) continue;
    all = false;
    operation.set_missing(incoming->peer);
  }
  return all;
}

}  // namespace tsprun::detail
