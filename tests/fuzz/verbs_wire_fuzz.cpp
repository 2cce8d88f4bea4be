// Any immediates, entries and grants from a verbs peer, without a device: whatever is believed of them stays within the region
// that the peer may write, within the message that was posted, and within the keys of the grant.
#include "transport/verbs/judgement.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

using namespace tsprun;
using namespace tsprun::detail;

constexpr Envelope kEnvelope{.signature = 7, .sequence = 1, .tag = 3};

template <class T>
bool take(const std::uint8_t*& data, std::size_t& size, T& value) {
  if (size < sizeof value) return false;
  std::memcpy(&value, data, sizeof value);
  data += sizeof value;
  size -= sizeof value;
  return true;
}

void require(bool holds) {
  if (!holds) std::abort();
}

void try_immediate(std::uint32_t word, Ticket finished) {
  const verbs::Immediate immediate = verbs::Immediate::decode(word);
  require(immediate.encode() == word);
  if (verbs::trouble_by_other(immediate).empty())
    require(immediate.news == verbs::News::data || (immediate.news == verbs::News::credit && immediate.low == 0) ||
            (immediate.news == verbs::News::join && immediate.stream == 0));
  if (!verbs::trouble_of(immediate, true).empty()) return;
  if (immediate.news == verbs::News::join) return require(immediate.stream < verbs::kMostWays);
  require(immediate.stream < kQueues && immediate.news <= verbs::News::opened);
  const std::optional<Ticket> ticket = verbs::awaited(immediate.low, finished);
  const Ticket named = ticket.value_or(verbs::widen(immediate.low, finished));
  require(verbs::entry_offset(named) + verbs::kEntryBytes <= verbs::kRingBytes);
  require(verbs::grant_offset(named) + verbs::kGrantBytes <= verbs::kRingBytes);
  if (ticket)
    require(*ticket > finished && *ticket <= finished + verbs::kSlots &&
            *ticket % (Ticket{1} << verbs::Immediate::kLowBits) == immediate.low);
}

/// Takes parts of a payload as progress.cpp does, until all have arrived or one is refused.
void try_part(std::uint32_t word, Ticket finished, std::uint8_t how, std::uint64_t others) {
  verbs::PartNews news = verbs::PartNews::decode(word & verbs::Immediate::kLowMask);
  require(news.encode() == (word & verbs::Immediate::kLowMask));
  const std::optional<Ticket> ticket = verbs::awaited(news.ticket, finished, verbs::PartNews::kTicketMask);
  if (ticket)
    require(*ticket > finished && *ticket <= finished + verbs::kSlots && (*ticket & verbs::PartNews::kTicketMask) == news.ticket);
  verbs::Arrived parts;
  int taken = 0;
  for (; !parts.is_whole() && verbs::trouble_of(news, parts).empty(); ++taken) {
    require(taken < verbs::kMostWays);
    parts.all = static_cast<std::uint8_t>(news.parts);
    parts.seen = static_cast<std::uint8_t>(parts.seen | 1U << news.part);
    news.part = static_cast<int>(others >> (3 * taken) & 7);
    if ((how & 16) != 0) news.parts = 1 + static_cast<int>(others >> (3 * taken + 20) & 7);
  }
  require(parts.is_whole() == (parts.all != 0 && taken == parts.all));
}

/// Takes news of another queue pair as joining.cpp does, whatever came before.
void try_join(std::uint32_t word, std::uint8_t how, std::uint32_t number) {
  const verbs::JoinThere before{
      .number = number & 0xffffff, .linked = (how & 1) != 0, .proved = (how & 2) != 0, .left = (how & 4) != 0};
  const verbs::JoinNews news = verbs::JoinNews::decode(word & verbs::Immediate::kLowMask);
  require(news.encode() == (word & verbs::Immediate::kLowMask));
  if (!verbs::trouble_of(news, before, (how & 8) != 0).empty()) return;
  require(!before.left && (news.number != 0) == (news.step == verbs::JoinNews::Step::number));
  if (news.step == verbs::JoinNews::Step::number) require(before.number == 0 && news.number >> 24 == 0);
  if (news.step == verbs::JoinNews::Step::linked) require(before.number != 0 && (how & 8) != 0 && !before.linked);
  if (news.step == verbs::JoinNews::Step::proved) require(before.linked && !before.proved);
  if (news.step == verbs::JoinNews::Step::left) require(!before.proved);
}

