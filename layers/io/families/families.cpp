// The list of families.
#include "layers/io/families/families.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace tsprun::detail {

std::string_view ModelType::weight(ParameterRole role) const {
  const auto at = std::ranges::find(weights, role, &WeightName::role);
  return at == weights.end() ? std::string_view() : at->name;
}

std::span<const ModelType> model_types() {
  static const std::array all = {families::llama(),    families::gpt2(),    families::qwen2(),      families::qwen3(),
                                 families::mistral(),  families::smollm3(), families::granite(),    families::gemma(),
                                 families::gemma2(),   families::gemma3(),  families::gemma4(),     families::exaone4(),
                                 families::stablelm(), families::phi3(),    families::ministral3(), families::starcoder2(),
                                 families::glm4(),     families::cohere(),  families::cohere2(),    families::olmo2(),
                                 families::olmo3(),    families::phi()};
  return all;
}

const ModelType& model_type(std::string_view name) {
  const auto at = std::ranges::find(model_types(), name, &ModelType::name);
  if (at == model_types().end()) throw std::out_of_range("no model_type " + std::string(name));
  return *at;
}

}  // namespace tsprun::detail
