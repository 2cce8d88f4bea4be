// Every family names the weights that its layers have.
#include "layers/io/config.h"
#include "layers/parameters/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tsprun::detail::families_config_test {
namespace {

TEST(EachFamily, NamesTheWeightsOfAllThatItsLayersCompute) {
  for (const ModelType& type : model_types()) {
    SCOPED_TRACE(type.name);
    EXPECT_TRUE(std::ranges::is_sorted(type.weights, {}, &WeightName::role));
    ModelConfig config = find_config("nano").config;
    config.become(type);
    const bool in_one = !type.weight(ParameterRole::query_key_value).empty();
    const bool mlp_in_one = !type.weight(ParameterRole::gate_up).empty();
    for (auto role = ParameterRole::embedding; role <= ParameterRole::head_bias;
         role = static_cast<ParameterRole>(static_cast<int>(role) + 1)) {
      const bool apart = role >= ParameterRole::query && role <= ParameterRole::value_bias;
      const bool together = role == ParameterRole::query_key_value || role == ParameterRole::query_key_value_bias;
      const bool mlp_apart = role == ParameterRole::gate || role == ParameterRole::up;
      const bool mlp_together = role == ParameterRole::gate_up;
      if ((in_one ? apart : together) || (mlp_in_one ? mlp_apart : mlp_together) ||
          elements_of(config, role, 0, config.layers) == 0)
        continue;
      EXPECT_FALSE(type.weight(role).empty()) << "role " << static_cast<int>(role);
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::families_config_test
