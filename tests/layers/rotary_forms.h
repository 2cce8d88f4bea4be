// The forms of rotary positions that families have, on models that no family is.
#pragma once

#include "layers/io/config.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test {

/// Returns a model with each form, and what it is called. The original context of scalings is `original` tokens; `config` has 8
/// dims a head and no scaling.
inline std::vector<std::pair<std::string, ModelConfig>> rotary_forms(const ModelConfig& config, std::size_t original) {
  using Kind = RopeScaling::Kind;
  std::vector<std::pair<std::string, ModelConfig>> all;
  const auto with = [&](const char* name, double fraction, bool interleaved, const RopeScaling& scaling) {
    ModelConfig& form = all.emplace_back(name, config).second;
    form.rope_theta = 50;
    form.rotary_fraction = fraction;
    form.interleaved_rotary = interleaved;
    form.rope_scaling = scaling;
  };
  const RopeScaling yarn{.kind = Kind::yarn,
                         .factor = 4,
                         .original_positions = original,
                         .beta_fast = 1.5,
                         .beta_slow = 0.25,
                         .attention_factor = 1.125};
  RopeScaling untruncated = yarn;
  untruncated.truncate = false;
  RopeScaling growing = yarn;
  growing.original_positions = 3;
  growing.query_growth = 0.5;
  with("a part of a head", 0.5, false, {});
  with("neighbours", 1, true, {});
  with("neighbours in a part of a head", 0.75, true, {});
  with("linear", 0.75, false, {.kind = Kind::linear, .factor = 2.5});
  with("llama3", 1, true,
       {.kind = Kind::llama3,
        .factor = 4,
        .low_frequency_factor = 0.5,
        .high_frequency_factor = 2,
        .original_positions = original});
  with("yarn", 1, false, yarn);
  with("yarn with a ramp between pairs", 1, true, untruncated);
  with("yarn with queries that grow", 1, false, growing);
  with("longrope", 0.75, false,
       {.kind = Kind::longrope,
        .original_positions = original,
        .attention_factor = 1.25,
        .short_factors = {1, 1.125, 1.5},
        .long_factors = {1.5, 3, 7}});
  return all;
}

}  // namespace tsprun::detail::test
