// Reads one field of two files.
#include "layers/text/end_tokens.h"

#include "layers/io/file.h"
#include "layers/io/json_object.h"
#include "layers/io/json_text.h"

#include <limits>

namespace tsprun::detail::text {

namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;
constexpr std::size_t kMostEnds = 1000;

bool is_token(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<Token>::max();
}

std::vector<Token> named_by(const std::filesystem::path& path) {
  constexpr const char* kField = "eos_token_id";
  const nlohmann::json tree = parse_json(file::read_text(path, kLargestFile, "a small JSON file"), path.string());
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
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::error_code error;
    if (!std::filesystem::exists(folder / name, error)) continue;
    if (std::vector<Token> ends = named_by(folder / name); !ends.empty()) return ends;
  }
  return {};
}

}  // namespace tsprun::detail::text
