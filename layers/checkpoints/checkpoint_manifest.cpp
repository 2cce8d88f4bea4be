// Writes the manifest as JSON, and checks every field and the seal when it is read.
#include "layers/checkpoints/checkpoint_manifest.h"

#include "layers/io/digest.h"
#include "layers/io/json_text.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace tsprun::detail {

namespace {

using nlohmann::json;

constexpr std::uint64_t kMostCounted = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxCount = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMaxText = 200;
constexpr std::array<std::string_view, 3> kDtypes = {"f32", "f64", "bf16"};

constexpr std::array<std::string_view, 9> kSections = {"format", "version", "run",   "state",   "data",
                                                       "update", "world",   "files", "checksum"};

/// A JSON object of the file: reads its fields by type and range, and refuses fields that aren't expected.
class Section {
 public:
  Section(const json& object, const std::string& where, std::string path)
      : object_(object), where_(where), path_(std::move(path)) {}

  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const {
    refuse_field(object_, where_, path_, field, expected);
  }

  const json& get(std::string_view field, std::string_view expected, bool (json::*is)() const noexcept) const {
    const auto at = object_.find(field);
    if (at == object_.end() || !((*at).*is)()) refuse(field, expected);
    return *at;
  }

  std::uint64_t integer(std::string_view field, std::uint64_t lowest, std::uint64_t highest) const {
    const std::string expected = fmt::format("an integer from {} to {}", lowest, highest);
    const auto value = get(field, expected, &json::is_number_unsigned).get<std::uint64_t>();
    if (value < lowest || value > highest) refuse(field, expected);
    return value;
  }

  double number(std::string_view field, double lowest, double below) const {
    const std::string expected = std::isinf(below) ? fmt::format("a finite number of at least {}", lowest)
                                                   : fmt::format("a number of at least {} and below {}", lowest, below);
    const double value = get(field, expected, &json::is_number).get<double>();
    if (!(value >= lowest && value < below)) refuse(field, expected);
    return value;
  }

  std::string text(std::string_view field) const {
    const std::string expected = fmt::format("text of at most {} bytes", kMaxText);
    auto value = get(field, expected, &json::is_string).get<std::string>();
    if (value.size() > kMaxText || shown(value).size() != value.size()) refuse(field, expected);
    return value;
  }

  Layout layout(std::string_view field) const {
    return Layout::parse(text(field), fmt::format("{}: field \"{}{}\":", where_, path_, field));
  }

  /// Returns the variant of an axis that the field names; the first if there is no such field, as in manifests before 0.2.0.
  std::size_t variant(const AxisRow& row) const {
    if (object_.find(row.name) == object_.end()) return 0;
    const std::string found = text(row.name);
    std::vector<std::string_view> names;
    for (const Variant& each : row.variants) {
      if (each.name == found) return names.size();
      names.push_back(each.name);
    }
    refuse(row.name, fmt::format("{}", fmt::join(names, ", ")));
  }

  Section section(std::string_view field) const {
    return {get(field, "an object", &json::is_object), where_, fmt::format("{}{}.", path_, field)};
  }

  template <class Names>
  void refuse_others_than(const Names& names) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(names.begin(), names.end(), key) == names.end()) {
        throw Error(Cause::refused, fmt::format("{}: field \"{}{}\" is not known; expected only {}", where_, path_, shown(key),
                                                fmt::join(names, ", ")));
      }
    }
  }
  void refuse_others_than(std::initializer_list<std::string_view> names) const {
    refuse_others_than(std::vector<std::string_view>(names));
  }

 private:
  const json& object_;
  const std::string& where_;
  std::string path_;
};

/// Returns the checksum of the object without its field "checksum", in the one form that its text has: names in order, no spaces.
std::string seal_of(const json& object) {
  json rest = object;
  rest.erase("checksum");
  const std::string text = rest.dump();
  return hexadecimal(digest(std::as_bytes(std::span(text))));
}

CheckpointState read_state(const Section& top) {
  CheckpointState state;
  constexpr double kNoBound = std::numeric_limits<double>::infinity();

  const Section progress = top.section("state");
  progress.refuse_others_than({"step", "seed", "dtype"});
  state.step = progress.integer("step", 0, kMaxCount);
  state.seed = progress.integer("seed", 0, std::numeric_limits<std::uint64_t>::max());
  const std::string dtype = progress.text("dtype");
  if (std::find(kDtypes.begin(), kDtypes.end(), dtype) == kDtypes.end()) progress.refuse("dtype", "f32, f64 or bf16");
  state.dtype = *dtype_from_name(dtype);

  const Section data = top.section("data");
  data.refuse_others_than({"batch", "sequence", "tokens"});
  state.batch = data.integer("batch", 1, kMostCounted);
  state.sequence = data.integer("sequence", 1, kMostCounted);
  state.data_tokens = data.integer("tokens", 0, kMaxCount);

  const Section update = top.section("update");
  update.refuse_others_than({"learning_rate", "warmup", "weight_decay", "beta1", "beta2", "epsilon", "clip"});
  state.learning_rate = update.number("learning_rate", 0, kNoBound);
  state.warmup = update.integer("warmup", 0, kMaxCount);
  state.weight_decay = update.number("weight_decay", 0, kNoBound);
  state.beta1 = update.number("beta1", 0, 1);
  state.beta2 = update.number("beta2", 0, 1);
  state.epsilon = update.number("epsilon", 0, kNoBound);
  state.clip = update.number("clip", 0, kNoBound);

  const Section world = top.section("world");
  std::vector<std::string_view> fields = {"ranks", "layout", "kernels"};
  for (const AxisRow& row : kAxes) {
    if (!row.variants.empty()) fields.push_back(row.name);
  }
  world.refuse_others_than(fields);
  const std::uint64_t ranks = world.integer("ranks", 1, kMostCounted);
  state.layout = world.layout("layout");
  for (const AxisRow& row : kAxes) {
    if (!row.variants.empty()) state.layout = state.layout.with(row.kind, world.variant(row));
  }
  if (ranks != static_cast<std::uint64_t>(state.layout.ranks())) {
    world.refuse("ranks", fmt::format("{}, which is the product of the degrees in world.layout", state.layout.ranks()));
  }
  state.kernels = world.text("kernels");
  return state;
}

