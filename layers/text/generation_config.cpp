// Reads fields by name; what they don't have stays at the program's own defaults.
#include "layers/text/generation_config.h"

#include "layers/io/file.h"
#include "layers/io/json_object.h"
#include "layers/io/json_text.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>

namespace tsprun::detail::text {

namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;
constexpr std::size_t kMostEnds = 1000;
constexpr double kHottest = 1e6;
constexpr double kLeastPenalty = 1e-3;
constexpr double kMostPenalty = 1e3;
constexpr std::size_t kMostCandidates = std::size_t{1} << 31;

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
  JsonObject object(tree, path.string());
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
  const auto number = [&](const char* field, double low, double high) -> std::optional<double> {
    if (object.find(field) == nullptr) return {};
    return object.number(field, low, high);
  };
  if (object.find("do_sample") != nullptr) found.draws = object.flag("do_sample");
  found.temperature = number("temperature", 0, kHottest);
  found.top_p = number("top_p", 0, 1);
  found.repetition_penalty = number("repetition_penalty", kLeastPenalty, kMostPenalty);
  if (object.find("top_k") != nullptr) found.top_k = object.integer<std::size_t>("top_k", 0, kMostCandidates);
  // Values at which each changes nothing, as in transformers' GenerationConfig.
  struct Unheeded {
    const char* field;
    double without;
  };
  for (const auto& [field, without] : {Unheeded{"min_p", 0},
                                       {"typical_p", 1},
                                       {"epsilon_cutoff", 0},
                                       {"eta_cutoff", 0},
                                       {"num_beams", 1},
                                       {"no_repeat_ngram_size", 0},
                                       {"penalty_alpha", 0},
                                       {"encoder_repetition_penalty", 1},
                                       {"min_new_tokens", 0},
                                       {"min_length", 0}}) {
    const nlohmann::json* value = object.find(field);
    if (value != nullptr && value->is_number() && value->get<double>() != without)
      found.ignored.push_back(fmt::format("{} {}", field, value->dump()));
  }
  return found;
}

}  // namespace tsprun::detail::text
