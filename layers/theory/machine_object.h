// An object of a machine file (machine.h), or of another file for the theory: every field that is read is checked for presence,
// type and range.
#pragma once

#include "layers/io/json_text.h"
#include "layers/theory/machine.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::theory {

inline constexpr int kMostOfANode = 1024;
inline constexpr double kLargest = 1e30;
/// Largest memory of a GPU: an exabyte.
inline constexpr double kMostMemory = 1e18;
inline constexpr double kLeastEfficiency = 0.001;
inline constexpr double kLongestLatency = 1;
inline constexpr std::size_t kMostEntries = 1000;

/// One object of the file. Fields are read by name; done() refuses fields that weren't read.
class Object {
 public:
  Object(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      throw Error(Cause::refused, fmt::format("{}: expected a JSON object, found {}", where_, shown_value(object)));
    }
  }

  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const {
    refuse_field(object_, where_, "", field, expected);
  }

  const nlohmann::json* find(std::string_view field) {
    if (std::find(read_.begin(), read_.end(), field) == read_.end()) read_.emplace_back(field);
    const auto at = object_.find(field);
    return at == object_.end() ? nullptr : &*at;
  }
  std::string text(std::string_view field) {
    const nlohmann::json* value = find(field);
    if (value == nullptr || !value->is_string() || value->get_ref<const std::string&>().empty()) refuse(field, "a text");
    return shown(value->get_ref<const std::string&>());
  }
  /// Returns a number from `low` to `high`; refuses any other value.
  double number(std::string_view field, double low, double high) {
    const nlohmann::json* value = find(field);
    const double number = value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= low && number <= high)) refuse(field, fmt::format("a number from {} to {}", low, high));
    return number;
  }
  /// Returns a number that may be missing.
  double number_or(std::string_view field, double low, double high, double usual) {
    return find(field) == nullptr ? usual : number(field, low, high);
  }
  /// Returns a fraction of a peak, or a table of them.
  Efficiency efficiency(std::string_view field, bool may_be_table) {
    const nlohmann::json* value = find(field);
    if (!may_be_table || value == nullptr || !value->is_array()) return number(field, kLeastEfficiency, 1);
    std::vector<Efficiency::Entry> entries;
    const auto is_next = [&](const nlohmann::json& entry) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number() || !entry[1].is_number()) return false;
      const auto flops = entry[0].get<double>();
      const auto fraction = entry[1].get<double>();
      return flops >= 1 && flops <= kLargest && fraction >= kLeastEfficiency && fraction <= 1 &&
             (entries.empty() || flops > entries.back().flops);
    };
    for (const nlohmann::json& entry : *value) {
      if (!is_next(entry)) break;
      entries.push_back({entry[0].get<double>(), entry[1].get<double>()});
    }
    if (entries.empty() || entries.size() != value->size() || entries.size() > kMostEntries) {
      refuse(field,
             fmt::format("a number from {0} to 1, or up to {1} pairs [FLOPs, number from {0} to 1] of increasing FLOPs from 1",
                         kLeastEfficiency, kMostEntries));
    }
    return Efficiency(std::move(entries));
  }
  int count(std::string_view field, int most = kMostOfANode) {
    const nlohmann::json* value = find(field);
    if (value == nullptr || !value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      refuse(field, fmt::format("an integer from 1 to {}", most));
    }
    return value->get<int>();
  }
  Object inside(std::string_view field) {
    const nlohmann::json* value = find(field);
    if (value == nullptr || !value->is_object()) refuse(field, "an object");
    return {*value, fmt::format("{}: in field \"{}\"", where_, field)};
  }
  const std::string& where() const { return where_; }
  void done() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(read_.begin(), read_.end(), key) == read_.end()) {
        throw Error(Cause::refused,
                    fmt::format("{}: field \"{}\" is not known; expected {}", where_, shown(key), fmt::join(read_, ", ")));
      }
    }
  }

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::vector<std::string> read_;
};

}  // namespace tsprun::detail::theory
