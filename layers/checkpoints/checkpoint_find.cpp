// Finds the checkpoint from which a run continues, or the model folder to load, before ranks start.
#include "layers/checkpoints/checkpoint.h"

#include "layers/checkpoints/checkpoint_folder.h"
#include "layers/checkpoints/checkpoint_manifest.h"
#include "layers/checkpoints/checkpoint_tensors.h"
#include "layers/io/digest.h"
#include "layers/io/digest_files.h"
#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "layers/io/safetensors.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <system_error>

namespace tsprun::detail {

namespace {

namespace fs = std::filesystem;

/// Returns what follows if a file isn't as it was saved, and what helps. People edit config.json; other files change by damage
/// alone.
std::string advice(const fs::path& folder, const CheckpointFile& file) {
  if (file.name != "config.json") return "the file is damaged";
  return fmt::format(
      "the file was changed after it was saved, or is damaged, and may not describe the weights, so the "
      "checkpoint isn't used; put the saved file back, or begin a new run from its weights with the file as it "
      "is: --model {} --no-checksum",
      folder.string());
}

/// Compares files of a folder with their manifest: their sizes, then with `bytes_too` their contents. Throws Error(refused) at
/// the first that differs.
void verify(const fs::path& folder, std::span<const CheckpointFile> files, bool bytes_too) {
  std::vector<fs::path> paths;
  for (const CheckpointFile& expected : files) {
    const fs::path& path = paths.emplace_back(folder / expected.name);
    if (const std::uint64_t bytes = file::size(file::open_to_read(path), path); bytes != expected.bytes) {
      throw Error(Cause::refused, fmt::format("{}: {} bytes; {} expects {}: {}", path.string(), bytes, kManifestName,
                                              expected.bytes, advice(folder, expected)));
    }
  }
  if (!bytes_too) return;
  const std::vector<Digest> digests = digest_files(paths, [] {});
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (const std::string found = hexadecimal(digests[i]); found != files[i].checksum) {
      throw Error(Cause::refused, fmt::format("{}: checksum (XXH3-128) {}; {} expects {}: {}", paths[i].string(), found,
                                              kManifestName, files[i].checksum, advice(folder, files[i])));
    }
  }
}

/// Returns a line for each carried file that is missing or differs from the manifest. Nothing is computed from them, so a
/// checkpoint can be used all the same.
std::vector<std::string> changes_of_carried(const fs::path& folder, std::span<const CheckpointFile> files, bool bytes_too) {
  std::vector<std::string> lines;
  for (const CheckpointFile& file : files) {
    std::error_code error;
    const fs::path path = folder / file.name;
    if (!fs::exists(path, error)) {
      lines.push_back(fmt::format("{}: is missing, though it was saved; later checkpoints won't have it", path.string()));
      continue;
    }
    try {
      const std::uint64_t bytes = file::size(file::open_to_read(path), path);
      if (bytes == file.bytes && (!bytes_too || hexadecimal(digest_files({path}, [] {}).front()) == file.checksum)) continue;
      lines.push_back(fmt::format("{}: isn't as it was saved: it was changed, or is damaged; later checkpoints get it as it is",
                                  path.string()));
    } catch (const Error& failure) {
      if (failure.cause() != Cause::refused) throw;
      lines.emplace_back(failure.what());
    }
  }
  return lines;
}

/// Checks that a file holds every tensor of the model in its shape and type, as load_checkpoint() will need them.
void verify_tensors(const fs::path& path, const ModelConfig& config, DType dtype) {
  const safetensors::File file(path);
  for (const Parameter& parameter : model_parameters(config)) {
    const safetensors::TensorInfo& tensor = checkpoint_tensor(file, config, parameter);
    if (tensor.type != stored_type_of(dtype)) {
      throw Error(Cause::refused, fmt::format("{}: tensor \"{}\": dtype: expected {}, found {}", path.string(), tensor.name,
                                              name(stored_type_of(dtype)), name(tensor.type)));
    }
  }
}

/// Returns when the manifest of a checkpoint was written; nothing if that is unknown.
std::optional<fs::file_time_type> written(const fs::path& dir, std::uint64_t step) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(dir / step_folder(step) / kManifestName, error);
  return error ? std::nullopt : std::optional(time);
}

/// Returns whether a manifest.json belongs to another program.
bool is_foreign(const std::string& text, const std::string& where) {
  const nlohmann::json object = parse_json(text, where);
  if (!object.is_object()) return true;
  const auto format = object.find("format");
  return format == object.end() || *format != kCheckpointFormat;
}

/// Compares the files that hold the model with the manifest. Returns false if there is no manifest of tsprun.
bool verify_model(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  const std::string text = file::read_text(path, kManifestBytes, "a manifest");
  if (is_foreign(text, path.string())) return false;
  std::vector<CheckpointFile> files = parse_manifest(text, path.string()).files;
  std::erase_if(files, [](const CheckpointFile& file) { return file.name != "config.json" && file.name != "model.safetensors"; });
  verify(folder, files, true);
  return true;
}

}  // namespace

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  return parse_manifest(file::read_text(path, kManifestBytes, "a manifest"), path.string());
}

