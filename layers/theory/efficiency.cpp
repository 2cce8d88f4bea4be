// Looks fractions up, and reads them from a machine file.
#include "layers/theory/efficiency.h"

#include "layers/io/json_object.h"
#include "layers/theory/machine_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tsprun::detail::theory {

namespace {

using nlohmann::json;

constexpr std::size_t kMostEntries = 1000;
/// FLOPs of a backward pass of attention, for each of the forward pass.
constexpr double kBackwardOfForward = 2.5;
/// Relative error of a fraction that was rounded to the six digits of a message.
constexpr double kRounding = 1e-5;
/// From here on a file may have grids, and more work may not take less time.
constexpr std::size_t kGridVersion = 6;

/// A place between two entries, or beyond them.
struct GridPlace {
  std::size_t low;
  std::size_t high;
  double part;
};

GridPlace place_in(const std::vector<double>& sizes, double size) {
  const auto above = static_cast<std::size_t>(std::ranges::upper_bound(sizes, size) - sizes.begin());
  if (above == 0 || above == sizes.size()) return {std::min(above, sizes.size() - 1), std::min(above, sizes.size() - 1), 0};
  return {above - 1, above, std::log(size / sizes[above - 1]) / std::log(sizes[above] / sizes[above - 1])};
}

/// Interpolates logarithms, so that more work takes longer between two entries if it does from the one to the other.
double between(double low, double high, double part) { return low * std::pow(high / low, part); }

/// A size and the fraction that is reached there.
struct Reached {
  double size;
  double fraction;
};

/// Refuses entry i of a field if more work takes less time there than at a smaller size. `what` says which size it is.
void refuse_less_time(const JsonObject& object, std::string_view field, std::size_t i, std::string_view what,
                      const Reached& before, const Reached& here) {
  const double most = before.fraction * here.size / before.size;
  if (here.fraction <= most * (1 + kRounding)) return;
  object.refuse_entry(field, i,
                      fmt::format("at most {:.6g} at {} of {}, since {} is reached at {} (else more work would take less time)",
                                  most, what, here.size, before.fraction, before.size));
}

/// Returns whether entry i of an array is a number within these bounds.
bool is_between(const json& array, std::size_t i, double low, double high) {
  if (!array.is_array() || i >= array.size() || !array[i].is_number()) return false;
  const auto value = array[i].get<double>();
  return value >= low && value <= high;
}

/// Reads pairs of FLOPs and fractions.
Efficiency read_by_flops(const JsonObject& object, std::string_view field, const json& value, std::size_t version) {
  if (value.empty() || value.size() > kMostEntries) {
    object.refuse(
        field, fmt::format("a number from {0} to 1, or 1 to {1} pairs [FLOPs, number from {0} to 1] of increasing FLOPs from 1",
                           kLeastEfficiency, kMostEntries));
  }
  std::vector<Efficiency::Entry> entries;
  for (const json& entry : value) {
    if (!is_between(entry, 0, 1, kLargest) || !is_between(entry, 1, kLeastEfficiency, 1) || entry.size() != 2) {
      object.refuse_entry(field, entries.size(),
                          fmt::format("a pair [FLOPs from 1 to {}, number from {} to 1]", kLargest, kLeastEfficiency));
    }
    if (const auto flops = entry[0].get<double>(); !entries.empty() && flops <= entries.back().flops) {
      object.refuse_entry(field, entries.size(), fmt::format("more FLOPs than in the entry before, {}", entries.back().flops));
    }
    entries.push_back({entry[0].get<double>(), entry[1].get<double>()});
    if (const std::size_t i = entries.size() - 1; version >= kGridVersion && i > 0) {
      refuse_less_time(object, field, i, "FLOPs", {entries[i - 1].flops, entries[i - 1].fraction},
                       {entries[i].flops, entries[i].fraction});
    }
  }
  return Efficiency(entries);
}

/// Reads the sizes of a grid's rows or columns.
std::vector<double> read_grid_sizes(JsonObject& object, std::string_view field) {
  const json* value = object.find(field);
  if (value == nullptr || !value->is_array() || value->empty() || value->size() > kMostEntries)
    object.refuse(field, fmt::format("1 to {} increasing numbers from 1", kMostEntries));
  std::vector<double> sizes;
  for (std::size_t i = 0; i < value->size(); ++i) {
    if (!is_between(*value, i, 1, kLargest) || (i > 0 && (*value)[i].get<double>() <= sizes.back()))
      object.refuse_entry(field, i, "a number from 1, larger than the entry before");
    sizes.push_back((*value)[i].get<double>());
  }
  return sizes;
}

/// Reads a row of fractions for each of a grid's rows.
Efficiency read_grid(JsonObject object, std::string_view row, std::string_view column) {
  Efficiency::Grid grid{.rows = read_grid_sizes(object, row), .columns = read_grid_sizes(object, column), .fractions = {}};
  constexpr std::string_view kField = "fraction";
  const json* value = object.find(kField);
  if (value == nullptr || !value->is_array() || value->size() != grid.rows.size())
    object.refuse(kField, fmt::format("{} lists of fractions, one for each of \"{}\"", grid.rows.size(), row));
  for (const json& list : *value) {
    const std::size_t i = grid.fractions.size();
    const auto is_fraction = [&](std::size_t at) { return is_between(list, at, kLeastEfficiency, 1); };
    std::vector<double> fractions;
    while (fractions.size() < grid.columns.size() && is_fraction(fractions.size()))
      fractions.push_back(list[fractions.size()].get<double>());
    if (fractions.size() != grid.columns.size() || list.size() != grid.columns.size()) {
      object.refuse_entry(
          kField, i,
          fmt::format("{} numbers from {} to 1, one for each of \"{}\"", grid.columns.size(), kLeastEfficiency, column));
    }
    for (std::size_t at = 0; at < fractions.size(); ++at) {
      const auto check = [&](std::string_view size, const Reached& before, const Reached& here) {
        refuse_less_time(object, kField, i, fmt::format("\"{}\"", size), before, here);
      };
      if (at > 0) check(column, {grid.columns[at - 1], fractions[at - 1]}, {grid.columns[at], fractions[at]});
      if (i > 0) check(row, {grid.rows[i - 1], grid.fractions[i - 1][at]}, {grid.rows[i], fractions[at]});
    }
    grid.fractions.push_back(std::move(fractions));
  }
  object.done();
  return Efficiency(std::move(grid));
}

}  // namespace

