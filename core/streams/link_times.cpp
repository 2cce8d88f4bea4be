// Keeps the speeds of all links in private memory, and those of the slowest on the flight board.
#include "core/streams/link_times.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Shorter measured times count as this long: they depend on the moments of polling rather than on the link.
constexpr std::uint64_t kLeastPendingNs = 50'000;
/// Upper limit of measured speeds in bytes per second, beyond that of any present link.
constexpr std::uint64_t kMostBytesPerSecond = 100'000'000'000;
/// Number of messages that may be faster than the speed by which a link is judged: some, and one in so many of all.
constexpr std::uint32_t kSomeFaster = 3;
constexpr std::uint32_t kOneFasterIn = 64;

}  // namespace

void LinkTimes::arrived(int from, std::size_t bytes, std::uint64_t pending_ns) {
  Sender& link = links_[static_cast<std::size_t>(from)];
  LinkRecord& record = link.record;
  record.from = from;
  ++record.messages;
  record.bytes += bytes;
  record.pending_ns += pending_ns;
  // In floating point, as the product of 18.4 GB and 10⁹ overflows 64 bits.
  const double speed = static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max(pending_ns, kLeastPendingNs));
  judge(link, static_cast<std::uint64_t>(std::min(speed, static_cast<double>(kMostBytesPerSecond))));
  if (link.line == nullptr) link.line = line_for(link);
  if (link.line == nullptr) return;
  link.line->from.store(from + 1, relaxed);
  link.line->messages.store(record.messages, relaxed);
  link.line->bytes.store(record.bytes, relaxed);
  link.line->pending_ns.store(record.pending_ns, relaxed);
  link.line->fastest.store(record.fastest, relaxed);
}

/// Sets record.fastest to the slowest of the first few speeds, and later to the slowest of those that exceed it, once they are
/// more than may. record.messages counts this one already.
void LinkTimes::judge(Sender& link, std::uint64_t speed) {
  LinkRecord& record = link.record;
  if (record.messages <= kSomeFaster + 1) {
    record.fastest = record.messages == 1 ? speed : std::min(record.fastest, speed);
    return;
  }
  if (speed <= record.fastest) return;
  link.slowest_of_them = link.faster == 0 ? speed : std::min(link.slowest_of_them, speed);
  if (++link.faster <= kSomeFaster + record.messages / kOneFasterIn) return;
  record.fastest = link.slowest_of_them;
  link.faster = 0;
}

/// Returns a free line, or that of the fastest link if this one is slower; null if there is neither.
LinkLine* LinkTimes::line_for(const Sender& link) {
  const auto rank_of = [](const LinkLine& line) { return line.from.load(relaxed); };
  LinkLine* fastest = nullptr;
  for (LinkLine& line : page_->links) {
    if (rank_of(line) == 0) return &line;
    if (fastest == nullptr || line.fastest.load(relaxed) > fastest->fastest.load(relaxed)) fastest = &line;
  }
  if (fastest->fastest.load(relaxed) <= link.record.fastest) return nullptr;
  links_[static_cast<std::size_t>(rank_of(*fastest) - 1)].line = nullptr;
  return fastest;
}

}  // namespace tsprun::detail
