// Checks of the headers that a peer wrote (wire.h). They depend only on those headers and on what this side waits for, so tests
// need no device.
#pragma once

#include "transport/message.h"
#include "transport/verbs/wire.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail::verbs {

/// Returns the message to which an immediate with these low bits, those of `mask`, refers: one of the kSlots messages after
/// `finished`, up to which all are finished. Nothing if it is none of those.
std::optional<Ticket> awaited(std::uint32_t low, Ticket finished, std::uint32_t mask = Immediate::kLowMask);

/// Returns why a peer can't have sent this news; empty if it can. `is_open`: both ends have opened the queue that it names.
std::string_view trouble_of(const Immediate& news, bool is_open);

/// Returns why the place of a ring that a peer has left in the door of a queue can't be used; empty if it can. `is_open`: it has
/// left one before.
std::string trouble_of(const Opened& there, bool is_open);

/// What a peer has told of its whole queue pair, by the first one of a pair whose first one is small.
struct WholeThere {
  std::uint32_t number = 0;  ///< 0: nothing yet
  bool ready = false;
};
/// Returns why a peer can't have sent this news by such a first queue pair; empty if it can: the probe, then the number of its
/// whole one, then, once this end has told its own, that it is ready.
std::string_view trouble_of(const Immediate& news, const WholeThere& before, bool told);

/// State of another queue pair for payloads at the peer's end, as it has told.
struct JoinThere {
  std::uint32_t number = 0;  ///< 0: nothing yet
  bool linked = false;
  bool proved = false;
  bool left = false;
};
/// Returns why a peer can't have told this of such a queue pair; empty if it can: its number, then, once this end has told its
/// own, that it is linked, and that it is proved; before that, instead, that it leaves it out, and then nothing. `told`: this end
/// has told its number.
std::string_view trouble_of(const JoinNews& news, const JoinThere& before, bool told);
/// Returns why a peer can't have lost these ways; empty if it can. `ways`: how many there are. `before`: those that it had lost.
std::string_view trouble_of(const LostNews& news, std::size_t ways, std::uint32_t before);
/// Returns why a peer can't have sent this news by such a queue pair; empty if it can: the probe, parts of payloads, and which
/// ways are lost.
std::string_view trouble_by_other(const Immediate& news);

/// The parts of a payload that have arrived.
struct Arrived {
  std::uint8_t seen = 0;  ///< bit i: part i
  std::uint8_t all = 0;   ///< number of parts; 0: not known yet
  bool is_whole() const { return all != 0 && seen == (1U << all) - 1; }
};
/// Returns why this part can't be the next of a payload; empty if it can.
std::string_view trouble_of(const PartNews& news, const Arrived& before);

/// A message for whose entry a receiver waits.
struct Awaited {
  Envelope envelope;
  std::size_t bytes = 0;
};
/// Checks an entry that arrived for message `ticket`. Returns done if it is the message expected (its payload then lies in the
/// entry), mismatch if envelope or size differ, corrupt if it contradicts itself.
Outcome judge_entry(const EntryHeader& header, Ticket ticket, const Awaited& message);

/// Returns why a grant contradicts itself and can't be used; empty if it can.
std::string trouble_of(const GrantHeader& grant);
/// Place of a byte of a granted message: the index of the grant's key under which it lies, and how many bytes lie there from it
/// on.
struct Granted {
  std::size_t key;
  std::size_t bytes;
};
/// Finds the place of byte number `written` for one of the adapters. Nothing if it lies under no key for it: the peer can write
/// to the grant's memory, so a grant may change while it is used.
std::optional<Granted> granted_at(const GrantHeader& grant, std::size_t written, int adapter);

}  // namespace tsprun::detail::verbs
