// Compares headers with what the receiver waits for, and checks the bounds of granted memory.
#include "transport/verbs/judgement.h"

#include "transport/endpoint.h"

#include <fmt/format.h>

namespace tsprun::detail::verbs {

std::optional<Ticket> awaited(std::uint32_t low, Ticket finished) {
  const Ticket ticket = widen(low, finished);
  if (ticket <= finished || ticket - finished > kSlots) return std::nullopt;
  return ticket;
}

std::string_view trouble_of(const Immediate& news, bool is_open) {
  if (news.stream >= kQueues) return "an immediate names a queue that doesn't exist";
  switch (news.news) {
    case News::entry:
    case News::grant: return is_open ? "" : "a message came for a queue that isn't open";
    case News::data:
    case News::credit:
    case News::opened: return {};
    case News::whole:
    case News::ready: return "news of a whole queue pair came by one that carries messages";
  }
  return "an immediate of no known kind arrived";
}

std::string_view trouble_of(const Immediate& news, const WholeThere& before, bool told) {
  constexpr std::uint32_t kMostNumber = (1U << 24) - 1;
  if (news.stream != 0) return "a small queue pair speaks of a queue";
  switch (news.news) {
    case News::credit: return news.low == 0 && before.number == 0 ? "" : "a small queue pair carries credit";
    case News::whole:
      if (before.number != 0) return "a whole queue pair was told twice";
      return news.low != 0 && news.low <= kMostNumber ? "" : "a whole queue pair has no number of 24 bits";
    case News::ready:
      if (before.number == 0 || !told) return "a whole queue pair is ready before both ends were told its number";
      return before.ready ? "a whole queue pair was ready twice" : "";
    case News::entry:
    case News::grant:
    case News::data:
    case News::opened: return "a small queue pair carries a message";
  }
  return "an immediate of no known kind arrived by a small queue pair";
}

std::string trouble_of(const Opened& there, bool is_open) {
  if (is_open) return "a queue was opened twice";
  if (there.bytes != kRingBytes) return fmt::format("a queue was opened with {} bytes, not {}", there.bytes, kRingBytes);
  return {};
}

Outcome judge_entry(const EntryHeader& header, Ticket ticket, const Awaited& message) {
  const Envelope arrived{header.signature, header.sequence, header.tag, message.envelope.purpose};
  if (header.ticket != ticket) return Outcome::corrupt;
  if (!arrived.matches(message.envelope) || header.bytes != message.bytes) return Outcome::mismatch;
  const bool whole = header.kind == EntryKind::message && header.bytes <= kEagerBytes;
  return whole ? Outcome::done : Outcome::corrupt;
}

std::string trouble_of(const GrantHeader& grant) {
  const std::uint64_t beyond = grant.bytes <= grant.first_bytes ? 0 : grant.bytes - grant.first_bytes;
  const std::uint64_t needed = 1 + beyond / kSlabBytes + (beyond % kSlabBytes != 0 ? 1 : 0);
  if (grant.keys <= kMaxKeys && grant.first_bytes != 0 && needed <= grant.keys) return {};
  return fmt::format("a grant of {} bytes with {} keys", grant.bytes, grant.keys);
}

std::optional<Granted> granted_at(const GrantHeader& grant, std::size_t written) {
  if (written < grant.first_bytes) return Granted{0, grant.first_bytes - written};
  const std::size_t beyond = written - grant.first_bytes;
  const std::size_t key = 1 + beyond / kSlabBytes;
  if (key >= kMaxKeys) return std::nullopt;
  return Granted{key, kSlabBytes - beyond % kSlabBytes};
}

}  // namespace tsprun::detail::verbs
