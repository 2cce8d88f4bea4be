// Finding the checkpoint to go on from, before ranks start.
#include "layers/model/checkpoint.h"

#include "layers/model/checkpoint_folder.h"
#include "layers/model/checkpoint_manifest.h"
#include "layers/model/checkpoint_tensors.h"
#include "layers/model/digest.h"
#include "layers/model/file.h"
#include "layers/model/safetensors.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <system_error>

namespace tsp {

namespace {

namespace fs = std::filesystem;

Manifest read_manifest(const fs::path& path) {
  const posix::UniqueFd file = file::open_to_read(path);
  const std::uint64_t bytes = file::size(file, path);
  if (bytes > kManifestBytes) {
    throw Error(Cause::refused, fmt::format("{}: {} bytes; expected at most {}", path.string(), bytes, kManifestBytes));
  }
  std::string text(bytes, '\0');
  file::read(file, path, 0, std::as_writable_bytes(std::span(text)));
  return parse_manifest(text, path.string());
}

void verify(const fs::path& path, const CheckpointFile& expected, bool bytes_too) {
  const posix::UniqueFd file = file::open_to_read(path);
  const std::uint64_t bytes = file::size(file, path);
  if (bytes != expected.bytes) {
    throw Error(Cause::refused, fmt::format("{}: {} bytes; {} expects {}", path.string(), bytes, kManifestName, expected.bytes));
  }
  if (!bytes_too) return;
  if (const std::string found = hexadecimal(digest_file(file, path, bytes)); found != expected.checksum) {
    throw Error(Cause::refused, fmt::format("{}: checksum (XXH3-128) {}; {} expects {}: the file is damaged", path.string(),
                                            found, kManifestName, expected.checksum));
  }
}

/// Every tensor of the model, in its shape, in every file: what load_checkpoint() will ask for.
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

/// When the manifest of a checkpoint was written; nothing if that can't be told.
std::optional<fs::file_time_type> written(const fs::path& dir, std::uint64_t step) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(dir / step_folder(step) / kManifestName, error);
  return error ? std::nullopt : std::optional(time);
}

/// A folder that may only be read can be resumed from all the same; the next save will say what it can't delete.
void try_to_remove_leftovers(const fs::path& dir) {
  try {
    remove_leftovers(dir);
  } catch (const Error&) {
  }
}

}  // namespace

FoundCheckpoint open_checkpoint(const fs::path& folder, bool verify_bytes) {
  const Manifest manifest = read_manifest(folder / kManifestName);
  for (const CheckpointFile& file : manifest.files) verify(folder / file.name, file, verify_bytes);
  FoundCheckpoint found{.folder = folder,
                        .config = read_config(folder / "config.json").config,
                        .state = manifest.state,
                        .checksum = manifest.checksum};
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

CheckpointSearch search_checkpoints(const fs::path& dir, const CheckpointMarks& others) {
  CheckpointSearch search;
  const auto look_at = [&](const fs::path& folder, std::optional<std::uint64_t> step) {
    try {
      FoundCheckpoint found = open_checkpoint(folder, true);
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
    const fs::path name = (dir / ".").lexically_normal().parent_path();  // without a slash at its end
    if (step_of(name.filename().string())) try_to_remove_leftovers(name.has_parent_path() ? name.parent_path() : ".");
    look_at(dir, std::nullopt);
    return search;
  }
  const std::vector<std::uint64_t> steps = steps_in(dir);
  try_to_remove_leftovers(dir);
  for (const std::uint64_t step : steps) {
    if (is_marked(others, dir, step)) continue;
    look_at(dir / step_folder(step), step);
    if (search.found) break;
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

std::vector<std::string> differences(const CheckpointState& saved, const CheckpointState& now) {
  std::vector<std::string> lines;
  const auto compare = [&](std::string_view what, const auto& then, const auto& today) {
    if (then != today) lines.push_back(fmt::format("{}: {} now, {} in the checkpoint", what, today, then));
  };
  compare("--seed", saved.seed, now.seed);
  compare("--dtype", name(saved.dtype), name(now.dtype));
  compare("--batch", saved.batch, now.batch);
  compare("--seq", saved.sequence, now.sequence);
  compare("tokens of --data", saved.data_tokens, now.data_tokens);
  compare("--lr", saved.learning_rate, now.learning_rate);
  compare("--warmup", saved.warmup, now.warmup);
  compare("--weight-decay", saved.weight_decay, now.weight_decay);
  compare("--beta1", saved.beta1, now.beta1);
  compare("--beta2", saved.beta2, now.beta2);
  compare("--eps", saved.epsilon, now.epsilon);
  compare("--clip", saved.clip, now.clip);
  compare("ranks", saved.ranks, now.ranks);
  compare("--layout", saved.layout, now.layout);
  compare("kernels", saved.kernels, now.kernels);
  return lines;
}

}  // namespace tsp
