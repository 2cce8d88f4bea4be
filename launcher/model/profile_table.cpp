// Sends profiles to rank 0 as JSON, merges them, and prints their longest rows.
#include "launcher/model/profile_table.h"

#include "core/trace/events_text.h"
#include "launcher/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

constexpr std::size_t kKernelsShown = 15;
constexpr std::size_t kWaitsShown = 8;

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

/// Adds rows to those of the same key.
void merge(ordered_json& all, const ordered_json& more) {
  for (const ordered_json& row : more) {
    const auto same = std::ranges::find_if(all, [&](const ordered_json& each) { return each.at("key") == row.at("key"); });
    if (same == all.end()) {
      all.push_back(row);
      continue;
    }
    for (const auto& [field, value] : row.items()) {
      if (field == "flops") (*same)[field] = (*same)[field].get<double>() + value.get<double>();
      else if (field != "key") (*same)[field] = (*same)[field].get<std::uint64_t>() + value.get<std::uint64_t>();
    }
  }
}

void sort_by_time(ordered_json& rows) {
  const auto ns = [](const ordered_json& row) { return row.at("ns").get<std::uint64_t>(); };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const ordered_json& one, const ordered_json& other) { return ns(one) > ns(other); });
}

double seconds_of(const ordered_json& row) { return static_cast<double>(row.at("ns").get<std::uint64_t>()) * 1e-9; }

/// Returns the report's form of what was gathered.
ordered_json reported(ordered_json gathered, int ranks) {
  ordered_json kernels = ordered_json::array();
  sort_by_time(gathered.at("kernels"));
  for (const ordered_json& row : gathered.at("kernels")) {
    const auto kernel = row.at("key").at(0).get<std::string>();
    ordered_json sizes = ordered_json::object();
    const std::span<const char* const> names = size_names(kernel);
    for (std::size_t i = 0; i < names.size(); ++i) sizes[names[i]] = row.at("key").at(2).at(i);
    if (names.empty()) {
      sizes["result"] = ordered_json::array();
      for (const ordered_json& size : row.at("key").at(2)) {
        if (size != 0) sizes["result"].push_back(size);
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
  sort_by_time(gathered.at("waits"));
  for (const ordered_json& row : gathered.at("waits")) {
    const bool known = row.at("key").at(1) >= 0;
    waits.push_back({{"op", known ? row.at("key").at(0) : ordered_json()},
                     {"for_rank", known ? row.at("key").at(1) : ordered_json()},
                     {"calls", row.at("calls")},
                     {"seconds", seconds_of(row)}});
  }
  return {{"ranks", ranks}, {"seconds", seconds_of(gathered)}, {"kernels", std::move(kernels)}, {"waits", std::move(waits)}};
}

/// Returns the sum of a field of rows.
double total(const ordered_json& rows, const char* field) {
  double sum = 0;
  for (const ordered_json& row : rows) sum += row.at(field).get<double>();
  return sum;
}

std::string percent(double part, double whole) { return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-"; }

/// Returns "256 × 704 × 64".
std::string sizes_text(const ordered_json& sizes) {
  std::vector<std::string> numbers;
  const auto add = [&](const ordered_json& size) { numbers.push_back(size.dump()); };
  for (const auto& [name, value] : sizes.items()) {
    if (value.is_array()) std::ranges::for_each(value, add);
    else add(value);
  }
  return fmt::format("{}", fmt::join(numbers, " × "));
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
  ordered_json all = sent(mine);
  for (int rank = 1; rank < world.size(); ++rank) {
    std::int64_t bytes = 0;
    world.recv(Buffer(&bytes, 1, DType::i64), rank);
    std::string text(static_cast<std::size_t>(bytes), '\0');
    world.recv(Buffer(text.data(), text.size(), DType::byte), rank);
    const ordered_json of_rank = ordered_json::parse(text);
    merge(all.at("kernels"), of_rank.at("kernels"));
    merge(all.at("waits"), of_rank.at("waits"));
    all["ns"] = all.at("ns").get<std::uint64_t>() + of_rank.at("ns").get<std::uint64_t>();
    context.tick();
  }
  return reported(std::move(all), world.size());
}

std::vector<std::string> profile_lines(const ordered_json& profile, std::size_t columns) {
  const auto ranks = profile.at("ranks").get<double>();
  const auto whole = profile.at("seconds").get<double>();
  const ordered_json& kernels = profile.at("kernels");
  const ordered_json& waits = profile.at("waits");
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
  Table table({Column("kernel", Align::left), Column("sizes", Align::left), "calls", "seconds", "share", "GFLOP/s", "GB/s"});
  for (std::size_t i = 0; i < std::min(kernels.size(), kKernelsShown); ++i) {
    const ordered_json& row = kernels[i];
    const auto matrix = row.at("matrix").get<std::string>();
    const auto [calls, seconds] = row_texts(row);
    const auto took = row.at("seconds").get<double>();
    const auto rate = [&](const char* field) {
      const auto amount = row.at(field).get<double>();
      return took > 0 && amount > 0 ? fmt::format("{:.1f}", amount / took * 1e-9) : std::string("-");
    };
    table.row({row.at("kernel").get<std::string>() + (matrix.empty() ? "" : " " + matrix), sizes_text(row.at("sizes")), calls,
               seconds, percent(took, whole), rate("flops"), rate("bytes")});
  }
  std::ranges::move(table.lines(columns), std::back_inserter(lines));
  if (kernels.size() > kKernelsShown)
    lines.push_back(fmt::format("… and {} kernels of other sizes; --json FILE has them all", kernels.size() - kKernelsShown));
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
