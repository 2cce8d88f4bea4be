// Reads fields by name; what they don't have stays at the program's own defaults.
#include "layers/text/generation_config.h"

#include "layers/io/file.h"
#include "layers/io/json_object.h"
#include "layers/io/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace tsprun::detail::text {

namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;
constexpr std::size_t kMostEnds = 1000;
constexpr double kMostCandidates = 1 << 30;

constexpr const char* kTextModel = "text_config";
constexpr const char* kFile = "generation_config.json";

nlohmann::json tree_of(const std::filesystem::path& path) {
  return parse_json(file::read_text(path, kLargestFile, "a small JSON file"), path.string());
}

bool is_token(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<Token>::max();
}

std::vector<Token> named_by(const std::filesystem::path& path) {
  constexpr const char* kField = "eos_token_id";
  const nlohmann::json tree = tree_of(path);
  JsonObject whole(tree, path.string());
  // In a folder of a model that sees images the text model's object may have it.
  const bool outside = whole.find(kField) != nullptr || whole.find(kTextModel) == nullptr;
  JsonObject object = outside ? whole : whole.inside(kTextModel);
  const nlohmann::json* value = object.find(kField);
  if (value == nullptr) return {};
  if (is_token(*value)) return {value->get<Token>()};
  if (!value->is_array() || value->size() > kMostEnds) object.refuse(kField, "a token id or a list of them");
  std::vector<Token> ends;
  for (std::size_t i = 0; i < value->size(); ++i) {
    if (!is_token((*value)[i])) object.refuse_entry(kField, i, "a token id");
    ends.push_back((*value)[i].get<Token>());
  }
  return ends;
}

}  // namespace

std::vector<Token> end_tokens(const std::filesystem::path& folder) {
  for (const char* name : {kFile, "config.json"}) {
    if (!file::exists(folder / name)) continue;
    if (std::vector<Token> ends = named_by(folder / name); !ends.empty()) return ends;
  }
  return {};
}

RecommendedSampling recommended_sampling(const std::filesystem::path& folder) {
  RecommendedSampling found;
  const std::filesystem::path path = folder / kFile;
  if (!file::exists(path)) return found;
  const nlohmann::json tree = tree_of(path);
  JsonObject object(tree, path.string());
  const auto ignore = [&](const char* field, const nlohmann::json& value) {
    found.ignored.push_back(fmt::format("{} {}", field, shown_value(value)));
  };
  const auto number = [&](const char* field, const auto& fits) -> std::optional<double> {
    const nlohmann::json* value = object.find(field);
    if (value == nullptr) return {};
    if (value->is_number() && fits(value->get<double>())) return value->get<double>();
    ignore(field, *value);
    return {};
  };
  if (const nlohmann::json* draws = object.find("do_sample")) {
    if (draws->is_boolean()) found.draws = draws->get<bool>();
    else ignore("do_sample", *draws);
  }
  found.temperature = number("temperature", [](double value) { return value >= 0 && value <= kHottest; });
  found.top_p = number("top_p", [](double value) { return value >= 0 && value <= 1; });
  found.repetition_penalty = number("repetition_penalty", [](double value) { return value > 0 && value <= kMostPenalty; });
  const auto count = [](double value) { return value >= -1 && value <= kMostCandidates && value == std::floor(value); };
  if (const auto top_k = number("top_k", count))  // -1: all, as vLLM has it
    found.top_k = static_cast<std::size_t>(std::max(*top_k, 0.0));
  if (found.top_p == 0) {  // the likeliest token alone
    found.draws = false;
    found.top_p.reset();
  }
  // Fields of transformers' GenerationConfig, and of vLLM's, with the values at which each changes nothing; null does, too.
  struct Unheeded {
    const char* field;
    std::optional<double> without;
  };
  for (const auto& [field, without] :
       {Unheeded{"min_p", 0},        {"typical_p", 1},         {"epsilon_cutoff", 0},
        {"eta_cutoff", 0},           {"num_beams", 1},         {"no_repeat_ngram_size", 0},
        {"penalty_alpha", 0},        {"guidance_scale", 1},    {"encoder_repetition_penalty", 1},
        {"presence_penalty", 0},     {"frequency_penalty", 0}, {"min_new_tokens", 0},
        {"min_length", 0},           {"suppress_tokens", {}},  {"begin_suppress_tokens", {}},
        {"bad_words_ids", {}},       {"sequence_bias", {}},    {"forced_bos_token_id", {}},
        {"forced_eos_token_id", {}}, {"stop_strings", {}},     {"exponential_decay_length_penalty", {}}}) {
    const nlohmann::json* value = object.find(field);
    if (value == nullptr || (value->is_structured() && value->empty())) continue;
    if (!without || !value->is_number() || value->get<double>() != *without) ignore(field, *value);
  }
  return found;
}

}  // namespace tsprun::detail::text