/// Takes what a peer has lost as losing.cpp does, whatever it had lost before.
void try_lost(std::uint32_t word, std::uint8_t how, std::uint32_t before) {
  const verbs::LostNews news = verbs::LostNews::decode(word & verbs::Immediate::kLowMask);
  const std::size_t ways = 1 + (how & 7);
  before &= (1U << ways) - 1;
  if (!verbs::trouble_of(news, ways, before).empty()) return;
  require((news.lost | news.carries) >> ways == 0 && (news.lost & news.carries) == 0 && news.carries != 0);
  require((news.lost & before) == before && news.lost != before);
}

/// Takes news of a whole queue pair as growing.cpp does, whatever came before.
void try_growth(std::uint32_t word, std::uint8_t how, std::uint32_t number) {
  const verbs::WholeThere before{.number = number & 0xffffff, .ready = (how & 1) != 0};
  const verbs::Immediate news = verbs::Immediate::decode(word);
  if (!verbs::trouble_of(news, before, (how & 2) != 0).empty()) return;
  require(news.stream == 0);
  if (news.news == verbs::News::whole) require(before.number == 0 && news.low != 0 && news.low >> 24 == 0);
  else if (news.news == verbs::News::ready) require(before.number != 0 && !before.ready && (how & 2) != 0);
  else require(news.news == verbs::News::credit && news.low == 0);
}

void try_entry(verbs::EntryHeader header, std::uint8_t how, std::uint16_t bytes) {
  const verbs::Awaited message{kEnvelope, bytes};
  if ((how & 2) != 0) header.ticket = 1;
  if ((how & 4) != 0) {
    header.signature = kEnvelope.signature;
    header.sequence = kEnvelope.sequence;
    header.tag = kEnvelope.tag;
  }
  if ((how & 8) != 0) header.bytes = bytes;
  if ((how & 16) != 0) header.kind = static_cast<verbs::EntryKind>(1 + static_cast<std::uint32_t>(header.kind) % 3);
  if (verbs::judge_entry(header, 1, message) != Outcome::done) return;
  require(header.ticket == 1 && header.bytes == message.bytes && header.signature == kEnvelope.signature);
  require(header.kind == verbs::EntryKind::message && header.bytes <= verbs::kEagerBytes);
}

/// Walks through a grant as write_large() does: from key to key, until all is written or the grant fails.
void try_grant(verbs::GrantHeader grant, std::uint8_t how, std::uint64_t changed) {
  if ((how & 1) != 0) grant.keys %= verbs::kMaxKeys + 1;
  if ((how & 2) != 0) grant.bytes %= std::uint64_t{1} << 33;
  if ((how & 4) != 0) grant.first_bytes %= std::uint64_t{1} << 27;
  if ((how & 16) != 0) grant.adapters = (grant.adapters & 0xff) | 1;
  if (!verbs::trouble_of(grant).empty()) return;
  const std::uint64_t bytes = grant.bytes;
  const std::uint32_t keys = grant.keys;
  const int adapter = static_cast<int>(std::bit_width(grant.adapters)) - 1;  // the last one: its keys end the grant
  const auto before = static_cast<std::size_t>(std::popcount(grant.adapters) - 1) * keys;
  std::size_t steps = 0;
  for (std::uint64_t written = 0; written < bytes; ++steps) {
    if (steps == 2 && (how & 8) != 0) {  // by the peer, while it is used
      grant.first_bytes = changed;
      grant.keys = static_cast<std::uint32_t>(changed >> 7);
      grant.adapters = static_cast<std::uint32_t>(changed >> 13);
    }
    const std::optional<verbs::Granted> granted = verbs::granted_at(grant, written, adapter);
    if ((how & 8) == 0) require(granted && granted->key < before + keys && granted->key == before + steps);
    if (!granted) return;
    require(granted->key < verbs::kMaxKeys && granted->bytes > 0);
    if (granted->bytes >= bytes - written) return;
    written += granted->bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint8_t how = 0;
  while (take(data, size, how)) {
    std::uint32_t word = 0;
    Ticket finished = 0;
    verbs::EntryHeader entry;
    std::uint16_t bytes = 0;
    verbs::GrantHeader grant;
    std::uint64_t changed = 0;
    switch (how >> 6) {
      case 0:
        if (take(data, size, word) && take(data, size, finished)) {
          try_immediate(word, finished >> 2 >> (how & 31));  // our own count: it never ends
          try_growth(word, how, static_cast<std::uint32_t>(finished));
          try_join(word, how, static_cast<std::uint32_t>(finished));
          try_lost(word, how, static_cast<std::uint32_t>(finished));
          try_part(word, finished >> 2 >> (how & 31), how, finished);
        }
        break;
      case 1:
        if (take(data, size, entry) && take(data, size, bytes)) try_entry(entry, how, bytes);
        break;
      default:
        if (take(data, size, grant) && take(data, size, changed)) try_grant(grant, how, changed);
    }
  }
  return 0;
}
