// Scalings of rotary positions, by which a model that was trained on short texts reads longer ones.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail {

/// How the frequencies of rotary positions differ from theta^(−2i/d), pair i of d/2.
struct RopeScaling {
  enum class Kind : std::uint8_t {
    none,
    linear,  ///< all are divided by `factor`
    llama3   ///< Llama 3.1's: only those are whose waves are long, in tokens of the original context; a ramp lies between
  };
  Kind kind = Kind::none;
  double factor = 1;
  // llama3 alone: waves longer than original/low are divided, those shorter than original/high are kept.
  double low_frequency_factor = 0;
  double high_frequency_factor = 0;
  std::size_t original_positions = 0;

  bool operator==(const RopeScaling&) const = default;
};

/// Returns the angle by which a token's position turns one of a head's d/2 pairs, as transformers' modeling_rope_utils.py has it.
double rope_frequency(double theta, const RopeScaling& scaling, std::size_t head_dim, std::size_t pair);
/// Returns those of all pairs.
std::vector<double> rope_frequencies(double theta, const RopeScaling& scaling, std::size_t head_dim);

/// Base and scaling of rotary positions.
struct RopeFields {
  double theta;
  RopeScaling scaling;
};

class ConfigFields;

/// Reads them from a config.json: rope_theta and rope_scaling, or rope_parameters, as newer files have it. A file that doesn't
/// say the base has `usual_theta`. Throws Error(refused) for a scaling that isn't supported, for one of its fields that isn't
/// known, and where two fields contradict each other.
RopeFields read_rope(ConfigFields& fields, double usual_theta);

/// Writes them into a config.json, unless it says them already, in either form. A file without a scaling gets no such field.
void write_rope(nlohmann::json& object, const RopeFields& rope);

}  // namespace tsprun::detail
