// Sends profiles to rank 0 as JSON, merges them, and prints their longest rows.
#include "launcher/model/profile_table.h"

#include "core/trace/events_text.h"
#include "launcher/table.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

constexpr std::size_t kKernelsShown = 15;
constexpr std::size_t kWaitsShown = 8;
/// Most bytes of a rank's profile: rows of some 200 bytes, of which no run has more than some thousands.
constexpr std::int64_t kMostProfileBytes = 1 << 28;

/// Returns a profile as it is sent; what tells rows apart stands in `key`.
ordered_json sent(const Profile& profile) {
  ordered_json kernels = ordered_json::array();
  for (const Profile::Kernel& kernel : profile.kernels()) {
    kernels.push_back({{"key", {kernel.name, kernel.matrix, kernel.sizes}},
                       {"calls", kernel.calls},
                       {"ns", kernel.ns},
                       {"flops", kernel.flops},
                       {"bytes", kernel.bytes}});
  }
  ordered_json waits = ordered_json::array();
  for (const Profile::Wait& wait : profile.waits())
    waits.push_back({{"key", {name(wait.op), wait.rank}}, {"calls", wait.calls}, {"ns", wait.ns}});
  return {{"kernels", std::move(kernels)}, {"waits", std::move(waits)}, {"ns", profile.total_ns()}};
}

/// Rows of all ranks, by their keys.
using Rows = std::map<std::string, ordered_json>;

/// Adds rows to those of the same key.
void merge(Rows& all, const ordered_json& more) {
  for (const ordered_json& row : more) {
    const auto [same, is_new] = all.try_emplace(row.at("key").dump(), row);
    if (is_new) continue;
    for (const auto& [field, value] : row.items()) {
      ordered_json& sum = same->second[field];
      if (field == "flops") sum = sum.get<double>() + value.get<double>();
      else if (field != "key") sum = sum.get<std::uint64_t>() + value.get<std::uint64_t>();
    }
  }
}

/// Returns the rows, the longest first.
ordered_json by_time(const Rows& rows) {
  ordered_json sorted = ordered_json::array();
  for (const auto& [key, row] : rows) sorted.push_back(row);
  const auto ns = [](const ordered_json& row) { return row.at("ns").get<std::uint64_t>(); };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const ordered_json& one, const ordered_json& other) { return ns(one) > ns(other); });
  return sorted;
}

double seconds_of(const ordered_json& row) { return static_cast<double>(row.at("ns").get<std::uint64_t>()) * 1e-9; }

/// Returns the report's form of what was gathered.
ordered_json reported(const Rows& kernel_rows, const Rows& wait_rows, std::uint64_t ns, int ranks) {
  ordered_json kernels = ordered_json::array();
  for (const ordered_json& row : by_time(kernel_rows)) {
    const auto kernel = row.at("key").at(0).get<std::string>();
    ordered_json sizes = ordered_json::object();
    const std::span<const char* const> names = size_names(kernel);
    for (std::size_t i = 0; i < names.size(); ++i) sizes[names[i]] = row.at("key").at(2).at(i);
    if (names.empty()) {
      sizes["tensor"] = ordered_json::array();
      for (const ordered_json& size : row.at("key").at(2)) {
        if (size != 0) sizes["tensor"].push_back(size);
      }
    }
    kernels.push_back({{"kernel", kernel},
                       {"matrix", row.at("key").at(1)},
                       {"sizes", std::move(sizes)},
                       {"calls", row.at("calls")},
                       {"seconds", seconds_of(row)},
                       {"flops", row.at("flops")},
                       {"bytes", row.at("bytes")}});
  }
  ordered_json waits = ordered_json::array();
  for (const ordered_json& row : by_time(wait_rows)) {
    const bool known = row.at("key").at(1) >= 0;
    waits.push_back({{"op", known ? row.at("key").at(0) : ordered_json()},
                     {"for_rank", known ? row.at("key").at(1) : ordered_json()},
                     {"calls", row.at("calls")},
                     {"seconds", seconds_of(row)}});
  }
  return {{"ranks", ranks},
          {"seconds", static_cast<double>(ns) * 1e-9},
          {"kernels", std::move(kernels)},
          {"waits", std::move(waits)}};
}

/// Returns the sum of a field of rows.
double total(const ordered_json& rows, const char* field) {
  double sum = 0;
  for (const ordered_json& row : rows) sum += row.at(field).get<double>();
  return sum;
}

std::string percent(double part, double whole) { return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-"; }

/// Returns "256×704×64".
std::string sizes_text(const ordered_json& sizes) {
  std::vector<std::string> numbers;
  const auto add = [&](const ordered_json& size) { numbers.push_back(size.dump()); };
  for (const auto& [name, value] : sizes.items()) {
    if (value.is_array()) std::ranges::for_each(value, add);
    else add(value);
  }
  return fmt::format("{}", fmt::join(numbers, "×"));
}

/// Returns a row for each kernel and weight, with the sizes on which it took longest and how many `others` there are; the longest
/// first.
std::vector<ordered_json> grouped(const ordered_json& kernels) {
  std::vector<ordered_json> groups;
  for (const ordered_json& row : kernels) {
    const auto same = std::ranges::find_if(groups, [&](const ordered_json& group) {
      return group.at("kernel") == row.at("kernel") && group.at("matrix") == row.at("matrix");
    });
    if (same == groups.end()) {
      groups.push_back(row);
      groups.back()["others"] = 0;
      continue;
    }
    for (const char* field : {"calls", "seconds", "flops", "bytes"})
      (*same)[field] = (*same)[field].get<double>() + row.at(field).get<double>();
    (*same)["others"] = (*same)["others"].get<int>() + 1;
  }
  std::ranges::stable_sort(groups, std::greater<>(), [](const ordered_json& group) { return group.at("seconds").get<double>(); });
  return groups;
}

}  // namespace

