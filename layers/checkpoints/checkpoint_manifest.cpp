// Writes the manifest as JSON, and checks every field and the seal when it is read.
#include "layers/checkpoints/checkpoint_manifest.h"

#include "layers/checkpoints/model_source.h"
#include "layers/io/digest.h"
#include "layers/io/json_object.h"
#include "layers/parameters/place.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_set>

namespace tsprun::detail {

namespace {

using nlohmann::json;

constexpr std::uint64_t kMostCounted = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxCount = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMostEntries = 1000;
constexpr std::array<std::string_view, 3> kDtypes = {"f32", "f64", "bf16"};

constexpr std::array<std::string_view, 9> kSections = {"format", "version", "run",   "state",   "data",
                                                       "update", "world",   "files", "checksum"};

/// Returns a number of at least 0 and below `below`.
double read_number(JsonObject& object, std::string_view field, double below) {
  return object.number_that(
      [below](double value) { return value >= 0 && value < below; }, field,
      std::isinf(below) ? "a finite number of at least 0" : fmt::format("a number of at least 0 and below {}", below));
}

/// Returns the variant of an axis that its field names; the first if there is no such field, as in manifests before 0.2.0.
std::size_t read_variant(JsonObject& object, const AxisRow& row) {
  if (object.find(row.name) == nullptr) return 0;
  const std::string found = object.text(row.name);
  std::vector<std::string_view> names;
  for (const Variant& each : row.variants) {
    if (each.name == found) return names.size();
    names.push_back(each.name);
  }
  object.refuse(row.name, fmt::format("{}", fmt::join(names, ", ")));
}

/// Returns the checksum of the object without its field "checksum", in the one form that its text has: names in order, no spaces.
std::string seal_of(const json& object) {
  json rest = object;
  rest.erase("checksum");
  const std::string text = rest.dump();
  return hexadecimal(digest(std::as_bytes(std::span(text))));
}

/// Reads how the learning rate falls.
void read_schedule(JsonObject& update, CheckpointState& state) {
  JsonObject object = update.inside("schedule");
  const auto at = std::ranges::find(kRateSchedules, object.text("name"));
  if (at == kRateSchedules.begin() || at == kRateSchedules.end())
    object.refuse("name", fmt::format("{}", fmt::join(std::span(kRateSchedules).subspan(1), ", ")));
  state.schedule = static_cast<RateSchedule>(at - kRateSchedules.begin());
  state.least_rate = read_number(object, "least_rate", std::numeric_limits<double>::infinity());
  state.decay_steps = object.integer("decay_steps", 0, kMaxCount);
  state.steps = object.integer("steps", 1, kMaxCount);
  object.done();
}

CheckpointState read_state(JsonObject& top) {
  CheckpointState state;
  constexpr double kNoBound = std::numeric_limits<double>::infinity();

  JsonObject progress = top.inside("state");
  state.step = progress.integer("step", 0, kMaxCount);
  state.seed = progress.integer("seed", 0, std::numeric_limits<std::uint64_t>::max());
  const std::string dtype = progress.text("dtype");
  if (std::find(kDtypes.begin(), kDtypes.end(), dtype) == kDtypes.end()) progress.refuse("dtype", "f32, f64 or bf16");
  state.dtype = *dtype_from_name(dtype);
  progress.done();

  JsonObject data = top.inside("data");
  state.batch = data.integer("batch", 1, kMostCounted);
  if (data.find("micro_batches") != nullptr) state.micro_batches = data.integer("micro_batches", 1, kMostCounted);
  state.sequence = data.integer("sequence", 1, kMostCounted);
  state.data_tokens = data.integer("tokens", 0, kMaxCount);
  if (data.find("epochs") != nullptr) state.epochs = read_number(data, "epochs", kNoBound);
  if (data.find("end_of_document") != nullptr) state.end_of_document = data.text("end_of_document");
  state.reset_attention = data.flag("reset_attention", false);
  data.done();

  JsonObject update = top.inside("update");
  state.learning_rate = read_number(update, "learning_rate", kNoBound);
  state.warmup = update.integer("warmup", 0, kMaxCount);
  if (update.find("schedule") != nullptr) read_schedule(update, state);
  state.weight_decay = read_number(update, "weight_decay", kNoBound);
  state.beta1 = read_number(update, "beta1", 1);
  state.beta2 = read_number(update, "beta2", 1);
  state.epsilon = read_number(update, "epsilon", kNoBound);
  state.clip = read_number(update, "clip", kNoBound);
  update.done();

  JsonObject world = top.inside("world");
  const std::uint64_t ranks = world.integer("ranks", 1, kMostCounted);
  state.layout = Layout::parse(world.text("layout", 0), fmt::format("{}: field \"world.layout\":", top.where()));
  for (const AxisRow& row : kAxes) {
    if (!row.variants.empty()) state.layout = state.layout.with(row.kind, read_variant(world, row));
  }
  if (ranks != static_cast<std::uint64_t>(state.layout.ranks())) {
    world.refuse("ranks", fmt::format("{}, which is the product of the degrees in world.layout", state.layout.ranks()));
  }
  state.kernels = world.text("kernels", 0);
  world.done();
  return state;
}

/// Doesn't compile once CheckpointState has another member: read_state() must read it, and manifest_json() write it. Earlier
/// versions refuse fields that they don't know, and their manifests lack them: write it where its value isn't the default alone,
/// and read it where it is there.
[[maybe_unused]] void all_members(const CheckpointState& state) {
  [[maybe_unused]] const auto& [run, step, seed, dtype, batch, sequence, data_tokens, epochs, end_of_document, reset_attention,
                                learning_rate, warmup, schedule, least_rate, decay_steps, steps, weight_decay, beta1, beta2,
                                epsilon, clip, micro_batches, layout, kernels] = state;
}

/// Reads the list of files. Accepts only the names that belong to a checkpoint, and after them plain names, each once, so that no
/// name can lead out of the folder.
std::vector<CheckpointFile> read_files(JsonObject& top, DType dtype) {
  const std::vector<std::string> names = checkpoint_files(dtype);
  std::vector<CheckpointFile> files;
  std::unordered_set<std::string> carried;
  for (std::size_t i = 0, count = top.entries("files", 0, kMostEntries); i < count; ++i) {
    JsonObject entry = top.entry("files", i);
    CheckpointFile file;
    file.name = entry.text("name");
    if (i < names.size() && file.name != names[i]) entry.refuse("name", fmt::format("\"{}\"", names[i]));
    if (i >= names.size() && (!may_be_carried(file.name) || !carried.insert(file.name).second))
      entry.refuse("name", "the name of another file in the same folder, which doesn't hold weights");
    file.bytes = entry.integer("bytes", 0, kMaxCount);
    file.checksum = entry.text("xxh3_128");
    if (!is_hexadecimal_digest(file.checksum)) entry.refuse("xxh3_128", "32 hexadecimal digits in lower case");
    entry.done();
    files.push_back(std::move(file));
  }
  if (files.size() < names.size()) {
    throw Error(Cause::refused, fmt::format("{}: field \"files\": file \"{}\" is missing; expected {}", top.where(),
                                            names[files.size()], fmt::join(names, ", ")));
  }
  return files;
}

}  // namespace

std::vector<std::string> checkpoint_files(DType dtype) {
  std::vector<std::string> names = {"config.json", "model.safetensors", "optimizer.m.safetensors", "optimizer.v.safetensors"};
  if (keeps_master(dtype)) names.emplace_back("optimizer.master.safetensors");
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
  // Earlier versions know neither micro-batches nor ends of documents, and read checkpoints of runs that had none.
  if (state.micro_batches != 1) object["data"]["micro_batches"] = state.micro_batches;
  if (state.epochs > 0) object["data"]["epochs"] = state.epochs;
  if (!state.end_of_document.empty()) object["data"]["end_of_document"] = state.end_of_document;
  if (state.reset_attention) object["data"]["reset_attention"] = true;
  object["update"] = {{"learning_rate", state.learning_rate},
                      {"warmup", state.warmup},
                      {"weight_decay", state.weight_decay},
                      {"beta1", state.beta1},
                      {"beta2", state.beta2},
                      {"epsilon", state.epsilon},
                      {"clip", state.clip}};
  // As with what data may have: only runs whose rate falls.
  if (state.schedule != RateSchedule::constant) {
    object["update"]["schedule"] = {{"name", kRateSchedules[static_cast<std::size_t>(state.schedule)]},
                                    {"least_rate", state.least_rate},
                                    {"decay_steps", state.decay_steps},
                                    {"steps", state.steps}};
  }
  object["world"] = {{"ranks", state.layout.ranks()}, {"layout", state.layout.print()}, {"kernels", state.kernels}};
  for (const AxisRow& row : kAxes) {
    // Earlier versions know no ways of dp, and read checkpoints of runs in the usual one.
    if (row.cuts == Cut::batch && state.layout.variant(row.kind) == 0) continue;
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
  JsonObject top(object, where);
  // Format and version are checked first, because another version may have other fields.
  if (top.text("format") != kCheckpointFormat) top.refuse("format", fmt::format("\"{}\"", kCheckpointFormat));
  const std::uint64_t version = top.integer("version", 1, kMaxCount);
  if (version > kManifestVersion) top.refuse("version", fmt::format("1 to {}", kManifestVersion));

  Manifest manifest;
  manifest.checksum = top.text("checksum");
  if (!is_hexadecimal_digest(manifest.checksum)) top.refuse("checksum", "32 hexadecimal digits in lower case");
  if (const std::string right = seal_of(object); seal == Seal::checked && manifest.checksum != right) {
    top.refuse("checksum", fmt::format("{}, as its other fields have (the file is damaged, or was edited)", right));
  }
  manifest.state = read_state(top);
  if (version > 1 || top.find("run") != nullptr) manifest.state.run = top.text("run", 0);
  if (const std::string& run = manifest.state.run; !run.empty() && !is_hexadecimal_digest(run)) {
    top.refuse("run", "nothing or 32 hexadecimal digits in lower case");
  }
  manifest.files = read_files(top, manifest.state.dtype);
  top.done();
  return manifest;
}

}  // namespace tsprun::detail
