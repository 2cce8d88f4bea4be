// Tells files that describe a model from those that hold its weights, and reads the former.
#include "layers/checkpoints/model_source.h"

#include "layers/checkpoints/checkpoint_manifest.h"
#include "layers/io/config.h"
#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <system_error>

namespace tsprun::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostName = 200;
/// Bytes of all carried files together; tokenizers have up to some ten million.
constexpr std::uint64_t kMostCarried = std::uint64_t{256} << 20;
/// Number of carried files; a manifest lists each.
constexpr std::size_t kMostFiles = 500;

/// Endings of files that hold weights or states of training, and of what tsprun itself is writing.
constexpr std::array<std::string_view, 17> kUntrueEndings = {
    ".safetensors", ".index.json", ".bin",       ".pt",  ".pth", ".ckpt",   ".h5", ".msgpack", ".gguf",
    ".ggml",        ".onnx",       ".onnx_data", ".npz", ".npy", ".tflite", ".ot", ".partial"};
/// Names of such files whose endings don't tell.
constexpr std::array<std::string_view, 1> kUntrueNames = {"trainer_state.json"};

bool is_untrue(std::string_view name) {
  return std::ranges::any_of(kUntrueEndings, [&](std::string_view ending) { return name.ends_with(ending); }) ||
         std::ranges::find(kUntrueNames, name) != kUntrueNames.end();
}

bool is_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::vector<fs::path> regular_files(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  auto at = fs::directory_iterator(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored)) paths.push_back(at->path());  // also by way of a link, as in a cache of downloads
  }
  if (error) throw system_error(Cause::refused, fmt::format("{}: can't be listed", folder.string()), error.value());
  std::ranges::sort(paths);
  return paths;
}

}  // namespace

bool may_be_carried(std::string_view name) {
  if (name.empty() || name.size() > kMostName || name.front() == '.' || !is_utf8(name)) return false;
  const bool plain = std::ranges::none_of(
      name, [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f; });
  return plain && !is_untrue(name) && name != "config.json" && name != kManifestName;
}

ModelSource read_model_source(const fs::path& from) {
  ModelSource source;
  std::error_code error;
  if (!fs::is_directory(from, error)) {
    source.config = read_config_text(from);
    return source;
  }
  source.config = read_config_text(from / "config.json");
  std::uint64_t bytes = 0;
  for (const fs::path& path : regular_files(from)) {
    const std::string name = path.filename().string();
    if (name.front() == '.' || is_untrue(name) || name == "config.json" || name == kManifestName) continue;
    const auto leave_out = [&](std::string_view why) {
      source.warnings.push_back(fmt::format("{}: checkpoints won't carry this file along: {}", shown(path.string()), why));
    };
    if (!may_be_carried(name)) {
      leave_out("its name isn't plain text of at most 200 bytes");
      continue;
    }
    if (source.files.size() == kMostFiles) {
      leave_out(fmt::format("the folder has more than {}", kMostFiles));
      continue;
    }
    try {
      const posix::UniqueFd file = file::open_to_read(path);
      const std::uint64_t size = file::size(file, path);
      if (size > kMostCarried - bytes) {
        leave_out(fmt::format("with it they would have more than {} MiB of such files", kMostCarried >> 20));
        continue;
      }
      std::string text(static_cast<std::size_t>(size), '\0');
      file::read(file, path, 0, std::as_writable_bytes(std::span(text)));
      bytes += size;
      source.files.push_back({name, std::move(text)});
    } catch (const Error& failure) {
      leave_out(failure.what());
    }
  }
  return source;
}

}  // namespace tsprun::detail
