// Finds text models within config.json, and their tensors. Sources: huggingface/transformers, configurations and names of tensors
// of the families that ModelType::within names.
#include "layers/io/multi_modal.h"

#include "layers/io/config_fields.h"
#include "layers/io/model_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace tsprun::detail {

using nlohmann::json;

namespace {

constexpr std::string_view kTextConfig = "text_config";
/// Fields that stand beside the text model's object and mean it, too.
constexpr std::string_view kShared[] = {"tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id"};

/// Beginnings of tensors' names, and what stands for them in the text model's own folder.
constexpr std::pair<std::string_view, std::string_view> kTextNames[] = {
    {"language_model.model.", "model."}, {"language_model.lm_head.", "lm_head."}, {"model.language_model.", "model."}};
constexpr std::string_view kImageNames[] = {
    "vision_tower.",      "multi_modal_projector.", "model.vision_tower.",         "model.embed_vision.",
    "model.audio_tower.", "model.embed_audio.",     "model.multi_modal_projector."};

/// Returns the family of the text model; the first of those within such models if text_config doesn't say it.
const ModelType& text_type(ConfigFields& inner, std::string_view name) {
  const json* stated = inner.find("model_type");
  std::string expected;
  for (const ModelType& type : model_types()) {
    if (type.within.name != name) continue;
    if (stated == nullptr || *stated == type.name) return type;
    expected += fmt::format("{}\"{}\"", expected.empty() ? "" : " or ", type.name);
  }
  inner.refuse("model_type", expected + " (no other text model is supported)");
}

}  // namespace

TextModel text_model(json file, const std::string& where) {
  const auto stated = file.is_object() ? file.find("model_type") : file.end();
  const auto first = std::ranges::find_if(model_types(), [&](const ModelType& type) {
    return stated != file.end() && !type.within.name.empty() && *stated == type.within.name;
  });
  if (first == model_types().end()) return {std::move(file), {}, {}};
  const MultiModal& within = first->within;
  ConfigFields outer(file, where);
  outer.require_architecture(std::array{within.architecture});
  if (outer.find("quantization_config") != nullptr) outer.refuse("quantization_config", "null (nothing else is supported)");
  const json* text = outer.find(kTextConfig);
  if (text == nullptr || !text->is_object()) outer.refuse(kTextConfig, "an object with the text model's fields");
  TextModel found{
      *text, fmt::format("{}.", kTextConfig),
      fmt::format("{}: a model of model_type \"{}\" sees images, too; its text model alone is computed", where, within.name)};
  ConfigFields inner(*text, where, found.path);
  const ModelType& type = text_type(inner, within.name);
  found.config["model_type"] = type.name;
  const json usual = json::parse(type.within.usual);
  for (const auto& [field, value] : usual.items()) found.config.emplace(field, value);
  for (const std::string_view field : kShared) {
    if (const json* value = outer.find(field)) found.config.emplace(field, *value);
  }
  constexpr std::string_view kEnds = "eos_token_id";  // generation takes the outer ones, too
  if (const json* ends = outer.find(kEnds)) found.config[kEnds] = *ends;
  return found;
}

std::string name_in_text_model(std::string_view stored) {
  for (const auto& [before, after] : kTextNames) {
    if (stored.starts_with(before)) return fmt::format("{}{}", after, stored.substr(before.size()));
  }
  return std::string(stored);
}

bool is_of_images(std::string_view name) {
  return std::ranges::any_of(kImageNames, [&](std::string_view before) { return name.starts_with(before); });
}

}  // namespace tsprun::detail
