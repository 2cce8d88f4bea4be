// Opens shards, maps tensors to them, and checks that all parameters are there.
#include "layers/parameters/model_folder.h"

#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "layers/io/multi_modal.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

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

/// Parts of names that PyTorch's wrappers put into them: DistributedDataParallel, compile(), FSDP, checkpointed activations.
constexpr std::array<std::string_view, 4> kWrappers = {"module.", "_orig_mod.", "_fsdp_wrapped_module.",
                                                       "_checkpoint_wrapped_module."};
/// Returns whether a tensor's name is that of a part of such a model, without the prefix of the whole.
bool is_part(const ModelType& type, std::string_view name) {
  return !type.prefix.empty() && std::ranges::any_of(type.weights, [&](const WeightName& weight) {
    if (!weight.name.starts_with(type.prefix)) return false;
    const std::string_view part = weight.name.substr(type.prefix.size());
    return name.starts_with(part.substr(0, part.find('.') + 1));
  });
}

/// Returns the name in the model (ModelType::weights) of a tensor that is stored under another one, or its own.
std::string name_in_model(std::string_view stored) {
  std::string name;
  while (!stored.empty()) {
    const std::string_view part = stored.substr(0, std::min(stored.find('.'), stored.size() - 1) + 1);
    if (std::ranges::find(kWrappers, part) == kWrappers.end()) name += part;
    stored.remove_prefix(part.size());
  }
  name = name_in_text_model(name);
  for (const ModelType& type : model_types()) {
    if (!type.exported_prefix.empty() && name.starts_with(type.exported_prefix)) return name.substr(type.exported_prefix.size());
  }
  const auto headless = std::ranges::find_if(model_types(), [&](const ModelType& type) { return is_part(type, name); });
  return headless == model_types().end() ? name : std::string(headless->prefix) + name;
}

/// Returns whether these are all of a model whose head is its embedding.
bool are_tied(std::span<const Parameter> parameters) {
  const auto has = [&](ParameterRole role) { return std::ranges::find(parameters, role, &Parameter::role) != parameters.end(); };
  return has(ParameterRole::embedding) && has(ParameterRole::final_norm) && !has(ParameterRole::head);
}

/// Returns the names of heads in all families.
std::set<std::string_view> head_names() {
  std::set<std::string_view> names;
  for (const ModelType& type : model_types()) names.insert(type.weight(ParameterRole::head));
  return names;
}

/// Returns whether a tensor is one that files of some family hold and nothing needs.
bool is_harmless(std::string_view name) {
  const auto fits = [&](std::string_view pattern) {
    const std::size_t hole = pattern.find("{}");
    const std::string_view before = pattern.substr(0, hole);
    const std::string_view after = pattern.substr(hole + 2);
    if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) return false;
    return name.substr(before.size(), name.size() - before.size() - after.size()).find_first_not_of("0123456789") ==
           std::string_view::npos;
  };
  return std::ranges::any_of(model_types(),
                             [&](const ModelType& type) { return std::ranges::any_of(type.harmless_weights, fits); });
}

/// Returns names of what layers that take keys and values of others don't have, and which their files hold all the same.
std::set<std::string> names_of_borrowers(std::span<const Parameter> parameters) {
  std::set<std::size_t> borrowers;
  for (const Parameter& each : parameters) {
    if (each.role == ParameterRole::query) borrowers.insert(each.layer);
  }
  for (const Parameter& each : parameters) {
    if (each.role == ParameterRole::key) borrowers.erase(each.layer);
  }
  std::set<std::string> names;
  for (const ParameterRole role :
       {ParameterRole::key, ParameterRole::key_bias, ParameterRole::value, ParameterRole::value_bias, ParameterRole::key_norm}) {
    const auto lent = std::ranges::find(parameters, role, &Parameter::role);
    if (lent == parameters.end()) continue;
    const std::string number = fmt::format(".{}.", lent->layer);
    const std::size_t at = lent->name.find(number);
    for (const std::size_t layer : borrowers)
      names.insert(fmt::format("{}.{}.{}", lent->name.substr(0, at), layer, lent->name.substr(at + number.size())));
  }
  return names;
}

}  // namespace

