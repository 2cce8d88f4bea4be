// What is believed of the headers that a peer wrote (wire.h): functions of those headers and of what this side awaits, and of
// nothing else, so that they can be tried without a device.
#pragma once

#include "transport/message.h"
#include "transport/verbs/wire.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tsprun::verbs {

/// The message that news of an arrival or a grant speaks of, where all up to `finished` are over: one of the kSlots after it.
/// Nothing: none of those.
std::optional<Ticket> awaited(std::uint32_t low, Ticket finished);

/// The message that a receiver waits for in an entry. A put's payload went to `where`.
struct Awaited {
  Envelope envelope;
  std::size_t bytes = 0;
  std::optional<std::uint64_t> where;  ///< of a put
};
/// An entry that arrived as that of message `ticket`: done if it's the awaited one, which then lies in the entry whole.
Outcome judge_entry(const EntryHeader& header, Ticket ticket, const Awaited& message);

/// Why this grant can't be used for the message that it is meant for; empty: it can.
std::string trouble_of(const GrantHeader& grant);
/// Under which of the grant's keys the byte number `written` lies, and how many from there on.
struct Granted {
  std::size_t key;
  std::size_t bytes;
};
/// Nothing: under none (a grant lies where the peer may write, and may change while it's used).
std::optional<Granted> granted_at(const GrantHeader& grant, std::size_t written);

}  // namespace tsprun::verbs
