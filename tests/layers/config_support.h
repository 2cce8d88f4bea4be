// Helpers that tests of configurations share.
#pragma once

#include "layers/io/config.h"
#include "layers/parameters/parameters.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstddef>

namespace tsprun::detail::test {

/// Reads an object as config.json.
inline LoadedConfig parse(const nlohmann::json& object) { return parse_config(object.dump(), "config.json"); }

/// Checks that what is written of a configuration is read as the same model.
inline void expect_read_back(const ModelConfig& config) {
  const LoadedConfig again = parse_config(hugging_face_json(config, "float32"), "again");
  EXPECT_TRUE(again.config.same_model(config)) << config.name;
  EXPECT_TRUE(again.warnings.empty());
}

/// Checks that what is written of a file's model is read as the same model, with nothing kept of the file, and on top of it.
inline void expect_read_back(const nlohmann::json& object) {
  const ModelConfig config = parse(object).config;
  expect_read_back(config);
  const LoadedConfig again = parse_config(hugging_face_json(config, "float32", object.dump()), "on top");
  EXPECT_TRUE(again.config.same_model(config)) << config.name;
}

/// Returns the number of a model's elements.
inline std::size_t elements_of(const ModelConfig& config) {
  std::size_t elements = 0;
  for (const Parameter& parameter : model_parameters(config)) elements += parameter.elements();
  return elements;
}

}  // namespace tsprun::detail::test
