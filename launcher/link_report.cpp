#include "launcher/link_report.h"

#include "core/streams/link_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

namespace tsp::launcher {

namespace {

/// A link is worth a line if its fastest message was so many times slower than the median link's, if it carried so many, and if
/// some were on their way for at least this part of the job.
constexpr std::uint64_t kTimesSlower = 8;
constexpr std::uint32_t kLeastMessages = 8;
constexpr std::uint64_t kPartOfJob = 4;
constexpr std::size_t kMostLines = 4;

struct Link {
  int to;
  LinkRecord record;
};

std::vector<Link> links_of(const FlightBoard& board) {
  std::vector<Link> links;
  for (int to = 0; to < board.ranks(); ++to) {
    for (const LinkRecord& record : board.link_records(to)) links.push_back({to, record});
  }
  return links;
}

double gbps(std::uint64_t bytes_per_s) { return static_cast<double>(bytes_per_s) * 1e-9; }

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

std::vector<std::string> link_warnings(const FlightBoard& board, std::uint64_t elapsed_ns) {
  std::vector<Link> links = links_of(board);
  if (links.empty()) return {};
  std::ranges::sort(links, {}, [](const Link& link) { return link.record.fastest; });
  const std::uint64_t median = links[links.size() / 2].record.fastest;
  std::set<int> on_time;  // senders of a link that isn't slow
  for (const Link& link : links)
    if (link.record.fastest > median / kTimesSlower) on_time.insert(link.record.from);
  std::erase_if(links, [&](const Link& link) {
    return link.record.fastest > median / kTimesSlower || link.record.messages < kLeastMessages ||
           link.record.pending_ns < elapsed_ns / kPartOfJob;
  });
  // What a rank has to wait for it passes on late, and others wait for it: those waits are shorter.
  std::ranges::stable_sort(links, std::greater(), [](const Link& link) { return link.record.pending_ns; });
  std::vector<std::string> lines;
  std::set<int> late;
  std::set<int> told;  // senders all of whose links are slow: one line each
  for (const auto& [to, record] : links) {
    if (late.contains(record.from) || lines.size() == kMostLines) continue;
    late.insert(to);
    // From the receiver's end a link that is slow looks like a sender that is late; other links of that sender tell them apart.
    const bool all_slow = !on_time.contains(record.from);
    if (all_slow && !told.insert(record.from).second) continue;
    lines.push_back(
        fmt::format("messages from rank {} to rank {} come slowly: {} is slow; of {} of {} KiB and more the fastest came at "
                    "{:.2g} GB/s, where "
                    "the links' median is {:.2g}; together they were on their way for {:.1f} s of a job of {:.1f} s",
                    record.from, to,
                    all_slow ? fmt::format("rank {} is late, or what joins it to others", record.from) : "the link between them",
                    record.messages, kTimedBytes >> 10, gbps(record.fastest), gbps(median),
                    static_cast<double>(record.pending_ns) * 1e-9, static_cast<double>(elapsed_ns) * 1e-9));
  }
  return lines;
}

}  // namespace tsp::launcher