/// Reads the list of files. Accepts only the names that belong to a checkpoint, each once, so that no name can lead out of the
/// folder.
std::vector<CheckpointFile> read_files(const json& list, DType dtype, const std::string& where) {
  const std::vector<std::string> names = checkpoint_files(dtype);
  std::vector<CheckpointFile> files;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("files[{}]", i);
    if (!list[i].is_object()) {
      throw Error(Cause::refused,
                  fmt::format("{}: field \"{}\": expected an object, found {}", where, place, shown_value(list[i])));
    }
    const Section entry(list[i], where, place + ".");
    entry.refuse_others_than({"name", "bytes", "xxh3_128"});
    CheckpointFile file;
    file.name = entry.text("name");
    if (i >= names.size() || file.name != names[i]) {
      entry.refuse("name",
                   i < names.size() ? fmt::format("\"{}\"", names[i]) : fmt::format("no more than {} files", names.size()));
    }
    file.bytes = entry.integer("bytes", 0, kMaxCount);
    file.checksum = entry.text("xxh3_128");
    if (!is_hexadecimal_digest(file.checksum)) entry.refuse("xxh3_128", "32 hexadecimal digits in lower case");
    files.push_back(std::move(file));
  }
  if (files.size() < names.size()) {
    throw Error(Cause::refused, fmt::format("{}: field \"files\": file \"{}\" is missing; expected {}", where,
                                            names[files.size()], fmt::join(names, ", ")));
  }
  return files;
}

}  // namespace

std::vector<std::string> checkpoint_files(DType dtype) {
  std::vector<std::string> names = {"config.json", "model.safetensors", "optimizer.m.safetensors", "optimizer.v.safetensors"};
  if (dtype == DType::bf16) names.emplace_back("optimizer.master.safetensors");
  return names;
}

std::string manifest_json(const Manifest& manifest) {
  const CheckpointState& state = manifest.state;
  json object;
  object["format"] = kCheckpointFormat;
  object["version"] = kManifestVersion;
  object["run"] = state.run;
  object["state"] = {{"step", state.step}, {"seed", state.seed}, {"dtype", name(state.dtype)}};
  object["data"] = {{"batch", state.batch}, {"sequence", state.sequence}, {"tokens", state.data_tokens}};
  object["update"] = {{"learning_rate", state.learning_rate},
                      {"warmup", state.warmup},
                      {"weight_decay", state.weight_decay},
                      {"beta1", state.beta1},
                      {"beta2", state.beta2},
                      {"epsilon", state.epsilon},
                      {"clip", state.clip}};
  object["world"] = {{"ranks", state.layout.ranks()}, {"layout", state.layout.print()}, {"kernels", state.kernels}};
  for (const AxisRow& row : kAxes) {
    if (!row.variants.empty()) object["world"][std::string(row.name)] = variant_name(state.layout, row);
  }
  object["files"] = json::array();
  for (const CheckpointFile& file : manifest.files) {
    object["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.checksum}});
  }
  object["checksum"] = seal_of(object);

  // For people who read the file, the facts come first.
  nlohmann::ordered_json ordered;
  for (const std::string_view section : kSections) ordered[std::string(section)] = object[std::string(section)];
  return ordered.dump(2) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& where, Seal seal) {
  const json object = parse_json(text, where);
  if (!object.is_object()) {
    throw Error(Cause::refused, fmt::format("{}: expected a JSON object, found {}", where, shown_value(object)));
  }
  const Section top(object, where, "");
  // Format and version are checked first, because another version may have other fields.
  if (top.text("format") != kCheckpointFormat) top.refuse("format", fmt::format("\"{}\"", kCheckpointFormat));
  const std::uint64_t version = top.integer("version", 1, kMaxCount);
  if (version > kManifestVersion) top.refuse("version", fmt::format("1 to {}", kManifestVersion));
  top.refuse_others_than(kSections);

  Manifest manifest;
  manifest.checksum = top.text("checksum");
  if (!is_hexadecimal_digest(manifest.checksum)) top.refuse("checksum", "32 hexadecimal digits in lower case");
  if (const std::string right = seal_of(object); seal == Seal::checked && manifest.checksum != right) {
    top.refuse("checksum", fmt::format("{}, as its other fields have (the file is damaged, or was edited)", right));
  }
  manifest.state = read_state(top);
  if (version > 1) manifest.state.run = top.text("run");
  if (const std::string& run = manifest.state.run; !run.empty() && !is_hexadecimal_digest(run)) {
    top.refuse("run", "nothing or 32 hexadecimal digits in lower case");
  }
  manifest.files = read_files(top.get("files", "an array", &json::is_array), manifest.state.dtype, where);
  return manifest;
}

}  // namespace tsprun::detail
