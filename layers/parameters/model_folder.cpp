// Opens shards, maps tensors to them, and checks that all parameters are there.
#include "layers/parameters/model_folder.h"

#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <set>

namespace tsprun::detail {

namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

/// Returns whether a text names a file without a path to it. Control characters, NUL among them, are none of a name: messages
/// show it.
bool is_name_in_folder(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && std::filesystem::path(name).filename() == name &&
         printable(name) == name;
}

/// Reads the index and returns the shard of each tensor. Shards must lie in the folder itself: a name with a path in it could
/// refer to any file.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const nlohmann::json object = parse_json(file::read_text(path, safetensors::kMaxHeaderBytes, "an index"), path.string());
  const auto map = object.is_object() ? object.find("weight_map") : object.end();
  if (map == object.end() || !map->is_object() || map->empty()) {
    throw Error(Cause::refused,
                fmt::format("{}: field \"weight_map\": expected an object of tensor names and shards", path.string()));
  }
  std::map<std::string, std::string> index;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !is_name_in_folder(shard.get_ref<const std::string&>())) {
      throw Error(Cause::refused,
                  fmt::format("{}: field \"weight_map.{}\": expected the name of a file in the same folder, without control "
                              "characters, found {}",
                              path.string(), shown(tensor), shown_value(shard)));
    }
    index.emplace(tensor, shard.get<std::string>());
  }
  return index;
}

/// Returns whether a tensor is the causal mask of a layer, which GPT-2's files may hold and which isn't needed: "h.3.attn.bias",
/// "h.3.attn.masked_bias".
bool is_causal_mask(std::string_view name) {
  return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

}  // namespace

ModelFolder::ModelFolder(const std::filesystem::path& folder_or_file) : path_(folder_or_file) {
  std::error_code error;
  const std::filesystem::path single = std::filesystem::is_directory(path_, error) ? path_ / kSingle : path_;
  if (single == path_ || std::filesystem::exists(single, error)) {
    files_.emplace_back(single);
    for (const safetensors::TensorInfo& tensor : files_.front().tensors()) where_.emplace(tensor.name, Place{0, tensor.name});
    drop_prefix();
    return;
  }

  const std::filesystem::path index_path = path_ / kIndex;
  index_ = index_path;
  if (!std::filesystem::exists(index_path, error)) {
    throw Error(Cause::refused, fmt::format("{}: holds no weights; expected {} or {}", path_.string(), kSingle, kIndex));
  }
  std::map<std::string, std::size_t> shards;
  for (const auto& [tensor, shard] : read_index(index_path)) {
    auto at = shards.find(shard);
    if (at == shards.end()) {
      if (!std::filesystem::exists(path_ / shard, error)) {
        throw Error(Cause::refused, fmt::format("{}: is missing; {} expects tensor \"{}\" there", (path_ / shard).string(),
                                                index_path.string(), shown(tensor)));
      }
      at = shards.emplace(shard, files_.size()).first;
      files_.emplace_back(path_ / shard);
    }
    if (files_[at->second].find(tensor) == nullptr) {
      throw Error(Cause::refused, fmt::format("{}: tensor \"{}\" is missing; {} expects it there", (path_ / shard).string(),
                                              shown(tensor), index_path.string()));
    }
    where_.emplace(tensor, Place{at->second, tensor});
  }
  // What the shards hold beside what the index lists is the model's all the same, or check() names it.
  for (std::size_t shard = 0; shard < files_.size(); ++shard) {
    for (const safetensors::TensorInfo& tensor : files_[shard].tensors()) where_.emplace(tensor.name, Place{shard, tensor.name});
  }
  drop_prefix();
}

std::vector<std::filesystem::path> ModelFolder::paths() const {
  std::vector<std::filesystem::path> paths;
  if (!index_.empty()) paths.push_back(index_);
  for (const safetensors::File& file : files_) paths.push_back(file.path());
  return paths;
}

void ModelFolder::drop_prefix() {
  constexpr std::string_view kPrefix = "transformer.";
  std::map<std::string, Place, std::less<>> short_names;
  for (auto& [name, place] : where_) {
    const std::string short_name = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
    if (!short_names.emplace(short_name, std::move(place)).second) {
      throw Error(Cause::refused, fmt::format("{}: tensor \"{}\" is given twice, with and without the prefix \"{}\"",
                                              path_.string(), shown(short_name), kPrefix));
    }
  }
  where_ = std::move(short_names);
}

std::vector<std::string> ModelFolder::check(std::span<const Parameter> parameters) const {
  std::set<std::string_view> wanted;
  for (const Parameter& parameter : parameters) {
    wanted.insert(parameter.name);
    if (parameter.role == ParameterRole::head && find(parameter.name) == nullptr) {
      throw Error(
          Cause::refused,
          fmt::format("{}: tensor \"{}\" is missing; expected {} (or \"tie_word_embeddings\": true in the config, if the head is "
                      "the embedding)",
                      path_.string(), parameter.name, safetensors::describe(parameter.shape)));
    }
    const Place& place = place_of(parameter.name);
    file_of(place).require(place.stored, parameter.shape);
  }
  std::vector<std::string> warnings;
  for (const auto& [name, place] : where_) {
    if (wanted.contains(name) || is_causal_mask(name)) continue;
    const std::string file = file_of(place).path().string();
    if (name.ends_with(".bias")) {
      throw Error(Cause::refused, fmt::format("{}: tensor \"{}\": biases aren't supported", file, shown(place.stored)));
    }
    warnings.push_back(fmt::format("{}: tensor \"{}\" is no part of the model and ignored", file, shown(place.stored)));
  }
  return warnings;
}

void ModelFolder::read(std::string_view name, const safetensors::Rectangle& block, Buffer into) const {
  const Place& place = place_of(name);
  file_of(place).read(*file_of(place).find(place.stored), block, into);
}

const safetensors::TensorInfo* ModelFolder::find(std::string_view name) const {
  const auto at = where_.find(name);
  return at == where_.end() ? nullptr : file_of(at->second).find(at->second.stored);
}

const ModelFolder::Place& ModelFolder::place_of(std::string_view name) const {
  const auto at = where_.find(name);
  if (at == where_.end()) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\" is missing", path_.string(), shown(name)));
  }
  return at->second;
}

}  // namespace tsprun::detail
