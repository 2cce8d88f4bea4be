// Compares headers with what the receiver waits for, and checks the bounds of granted memory.
#include "transport/verbs/judgement.h"

#include "transport/endpoint.h"

#include <fmt/format.h>

#include <bit>

namespace tsprun::detail::verbs {

std::optional<Ticket> awaited(std::uint32_t low, Ticket finished, std::uint32_t mask) {
  const Ticket ticket = widen(low, finished, mask);
  if (ticket <= finished || ticket - finished > kSlots) return std::nullopt;
  return ticket;
}

std::string_view trouble_of(const Immediate& news, bool is_open) {
  if (news.news == News::join) return {};
  if (news.stream >= kQueues) return "an immediate names a queue that doesn't exist";
  switch (news.news) {
    case News::entry:
    case News::grant: return is_open ? "" : "a message came for a queue that isn't open";
    case News::data:
    case News::credit:
    case News::opened: return {};
    case News::whole:
    case News::ready: return "news of a whole queue pair came by one that carries messages";
    case News::join: break;
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
    case News::opened:
    case News::join: return "a small queue pair carries a message";
  }
  return "an immediate of no known kind arrived by a small queue pair";
}

std::string_view trouble_of(const JoinNews& news, const JoinThere& before, bool told) {
  if (before.left) return "a queue pair that was left out is spoken of";
  if (news.step != JoinNews::Step::number && news.number != 0) return "a queue pair's state has a number";
  switch (news.step) {
    case JoinNews::Step::number:
      if (before.number != 0) return "a queue pair for payloads was told twice";
      return news.number != 0 ? "" : "a queue pair for payloads has no number";
    case JoinNews::Step::linked:
      if (before.number == 0 || !told) return "a queue pair for payloads is linked before both ends were told its number";
      return before.linked ? "a queue pair for payloads was linked twice" : "";
    case JoinNews::Step::proved:
      if (!before.linked) return "a queue pair for payloads is proved before it is linked";
      return before.proved ? "a queue pair for payloads was proved twice" : "";
    case JoinNews::Step::left: return before.proved ? "a queue pair for payloads is left out after it was proved" : "";
  }
  return "a queue pair for payloads is in no known state";
}

std::string_view trouble_of(const LostNews& news, std::size_t ways, std::uint32_t before) {
  if (news.lost >> ways != 0 || news.carries >> ways != 0) return "a way is lost that there isn't";
  if ((news.lost & before) != before) return "a way that was lost is back";
  if (news.lost == before) return "no way is lost";
  return (news.lost & news.carries) != 0 || news.carries == 0 ? "a way that is lost carries messages" : "";
}

std::string_view trouble_by_other(const Immediate& news) {
  if (news.news == News::data && news.stream < kQueues) return {};
  if (news.news == News::credit && news.stream == 0 && news.low == 0) return {};  // the probe
  if (news.news == News::join && news.stream == 0) return {};
  return "a queue pair for payloads carries something else";
}

std::string_view trouble_of(const PartNews& news, const Arrived& before) {
  if (news.part >= news.parts) return "a payload has a part beyond its last one";
  if (before.all != 0 && before.all != news.parts) return "a payload changes the number of its parts";
  return (before.seen >> news.part & 1) != 0 ? "a part of a payload arrived twice" : "";
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
  const auto adapters = static_cast<std::size_t>(std::popcount(grant.adapters));
  if ((grant.adapters & 1) != 0 && grant.adapters >> kMostWays == 0 && grant.keys <= kMaxKeys / adapters &&
      grant.first_bytes != 0 && needed <= grant.keys)
    return {};
  return fmt::format("a grant of {} bytes with {} keys for the adapters {:#x}", grant.bytes, grant.keys, grant.adapters);
}

std::optional<Granted> granted_at(const GrantHeader& grant, std::size_t written, int adapter) {
  if ((grant.adapters >> adapter & 1) == 0 || grant.keys > kMaxKeys) return std::nullopt;
  const auto before = static_cast<std::size_t>(std::popcount(grant.adapters & ((1U << adapter) - 1)));
  const bool in_first = written < grant.first_bytes;
  const std::size_t beyond = in_first ? 0 : written - grant.first_bytes;
  const std::size_t number = in_first ? 0 : 1 + beyond / kSlabBytes;
  const std::size_t key = before * grant.keys + number;
  if (number >= grant.keys || key >= kMaxKeys) return std::nullopt;
  return Granted{key, in_first ? grant.first_bytes - written : kSlabBytes - beyond % kSlabBytes};
}

}  // namespace tsprun::detail::verbs
