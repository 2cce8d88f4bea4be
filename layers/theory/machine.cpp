// Reads machine descriptions: JSON objects whose every field is checked for presence, type and range.
#include "layers/theory/machine.h"

#include "layers/io/file.h"
#include "layers/io/json_object.h"
#include "layers/theory/built_in_machines.h"
#include "layers/theory/machine_limits.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace tsprun::detail::theory {

namespace {

using nlohmann::json;

constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 20;
constexpr double kWorstCrossing = 1000;
constexpr int kMostOfALeaf = 65536;
constexpr double kSlowestKernels = 100;
constexpr std::uint64_t kNewestVersion = 6;
/// Pieces of GPUs whose file doesn't state them: parts of the memory, and the most that is taken.
constexpr double kTilesOfMemory = 64;
constexpr double kMostOfATile = 1 << 30;
constexpr double kBucketsOfMemory = 256;
constexpr double kMostOfABucket = 1 << 28;
/// Largest memory of a GPU: an exabyte.
constexpr double kMostMemory = 1e18;
constexpr int kMostOfANode = 1024;
constexpr std::string_view kAttentionKernels = "attention_kernels";

void read_flops(JsonObject object, Machine& machine) {
  const auto rate = [&](std::string_view field, std::optional<double>& into) {
    if (object.find(field) != nullptr) into = object.number(field, 1, kLargest);
  };
  rate("bf16", machine.flops_bf16);
  rate("f32", machine.flops_f32);
  rate("f64", machine.flops_f64);
  object.done();
}

void read_within(JsonObject object, Machine& machine) {
  const std::string fabric = object.text("fabric");
  if (fabric != "links" && fabric != "switch") object.refuse("fabric", "\"links\" or \"switch\"");
  machine.fabric = fabric == "links" ? Fabric::links : Fabric::on_switch;
  machine.within_bytes_per_s = object.number("bytes_per_s", 1, kLargest);
  machine.within_latency = object.number("latency_s", 0, kLongestLatency);
  object.done();
}

Spine read_spine(JsonObject object) {
  const Spine spine{.nodes_per_leaf = object.integer("nodes_per_leaf", 1, kMostOfALeaf),
                    .leaf_per_rail = object.flag("leaf_per_rail"),
                    .leaf_bytes_per_s = object.number("leaf_bytes_per_s", 1, kLargest),
                    .bytes_per_s = object.number("bytes_per_s", 1, kLargest, std::numeric_limits<double>::infinity()),
                    .latency = object.number("latency_s", 0, kLongestLatency)};
  object.done();
  return spine;
}

void read_across(JsonObject object, Machine& machine, bool may_have_spine) {
  machine.nics_per_node = object.integer("nics_per_node", 1, kMostOfANode);
  machine.nic_bytes_per_s = object.number("bytes_per_s", 1, kLargest);
  machine.nic_latency = object.number("latency_s", 0, kLongestLatency);
  machine.rail_crossing = object.number("rail_crossing", 1, kWorstCrossing);
  if (may_have_spine && object.find("spine") != nullptr) machine.spine = read_spine(object.inside("spine"));
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
void check_sources(JsonObject& object, const json& document) {
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

/// Returns the sizes of the pieces in which the ranks work.
PieceSizes read_pieces(JsonObject& object, double memory_bytes, bool may_be_stated) {
  const PieceSizes least;
  const auto size = [&](std::string_view field, std::size_t at_least, double parts, double at_most) {
    const double usual = std::clamp(memory_bytes / parts, static_cast<double>(at_least), at_most);
    return static_cast<std::size_t>(may_be_stated ? object.number(field, 1, kMostMemory, usual) : usual);
  };
  return {.logits = size("logit_tile_bytes", least.logits, kTilesOfMemory, kMostOfATile),
          .kv_bucket = size("kv_bucket_bytes", least.kv_bucket, kBucketsOfMemory, kMostOfABucket)};
}

/// Returns what other implementations of attention reach, by name.
std::map<std::string, AttentionEfficiency> read_attention_kernels(JsonObject& object) {
  std::map<std::string, AttentionEfficiency> kernels;
  const json* value = object.find(kAttentionKernels);
  if (value == nullptr) return kernels;
  JsonObject inside = object.inside(kAttentionKernels);
  for (const auto& [name, efficiency] : value->items()) {
    if (name == kUnfused || name == kUnfusedAgain)
      inside.refuse(name, fmt::format("another name (--attention {} prices kernels of its own)", name));
    kernels[name] = AttentionEfficiency::read(inside, name, kNewestVersion);
  }
  return kernels;
}

/// Reads the rest of a machine whose ranks have cores.
Machine read_cores(JsonObject& object, Machine machine) {
  machine.memory_bytes = object.number("memory_bytes", 1, kMostMemory);
  machine.launch_seconds = object.number("launch_s", 0, kLongestLatency);
  machine.gpus_per_node = kMostOfANode;
  machine.cores = CoreMachine::read(object);
  machine.flops_bf16 = machine.cores->best_flops(DType::bf16);
  machine.flops_f32 = machine.cores->best_flops(DType::f32);
  machine.flops_f64 = machine.cores->best_flops(DType::f64);
  read_within(object.inside("within_node"), machine);
  machine.nic_bytes_per_s = machine.within_bytes_per_s;
  object.done();
  return machine;
}

}  // namespace

std::optional<double> Machine::flops(DType dtype) const {
  switch (dtype) {
    case DType::bf16: return flops_bf16;
    case DType::f32: return flops_f32;
    case DType::f64: return flops_f64;
    default: return std::nullopt;
  }
}

bool Machine::choose_attention(const std::string& which) {
  if (which == kUnfused || which == kUnfusedAgain) {
    attention = which == kUnfused ? AttentionKind::unfused : AttentionKind::unfused_again;
    return true;
  }
  const auto chosen = attention_kernels.find(which);
  if (chosen == attention_kernels.end()) return false;
  attention_efficiency = chosen->second;
  return true;
}

double Machine::across_bytes_per_s() const {
  return nic_bytes_per_s * std::min(1.0, static_cast<double>(nics_per_node) / gpus_per_node);
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const BuiltInMachine& each : kBuiltInMachines) names.emplace_back(each.name);
  std::ranges::sort(names);
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
  json document = parse_json(text, where);
  // A report of calibrate has the machine inside.
  if (document.is_object() && document.contains("command") && document.contains("machine")) {
    json machine = std::move(document["machine"]);
    document = std::move(machine);
  }
  JsonObject object(document, where);
  Machine machine;
  const std::uint64_t version = object.integer("version", 1, kNewestVersion, 1);
  const bool is_new = version >= 2;
  machine.name = object.text("name");
  if (version >= 3 && object.find("kind") != nullptr) {
    if (const std::string kind = object.text("kind"); kind == "cores") return read_cores(object, std::move(machine));
    else if (kind != "engines") object.refuse("kind", "\"engines\" (GPUs) or \"cores\" (what calibrate writes)");
  }
  machine.memory_bytes = object.number("memory_bytes", 1, kMostMemory);
  machine.memory_bytes_per_s = object.number("memory_bytes_per_s", 1, kLargest);
  read_flops(object.inside("flops_per_s"), machine);
  machine.gemm_efficiency = Efficiency::read(object, "gemm_efficiency", version, "depth", "results");
  machine.attention_efficiency = AttentionEfficiency::read(object, "attention_efficiency", version);
  if (version >= 6) machine.attention_kernels = read_attention_kernels(object);
  else if (has_field(document, kAttentionKernels)) object.refuse(kAttentionKernels, "none (it needs \"version\": 6)");
  if (is_new) {
    machine.memory_efficiency = object.number("memory_efficiency", kLeastEfficiency, 1, 1);
    machine.launch_seconds = object.number("launch_s", 0, kLongestLatency, 0);
    machine.copies_slow_kernels = object.number("copies_slow_kernels", 1, kSlowestKernels, 1);
    check_sources(object, document);
  }
  machine.pieces = read_pieces(object, machine.memory_bytes, version >= 5);
  machine.gpus_per_node = object.integer("gpus_per_node", 1, kMostOfANode);
  read_within(object.inside("within_node"), machine);
  read_across(object.inside("across_nodes"), machine, version >= 4);
  object.done();
  return machine;
}

}  // namespace tsprun::detail::theory
