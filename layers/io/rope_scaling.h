// Scalings of rotary positions, by which a model that was trained on short texts reads longer ones.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::detail {

/// How the frequencies of rotary positions differ from theta^(−2i/r), pair i of r/2, r being the dims of a head that turn.
struct RopeScaling {
  enum class Kind : std::uint8_t {
    none,
    linear,    ///< all are divided by `factor`
    llama3,    ///< Llama 3.1's: only those are whose waves are long, in tokens of the original context; a ramp lies between
    yarn,      ///< likewise, with a ramp over the pairs (Peng et al., arXiv 2309.00071); all cosines and sines are multiplied
    longrope,  ///< each is divided by a factor of its own (Ding et al., arXiv 2402.13753); all cosines and sines are multiplied
    proportional  ///< all are divided by `factor`, and those of the last pairs are 0: only a part of the head turns
  };
  Kind kind = Kind::none;
  double factor = 1;  ///< of all but longrope
  // llama3 alone: waves longer than original/low are divided, those shorter than original/high are kept.
  double low_frequency_factor = 0;
  double high_frequency_factor = 0;
  std::size_t original_positions = 0;  ///< of llama3, yarn, longrope
  // yarn alone: pairs that turn more than beta_fast times in the original context are kept, those that turn less than beta_slow
  // times are divided.
  double beta_fast = 0;
  double beta_slow = 0;
  bool truncate = true;  ///< the ramp between them begins and ends at whole pairs
  /// β of a factor 1 + β·ln(1 + ⌊position/original⌋) by which q is multiplied, besides; yarn alone.
  double query_growth = 0;
  double attention_factor = 1;  ///< of yarn and longrope: multiplies cosines and sines
  // longrope alone, r/2 each: sequences of more than the original positions take the long ones.
  std::vector<double> short_factors{};
  std::vector<double> long_factors{};
  double turned_part = 1;  ///< of proportional alone: the part of the pairs, from the first on, whose frequency isn't 0

  bool operator==(const RopeScaling&) const = default;
};

/// Returns the angle by which a token's position turns one of r/2 pairs, as transformers' modeling_rope_utils.py has it.
/// `longest`: tokens of the longest sequence of the run, by which longrope chooses its factors.
double rope_frequency(double theta, const RopeScaling& scaling, std::size_t dims, std::size_t pair, std::size_t longest = 0);
/// Returns those of all pairs.
std::vector<double> rope_frequencies(double theta, const RopeScaling& scaling, std::size_t dims, std::size_t longest = 0);

class ConfigFields;
struct ModelConfig;

/// Reads what a config.json says of rotary positions into a configuration that has its family and sizes: base, scaling, and the
/// part of a head that turns. They stand in rope_theta, rope_scaling and fields beside them, or in rope_parameters, as newer
/// files have it. Throws Error(refused) for a scaling that isn't supported, for one of its fields that isn't known, and where two
/// fields contradict each other.
void read_rope(ConfigFields& fields, ModelConfig& config);

/// Writes them into a config.json, unless it says them already, in either form. A file without a scaling gets no such field.
void write_rope(nlohmann::json& object, const ModelConfig& config);

}  // namespace tsprun::detail