std::optional<std::string> run_of(const fs::path& folder) {
  try {
    return read_manifest(folder).state.run;
  } catch (const Error&) {
    return std::nullopt;
  }
}

FoundModel find_model_folder(const fs::path& dir, bool verify) {
  std::error_code error;
  if (!fs::is_directory(dir, error)) {
    throw Error(Cause::refused, fmt::format("{}: no such folder; expected one with config.json and model.safetensors, or with "
                                            "checkpoints step-NNNNNN",
                                            dir.string()));
  }
  FoundModel found{.folder = dir, .skipped = {}};
  const std::vector<std::uint64_t> steps = fs::exists(dir / "config.json", error) ? std::vector<std::uint64_t>() : steps_in(dir);
  if (steps.empty()) {
    found.has_manifest = verify ? verify_model(dir) : fs::exists(dir / kManifestName, error);
    return found;
  }
  for (const std::uint64_t step : steps) {
    try {
      found.folder = dir / step_folder(step);
      found.has_manifest = verify ? verify_model(found.folder) : fs::exists(found.folder / kManifestName, error);
      if (found.has_manifest) return found;
      found.skipped.push_back(fmt::format("{}: has no {}", found.folder.string(), kManifestName));
    } catch (const Error& refusal) {
      if (refusal.cause() != Cause::refused) throw;
      found.skipped.emplace_back(refusal.what());
    }
  }
  throw Error(Cause::refused, fmt::format("{}: holds no whole checkpoint: {}", dir.string(), fmt::join(found.skipped, "; ")));
}

FoundCheckpoint open_checkpoint(const fs::path& folder, bool verify_bytes) {
  const Manifest manifest = read_manifest(folder);
  const std::size_t own = checkpoint_files(manifest.state.dtype).size();
  verify(folder, std::span(manifest.files).first(own), verify_bytes);
  FoundCheckpoint found{.folder = folder,
                        .config = read_config(folder / "config.json").config,
                        .state = manifest.state,
                        .checksum = manifest.checksum,
                        .warnings = changes_of_carried(folder, std::span(manifest.files).subspan(own), verify_bytes)};
  for (const CheckpointTensors& kind : checkpoint_tensors(manifest.state.dtype)) {
    verify_tensors(folder / kind.file, found.config, kind.dtype);
  }
  return found;
}

CheckpointMarks checkpoints_in(const fs::path& dir) {
  CheckpointMarks marks;
  std::error_code error;
  if (!fs::is_directory(dir, error)) return marks;
  try {
    for (const std::uint64_t step : steps_in(dir)) {
      if (const auto time = written(dir, step)) marks.emplace(step, *time);
    }
  } catch (const Error&) {
    return {};
  }
  return marks;
}

bool is_marked(const CheckpointMarks& marks, const fs::path& dir, std::uint64_t step) {
  const auto mark = marks.find(step);
  return mark != marks.end() && written(dir, step) == mark->second;
}

CheckpointSearch search_checkpoints(const fs::path& dir, const CheckpointSearchOptions& options) {
  CheckpointSearch search;
  const auto look_at = [&](const fs::path& folder, std::optional<std::uint64_t> step) {
    try {
      FoundCheckpoint found = open_checkpoint(folder, options.verify_bytes);
      if (step && found.state.step != *step) {
        throw Error(Cause::refused, fmt::format("{}: field \"state.step\": expected {}, as the folder's name says, found {}",
                                                (folder / kManifestName).string(), *step, found.state.step));
      }
      search.found = std::move(found);
    } catch (const Error& error) {
      if (error.cause() != Cause::refused) throw;
      search.skipped.emplace_back(error.what());
    }
  };

  std::error_code error;
  if (fs::exists(dir / kManifestName, error)) {
    look_at(dir, std::nullopt);
    return search;
  }
  for (const std::uint64_t step : steps_in(dir)) {
    if (is_marked(options.passed_over, dir, step)) continue;
    // A checkpoint with an unreadable manifest may be this run's own: it is examined, and reported as damaged.
    if (options.run && run_of(dir / step_folder(step)).value_or(*options.run) != *options.run) continue;
    look_at(dir / step_folder(step), step);
    if (search.found) break;
  }
  for (const fs::path& entry : interrupted_in(dir)) {
    const std::string name = entry.stem().stem().string();
    if (search.found && *step_of(name) < search.found->state.step) continue;
    if (options.run && run_of(entry) != *options.run) continue;
    search.skipped.push_back(
        fmt::format("{}: a run died while it replaced this checkpoint; rename it to {} to go on from it", entry.string(), name));
  }
  return search;
}

FoundCheckpoint find_checkpoint(const fs::path& dir, std::vector<std::string>& skipped) {
  CheckpointSearch search = search_checkpoints(dir);
  if (!search.found) {
    throw Error(Cause::refused,
                search.skipped.empty()
                    ? fmt::format("{}: holds no checkpoint; expected folders step-NNNNNN with a {}", dir.string(), kManifestName)
                    : fmt::format("{}: holds no whole checkpoint: {}", dir.string(), fmt::join(search.skipped, "; ")));
  }
  skipped = std::move(search.skipped);
  return std::move(*search.found);
}

}  // namespace tsprun::detail
