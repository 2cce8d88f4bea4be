// What tests of configurations share.
#pragma once

#include "layers/io/config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tsprun::detail::test {

/// Reads an object as config.json.
inline LoadedConfig parse(const nlohmann::json& object) { return parse_config(object.dump(), "config.json"); }

/// Checks that what is written of a configuration is read as the same model.
inline void expect_read_back(const ModelConfig& config) {
  const LoadedConfig again = parse_config(hugging_face_json(config, "float32"), "again");
  EXPECT_TRUE(again.config.same_model(config)) << config.name;
  EXPECT_TRUE(again.warnings.empty());
}

}  // namespace tsprun::detail::test