Efficiency::Efficiency(const std::vector<Entry>& entries) : grid_{{1}, {}, {{}}} {
  for (const Entry& entry : entries) {
    grid_.columns.push_back(entry.flops);
    grid_.fractions.front().push_back(entry.fraction);
  }
}

double Efficiency::at(const Size& size) const {
  const GridPlace row = place_in(grid_.rows, size.row);
  const GridPlace column = place_in(grid_.columns, by_flops_ ? size.flops : size.column);
  const auto along = [&](std::size_t i) {
    const std::vector<double>& fractions = grid_.fractions[i];
    return between(fractions[column.low], fractions[column.high], column.part);
  };
  return row.low == row.high ? along(row.low) : between(along(row.low), along(row.high), row.part);
}

Efficiency Efficiency::read(JsonObject& object, std::string_view field, std::size_t version, std::string_view row,
                            std::string_view column) {
  const json* value = object.find(field);
  if (value != nullptr && value->is_array() && version >= 2) return read_by_flops(object, field, *value, version);
  if (value != nullptr && value->is_object()) {
    if (version >= kGridVersion) return read_grid(object.inside(field), row, column);
    object.refuse(field, fmt::format("a number from {} to 1 (an object needs \"version\": {})", kLeastEfficiency, kGridVersion));
  }
  return object.number(field, kLeastEfficiency, 1);
}

double AttentionEfficiency::of_largest() const {
  return (1 + kBackwardOfForward) / (1 / forward.of_largest() + kBackwardOfForward / backward.of_largest());
}

AttentionEfficiency AttentionEfficiency::read(JsonObject& object, std::string_view field, std::size_t version) {
  const json* value = object.find(field);
  if (version < kGridVersion || value == nullptr || !value->is_object())
    return Efficiency::read(object, field, version, "head", "seen");
  JsonObject passes = object.inside(field);
  AttentionEfficiency of;
  of.forward = Efficiency::read(passes, "forward", version, "head", "seen");
  of.backward = Efficiency::read(passes, "backward", version, "head", "seen");
  passes.done();
  return of;
}

}  // namespace tsprun::detail::theory
