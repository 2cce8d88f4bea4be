// Compares links by rates and pending times, leaving out delays that busy cores explain.
#include "launcher/link_report.h"

#include "core/streams/link_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

namespace tsprun::detail::launcher {

namespace {

/// Least factor by which a slow link's fastest messages are slower than the median link's.
constexpr std::uint64_t kTimesSlower = 8;
/// Least messages and bytes of a link that may be called slow.
constexpr std::uint32_t kLeastMessages = 16;
constexpr std::uint64_t kLeastBytes = std::uint64_t{1} << 20;
/// Least time that a slow link's messages were on their way, and least part of the job (one in kPartOfJob), when all time that
/// ranks waited for a core is subtracted.
constexpr std::uint64_t kLeastPendingNs = 500'000'000;
constexpr std::uint64_t kPartOfJob = 4;
constexpr std::size_t kMostLines = 4;

struct LinkTo {
  int to;
  LinkRecord record;
};

std::vector<LinkTo> links_of(const FlightBoard& board) {
  std::vector<LinkTo> links;
  for (int to = 0; to < board.ranks(); ++to) {
    for (const LinkRecord& record : board.link_records(to)) links.push_back({to, record});
  }
  return links;
}

double gbps(std::uint64_t bytes_per_s) { return static_cast<double>(bytes_per_s) * 1e-9; }

/// Returns a rate as text with two digits or more: "21 MB/s", "1.0 GB/s".
std::string readable_rate(std::uint64_t bytes_per_s) {
  static constexpr const char* kUnits[] = {"B/s", "kB/s", "MB/s", "GB/s"};
  auto rate = static_cast<double>(bytes_per_s);
  std::size_t unit = 0;
  while (rate >= 999.5 && unit + 1 < std::size(kUnits)) {
    rate /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", rate, rate < 9.95 && unit > 0 ? 1 : 0, kUnits[unit]);
}

/// Returns how long waits on a link may have lasted because ranks had no core: the times of sender and receiver, and the longest
/// among the ranks that the sender may itself have waited for.
std::uint64_t excuse(const LinkTo& link, std::span<const std::uint64_t> without_core_ns) {
  const auto of = [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    return at < without_core_ns.size() ? without_core_ns[at] : 0;
  };
  std::uint64_t others = 0;
  for (std::size_t rank = 0; rank < without_core_ns.size(); ++rank) {
    if (static_cast<int>(rank) != link.record.from && static_cast<int>(rank) != link.to)
      others = std::max(others, without_core_ns[rank]);
  }
  return of(link.record.from) + of(link.to) + others;
}

}  // namespace

nlohmann::ordered_json links_json(const FlightBoard& board) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [to, record] : links_of(board)) {
    list.push_back({{"from", record.from},
                    {"to", to},
                    {"messages", record.messages},
                    {"bytes", record.bytes},
                    {"pending_seconds", static_cast<double>(record.pending_ns) * 1e-9},
                    {"fastest_gbps", gbps(record.fastest)}});
  }
  return list;
}

std::vector<std::string> link_warnings(const FlightBoard& board, std::uint64_t elapsed_ns,
                                       std::span<const std::uint64_t> without_core_ns) {
  std::vector<LinkTo> links = links_of(board);
  std::erase_if(links,
                [](const LinkTo& link) { return link.record.messages < kLeastMessages || link.record.bytes < kLeastBytes; });
  if (links.size() < 2) return {};  // there is nothing to compare a link with
  std::ranges::sort(links, {}, [](const LinkTo& link) { return link.record.fastest; });
  const std::uint64_t median = links[links.size() / 2].record.fastest;
  std::set<int> on_time;  // senders of a link that isn't slow
  for (const LinkTo& link : links)
    if (link.record.fastest > median / kTimesSlower) on_time.insert(link.record.from);
  std::erase_if(links, [&](const LinkTo& link) {
    const std::uint64_t excused = std::min(link.record.pending_ns, excuse(link, without_core_ns));
    const std::uint64_t pending = link.record.pending_ns - excused;
    return link.record.fastest > median / kTimesSlower || pending < kLeastPendingNs || pending < elapsed_ns / kPartOfJob;
  });
  // A rank passes on late what it had to wait for, and others wait for it: those waits are shorter.
  std::ranges::stable_sort(links, std::greater(), [](const LinkTo& link) { return link.record.pending_ns; });
  std::vector<std::string> lines;
  std::set<int> late;
  std::set<int> told;  // senders all of whose links are slow: one line each
  for (const auto& [to, record] : links) {
    if (late.contains(record.from) || lines.size() == kMostLines) continue;
    late.insert(to);
    // At the receiver, a slow link looks like a late sender; other links of that sender tell the two apart.
    const bool all_slow = !on_time.contains(record.from);
    if (all_slow && !told.insert(record.from).second) continue;
    lines.push_back(fmt::format(
        "messages from rank {} to rank {} come slowly: {} is slow; of {} messages with {:.1f} MB in all hardly any came faster "
        "than {}, where the links' median is {}; together they were on their way for {:.1f} s of a job of {:.1f} s",
        record.from, to,
        all_slow ? fmt::format("rank {} is late, or what joins it to others", record.from) : "the link between them",
        record.messages, static_cast<double>(record.bytes) * 1e-6, readable_rate(record.fastest), readable_rate(median),
        static_cast<double>(record.pending_ns) * 1e-9, static_cast<double>(elapsed_ns) * 1e-9));
  }
  return lines;
}

}  // namespace tsprun::detail::launcher