ordered_json gather_profiles(Context& context, const Profile& mine) {
  Communicator& world = context.world();
  if (world.rank() > 0) {
    const std::string text = sent(mine).dump();
    auto bytes = static_cast<std::int64_t>(text.size());
    world.send(ConstBuffer(&bytes, 1, DType::i64), 0);
    world.send(ConstBuffer(text.data(), text.size(), DType::byte), 0);
    return nullptr;
  }
  Rows kernels;
  Rows waits;
  std::uint64_t ns = 0;
  const auto add = [&](const ordered_json& profile) {
    merge(kernels, profile.at("kernels"));
    merge(waits, profile.at("waits"));
    ns += profile.at("ns").get<std::uint64_t>();
  };
  add(sent(mine));
  for (int rank = 1; rank < world.size(); ++rank) {
    std::int64_t bytes = 0;
    world.recv(Buffer(&bytes, 1, DType::i64), rank);
    if (bytes < 0 || bytes > kMostProfileBytes)
      throw Error(Cause::corrupt,
                  fmt::format("rank {} sends a profile of {} bytes; 0 to {} are possible", rank, bytes, kMostProfileBytes));
    std::string text(static_cast<std::size_t>(bytes), '\0');
    world.recv(Buffer(text.data(), text.size(), DType::byte), rank);
    add(ordered_json::parse(text));
    context.tick();
  }
  return reported(kernels, waits, ns, world.size());
}

std::vector<std::string> profile_lines(const ordered_json& profile, std::size_t columns) {
  const auto ranks = profile.at("ranks").get<double>();
  const auto whole = profile.at("seconds").get<double>();
  const ordered_json& kernels = profile.at("kernels");
  const ordered_json& waits = profile.at("waits");
  if (kernels.empty() && waits.empty()) return {"profile: no kernel ran and nothing was waited for while it was recorded"};
  const double computing = total(kernels, "seconds");
  const double waiting = total(waits, "seconds");
  std::vector<std::string> lines =
      wrapped(fmt::format("profile, a rank's mean of {}: {:.3f} s, of which kernels {}, waits {}, everything else {}",
                          profile.at("ranks").dump(), whole / ranks, percent(computing, whole), percent(waiting, whole),
                          percent(whole - computing - waiting, whole)),
              columns, "  ");
  const auto row_texts = [&](const ordered_json& row) {
    return std::pair(fmt::format("{:.4g}", row.at("calls").get<double>() / ranks),
                     fmt::format("{:.3f}", row.at("seconds").get<double>() / ranks));
  };
  Table table(
      {Column("kernel", Align::left), Column("sizes (+ others)", Align::left), "calls", "seconds", "share", "GFLOP/s", "GB/s"});
  const std::vector<ordered_json> groups = grouped(kernels);
  for (std::size_t i = 0; i < std::min(groups.size(), kKernelsShown); ++i) {
    const ordered_json& row = groups[i];
    const auto matrix = row.at("matrix").get<std::string>();
    const auto [calls, seconds] = row_texts(row);
    const auto took = row.at("seconds").get<double>();
    const auto rate = [&](const char* field) {
      const auto amount = row.at(field).get<double>();
      return took > 0 && amount > 0 ? fmt::format("{:.1f}", amount / took * 1e-9) : std::string("-");
    };
    const int others = row.at("others").get<int>();
    table.row({row.at("kernel").get<std::string>() + (matrix.empty() ? "" : " " + matrix),
               sizes_text(row.at("sizes")) + (others > 0 ? fmt::format(" +{}", others) : ""), calls, seconds,
               percent(took, whole), rate("flops"), rate("bytes")});
  }
  std::ranges::move(table.lines(columns), std::back_inserter(lines));
  if (groups.size() > kKernelsShown)
    lines.push_back(fmt::format("… and {} kernels more; --json FILE has all, by their sizes", groups.size() - kKernelsShown));
  if (waits.empty()) return lines;
  Table of_waits({Column("wait for", Align::left), Column("of rank", Align::left), "calls", "seconds", "share"});
  for (std::size_t i = 0; i < std::min(waits.size(), kWaitsShown); ++i) {
    const ordered_json& row = waits[i];
    const auto [calls, seconds] = row_texts(row);
    of_waits.row({row.at("op").is_null() ? "what had come" : row.at("op").get<std::string>(), row.at("for_rank"), calls, seconds,
                  percent(row.at("seconds").get<double>(), whole)});
  }
  std::ranges::move(of_waits.lines(columns), std::back_inserter(lines));
  if (waits.size() > kWaitsShown) lines.push_back(fmt::format("… and {} waits more", waits.size() - kWaitsShown));
  return lines;
}

}  // namespace tsprun::detail::launcher
