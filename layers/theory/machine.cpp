// Reads machine descriptions: JSON objects whose every field is checked for presence, type and range.
#include "layers/theory/machine.h"

#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "layers/theory/built_in_machines.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace tsprun::detail::theory {

namespace {

using nlohmann::json;

constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 20;
constexpr int kMostOfANode = 1024;
constexpr double kLargest = 1e30;
/// Largest memory of a GPU: an exabyte.
constexpr double kMostMemory = 1e18;
constexpr double kLeastEfficiency = 0.001;
constexpr double kLongestLatency = 1;
constexpr double kWorstCrossing = 1000;
constexpr double kSlowestKernels = 100;
constexpr std::size_t kMostEntries = 1000;
constexpr std::uint64_t kNewestVersion = 2;

/// One object of the file. Fields are read by name; done() refuses fields that weren't read.
class Object {
 public:
  Object(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      throw Error(Cause::refused, fmt::format("{}: expected a JSON object, found {}", where_, shown_value(object)));
    }
  }

  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const {
    refuse_field(object_, where_, "", field, expected);
  }

  const json* find(std::string_view field) {
    if (std::find(read_.begin(), read_.end(), field) == read_.end()) read_.emplace_back(field);
    const auto at = object_.find(field);
    return at == object_.end() ? nullptr : &*at;
  }
  std::string text(std::string_view field) {
    const json* value = find(field);
    if (value == nullptr || !value->is_string() || value->get_ref<const std::string&>().empty()) refuse(field, "a text");
    return shown(value->get_ref<const std::string&>());
  }
  /// Returns a number from `low` to `high`; refuses any other value.
  double number(std::string_view field, double low, double high) {
    const json* value = find(field);
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
    const json* value = find(field);
    if (!may_be_table || value == nullptr || !value->is_array()) return number(field, kLeastEfficiency, 1);
    std::vector<Efficiency::Entry> entries;
    const auto is_next = [&](const json& entry) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number() || !entry[1].is_number()) return false;
      const auto flops = entry[0].get<double>();
      const auto fraction = entry[1].get<double>();
      return flops >= 1 && flops <= kLargest && fraction >= kLeastEfficiency && fraction <= 1 &&
             (entries.empty() || flops > entries.back().flops);
    };
    for (const json& entry : *value) {
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
  int count(std::string_view field) {
    const json* value = find(field);
    if (value == nullptr || !value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(kMostOfANode)) {
      refuse(field, fmt::format("an integer from 1 to {}", kMostOfANode));
    }
    return value->get<int>();
  }
  Object inside(std::string_view field) {
    const json* value = find(field);
    if (value == nullptr || !value->is_object()) refuse(field, "an object");
    return {*value, fmt::format("{}: in field \"{}\"", where_, field)};
  }
  void done() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(read_.begin(), read_.end(), key) == read_.end()) {
        throw Error(Cause::refused,
                    fmt::format("{}: field \"{}\" is not known; expected {}", where_, shown(key), fmt::join(read_, ", ")));
      }
    }
  }

 private:
  const json& object_;
  std::string where_;
  std::vector<std::string> read_;
};

void read_flops(Object object, Machine& machine) {
  const auto rate = [&](std::string_view field, std::optional<double>& into) {
    if (object.find(field) != nullptr) into = object.number(field, 1, kLargest);
  };
  rate("bf16", machine.flops_bf16);
  rate("f32", machine.flops_f32);
  rate("f64", machine.flops_f64);
  object.done();
}

void read_within(Object object, Machine& machine) {
  const std::string fabric = object.text("fabric");
  if (fabric != "links" && fabric != "switch") object.refuse("fabric", "\"links\" or \"switch\"");
  machine.fabric = fabric == "links" ? Fabric::links : Fabric::on_switch;
  machine.within_bytes_per_s = object.number("bytes_per_s", 1, kLargest);
  machine.within_latency = object.number("latency_s", 0, kLongestLatency);
  object.done();
}

void read_across(Object object, Machine& machine) {
  machine.nics_per_node = object.count("nics_per_node");
  machine.nic_bytes_per_s = object.number("bytes_per_s", 1, kLargest);
  machine.nic_latency = object.number("latency_s", 0, kLongestLatency);
  machine.rail_crossing = object.number("rail_crossing", 1, kWorstCrossing);
  object.done();
}