ModelFolder::ModelFolder(const std::filesystem::path& folder_or_file) : path_(folder_or_file) {
  std::error_code error;
  const std::filesystem::path single = std::filesystem::is_directory(path_, error) ? path_ / kSingle : path_;
  if (single == path_ || std::filesystem::exists(single, error)) {
    files_.emplace_back(single);
    for (const safetensors::TensorInfo& tensor : files_.front().tensors()) where_.emplace(tensor.name, Place{0, tensor.name});
    use_names_of_the_model();
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
  use_names_of_the_model();
}

std::vector<std::filesystem::path> ModelFolder::paths() const {
  std::vector<std::filesystem::path> paths;
  if (!index_.empty()) paths.push_back(index_);
  for (const safetensors::File& file : files_) paths.push_back(file.path());
  return paths;
}

void ModelFolder::use_names_of_the_model() {
  std::map<std::string, Place, std::less<>> names;
  for (auto& [stored, place] : where_) {
    const auto [at, is_new] = names.emplace(name_in_model(stored), std::move(place));
    if (is_new) continue;
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\" is given twice, as \"{}\" and as \"{}\"", path_.string(),
                                            shown(at->first), shown(at->second.stored), shown(stored)));
  }
  where_ = std::move(names);
}

bool ModelFolder::hold_the_same(std::string_view one, std::string_view other) const {
  const safetensors::TensorInfo& a = *find(one);
  const safetensors::TensorInfo& b = *find(other);
  if (a.shape != b.shape) return false;
  constexpr std::size_t kPiece = std::size_t{1} << 17;  // elements
  const std::size_t columns = a.columns();
  const std::size_t rows = std::max<std::size_t>(kPiece / std::max<std::size_t>(columns, 1), 1);
  std::vector<double> of_one;
  std::vector<double> of_other;
  for (std::size_t row = 0; row < a.rows(); row += rows) {
    const safetensors::Rectangle block{row, std::min(rows, a.rows() - row), 0, columns};
    for (const auto& [name, values] : {std::pair{one, &of_one}, {other, &of_other}}) {
      values->resize(block.rows * columns);
      read(name, block, std::span(*values));
    }
    if (std::memcmp(of_one.data(), of_other.data(), of_one.size() * sizeof(double)) != 0) return false;
  }
  return true;
}

void ModelFolder::check_tied(std::span<const Parameter> parameters) const {
  const std::string_view embedding = std::ranges::find(parameters, ParameterRole::embedding, &Parameter::role)->name;
  for (const std::string_view head : head_names()) {
    if (find(head) == nullptr || hold_the_same(embedding, head)) continue;
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\" isn't the embedding \"{}\", but the config ties them; try "
                                            "\"tie_word_embeddings\": false in the config, or leave the tensor out of the file",
                                            path_.string(), head, embedding));
  }
}

std::string ModelFolder::check(std::span<const Parameter> parameters, bool sees_images) const {
  std::set<std::string_view> wanted;
  for (const Parameter& parameter : parameters) {
    wanted.insert(parameter.name);
    if (parameter.role == ParameterRole::head && find(parameter.name) == nullptr) {
      throw Error(
          Cause::refused,
          fmt::format("{}: tensor \"{}\" is missing; expected {} (or \"tie_word_embeddings\": true in the config, if the head is "
                      "the embedding; a model that was saved without its head can't predict)",
                      path_.string(), parameter.name, safetensors::describe(parameter.shape)));
    }
    const Place& place = place_of(parameter.name);
    file_of(place).require(place.stored, parameter.shape);
  }
  const bool tied = are_tied(parameters);
  if (tied) check_tied(parameters);
  const std::set<std::string> of_borrowers = names_of_borrowers(parameters);
  constexpr std::size_t kMostNamed = 3;
  std::size_t unused = 0;
  std::string named;
  for (const auto& [name, place] : where_) {
    if (wanted.contains(name) || is_harmless(name) || (sees_images && is_of_images(name)) ||
        (tied && head_names().contains(name)) || of_borrowers.contains(name))
      continue;
    if (name.ends_with(".bias")) {
      throw Error(Cause::refused,
                  fmt::format("{}: tensor \"{}\": biases aren't supported", file_of(place).path().string(), shown(place.stored)));
    }
    if (++unused <= kMostNamed) named += fmt::format("{}\"{}\"", unused == 1 ? "" : ", ", shown(place.stored));
  }
  if (unused == 0) return {};
  if (unused == 1) return fmt::format("{}: tensor {} is no part of what is computed and ignored", path_.string(), named);
  if (unused > kMostNamed) named += fmt::format(" and {} more", unused - kMostNamed);
  return fmt::format("{}: {} tensors are no part of what is computed and ignored: {}", path_.string(), unused, named);
}

void ModelFolder::read(std::string_view name, const safetensors::Rectangle& block, Buffer into) const {
  const Place& place = place_of(name);
  file_of(place).read(*file_of(place).find(place.stored), block, into);
}

file::Range ModelFolder::range_of(std::string_view name, const safetensors::Rectangle& block) const {
  const Place& place = place_of(name);
  return file_of(place).range_of(*file_of(place).find(place.stored), block);
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