/// Returns whether a document has the field, "a" or "a.b".
bool has_field(const json& document, std::string_view field) {
  const std::size_t dot = field.find('.');
  const auto at = document.is_object() ? document.find(field.substr(0, dot)) : document.end();
  if (at == document.end()) return false;
  return dot == std::string_view::npos || has_field(*at, field.substr(dot + 1));
}

/// Refuses sources that aren't texts, or name fields that the file doesn't have.
void check_sources(Object& object, const json& document) {
  const json* sources = object.find("sources");
  if (sources == nullptr) return;
  if (!sources->is_object()) object.refuse("sources", "an object of texts");
  for (const auto& [field, source] : sources->items()) {
    if (has_field(document, field) && source.is_string()) continue;
    object.refuse("sources",
                  fmt::format("texts by names of this file's fields, such as \"launch_s\" or \"within_node.latency_s\"; "
                              "\"{}\" isn't one",
                              shown(field)));
  }
}

}  // namespace

double Efficiency::at(double flops) const {
  const auto above = std::ranges::upper_bound(entries_, flops, {}, &Entry::flops);
  if (above == entries_.begin()) return entries_.front().fraction;
  if (above == entries_.end()) return entries_.back().fraction;
  const Entry& low = *(above - 1);
  const double part = std::log(flops / low.flops) / std::log(above->flops / low.flops);
  return low.fraction + part * (above->fraction - low.fraction);
}

std::optional<double> Machine::flops(DType dtype) const {
  switch (dtype) {
    case DType::bf16: return flops_bf16;
    case DType::f32: return flops_f32;
    case DType::f64: return flops_f64;
    default: return std::nullopt;
  }
}

double Machine::across_bytes_per_s() const {
  return nic_bytes_per_s * std::min(1.0, static_cast<double>(nics_per_node) / gpus_per_node);
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const BuiltInMachine& each : kBuiltInMachines) names.emplace_back(each.name);
  return names;
}

Machine find_machine(const std::string& name_or_file) {
  for (const BuiltInMachine& each : kBuiltInMachines) {
    if (each.name == name_or_file) return parse_machine(each.text, name_or_file);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(name_or_file, error)) {
    throw Error(Cause::refused, fmt::format("--machine {}: neither a machine that comes with tsprun ({}) nor a file",
                                            shown(name_or_file), fmt::join(machine_names(), ", ")));
  }
  return parse_machine(file::read_text(name_or_file, kMaxFileBytes, "a description"), name_or_file);
}

Machine parse_machine(std::string_view text, const std::string& where) {
  const json document = parse_json(text, where);
  Object object(document, where);
  Machine machine;
  const json* stated = object.find("version");
  const std::uint64_t version = stated == nullptr ? 1 : stated->is_number_unsigned() ? stated->get<std::uint64_t>() : 0;
  if (version < 1 || version > kNewestVersion) object.refuse("version", fmt::format("an integer from 1 to {}", kNewestVersion));
  const bool is_new = version >= 2;
  machine.name = object.text("name");
  machine.memory_bytes = object.number("memory_bytes", 1, kMostMemory);
  machine.memory_bytes_per_s = object.number("memory_bytes_per_s", 1, kLargest);
  read_flops(object.inside("flops_per_s"), machine);
  machine.gemm_efficiency = object.efficiency("gemm_efficiency", is_new);
  machine.attention_efficiency = object.efficiency("attention_efficiency", is_new);
  if (is_new) {
    machine.memory_efficiency = object.number_or("memory_efficiency", kLeastEfficiency, 1, 1);
    machine.launch_seconds = object.number_or("launch_s", 0, kLongestLatency, 0);
    machine.copies_slow_kernels = object.number_or("copies_slow_kernels", 1, kSlowestKernels, 1);
    check_sources(object, document);
  }
  machine.gpus_per_node = object.count("gpus_per_node");
  read_within(object.inside("within_node"), machine);
  read_across(object.inside("across_nodes"), machine);
  object.done();
  return machine;
}

}  // namespace tsprun::detail::theory
