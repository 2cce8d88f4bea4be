// Computes frequencies, and reads and writes what config.json says of them.
#include "layers/io/rope_scaling.h"

#include "layers/io/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <string_view>

namespace tsprun::detail {

namespace {

using nlohmann::json;
using RopeKind = RopeScaling::Kind;

/// Fields of config.json that hold an object of rope scaling.
constexpr std::array<std::string_view, 2> kRopeObjects = {"rope_scaling", "rope_parameters"};
constexpr std::array<std::string_view, 2> kRopeTypeNames = {"rope_type", "type"};

/// A kind of scaling: its name, and the fields that it must have.
struct RopeKindRow {
  RopeKind kind;
  std::string_view name;
  std::span<const std::string_view> fields;
};
constexpr std::string_view kLinearRopeFields[] = {"factor"};
constexpr std::string_view kLlama3RopeFields[] = {"factor", "low_freq_factor", "high_freq_factor",
                                                  "original_max_position_embeddings"};
constexpr RopeKindRow kRopeKinds[] = {{RopeKind::none, "default", {}},
                                      {RopeKind::linear, "linear", kLinearRopeFields},
                                      {RopeKind::llama3, "llama3", kLlama3RopeFields}};

/// Returns the kind that an object states under one or both of two names.
const RopeKindRow& read_kind(ConfigFields& inner) {
  const RopeKindRow* kind = nullptr;
  for (const std::string_view field : kRopeTypeNames) {
    const json* value = inner.find(field);
    if (value == nullptr) continue;
    const auto* const row = std::ranges::find_if(kRopeKinds, [&](const RopeKindRow& each) { return *value == each.name; });
    if (row == std::end(kRopeKinds))
      inner.refuse(field, R"("default", "linear" or "llama3" (no other rope scaling is supported))");
    if (kind != nullptr && kind != row) inner.refuse(field, fmt::format("\"{}\" as {} says", kind->name, kRopeTypeNames[0]));
    kind = row;
  }
  return kind == nullptr ? kRopeKinds[0] : *kind;
}

RopeScaling read_scaling(ConfigFields& inner, const json& object) {
  const RopeKindRow& row = read_kind(inner);
  for (const auto& [key, value] : object.items()) {
    const bool known = std::ranges::find(kRopeTypeNames, key) != kRopeTypeNames.end() || key == "rope_theta" || value.is_null() ||
                       ((key == "partial_rotary_factor" || (key == "factor" && row.kind == RopeKind::none)) && value == 1) ||
                       std::ranges::find(row.fields, key) != row.fields.end();
    if (!known) inner.refuse(key, fmt::format("no such field in a rope scaling of type \"{}\"", row.name));
  }
  RopeScaling scaling{.kind = row.kind};
  if (row.kind == RopeKind::none) return scaling;
  const auto positive = [&](std::string_view field) {
    return inner.number_that([](double value) { return std::isfinite(value) && value > 0; }, field, "a positive finite number");
  };
  scaling.factor = positive("factor");
  if (row.kind == RopeKind::llama3) {
    scaling.low_frequency_factor = positive("low_freq_factor");
    scaling.high_frequency_factor = positive("high_freq_factor");
    scaling.original_positions = inner.size("original_max_position_embeddings");
    if (scaling.high_frequency_factor <= scaling.low_frequency_factor)
      inner.refuse("high_freq_factor", fmt::format("a number above low_freq_factor {}", scaling.low_frequency_factor));
  }
  return scaling.kind == RopeKind::linear && scaling.factor == 1 ? RopeScaling() : scaling;
}

/// Returns the name of the field of `object` that holds an object of rope scaling with this field; empty if there is none.
std::string_view object_with(const json& object, std::string_view inner) {
  for (const std::string_view field : kRopeObjects) {
    const auto at = object.find(field);
    if (at != object.end() && at->is_object() && at->contains(inner)) return field;
  }
  return {};
}

}  // namespace

double rope_frequency(double theta, const RopeScaling& scaling, std::size_t head_dim, std::size_t pair) {
  const double frequency = std::pow(theta, -2 * static_cast<double>(pair) / static_cast<double>(head_dim));
  if (scaling.kind == RopeKind::linear) return frequency / scaling.factor;
  if (scaling.kind != RopeKind::llama3) return frequency;
  const double waves = static_cast<double>(scaling.original_positions) * frequency / (2 * std::numbers::pi);
  const double low = scaling.low_frequency_factor;
  const double kept = std::clamp((waves - low) / (scaling.high_frequency_factor - low), 0.0, 1.0);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

std::vector<double> rope_frequencies(double theta, const RopeScaling& scaling, std::size_t head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = rope_frequency(theta, scaling, head_dim, i);
  return frequencies;
}

RopeFields read_rope(ConfigFields& fields, double usual_theta) {
  RopeFields rope{.theta = fields.positive("rope_theta", usual_theta), .scaling = {}};
  std::string_view theta_said_by = fields.find("rope_theta") != nullptr ? "rope_theta" : "";  // in which field it was found
  std::string_view scaling_said_by;
  for (const std::string_view field : kRopeObjects) {
    const json* object = fields.find(field);
    if (object == nullptr) continue;
    if (!object->is_object()) fields.refuse(field, "null or an object");
    ConfigFields inner(*object, fields.where(), fmt::format("{}.", field));
    const RopeScaling scaling = read_scaling(inner, *object);
    // Which of two objects counts depends on transformers' version.
    if (!scaling_said_by.empty() && scaling != rope.scaling) fields.refuse(field, fmt::format("the same as {}", scaling_said_by));
    rope.scaling = scaling;
    scaling_said_by = field;
    const json* original = fields.find("original_max_position_embeddings");
    if (scaling.kind == RopeKind::llama3 && original != nullptr && *original != scaling.original_positions)
      fields.refuse("original_max_position_embeddings", fmt::format("{} as {} says", scaling.original_positions, field));
    const double theta = inner.positive("rope_theta", rope.theta);
    if (!theta_said_by.empty() && theta != rope.theta)
      inner.refuse("rope_theta", fmt::format("{} as {} says", rope.theta, theta_said_by));
    if (inner.find("rope_theta") != nullptr) theta_said_by = field;
    rope.theta = theta;
  }
  return rope;
}

void write_rope(json& object, const RopeFields& rope) {
  const auto missing = [&object](std::string_view field) {
    const auto at = object.find(field);
    return at == object.end() || at->is_null();
  };
  if (object_with(object, "rope_theta").empty() && missing("rope_theta")) object["rope_theta"] = rope.theta;
  if (rope.scaling.kind == RopeKind::none || !object_with(object, "factor").empty()) return;
  json scaling = {{"rope_type", kRopeKinds[static_cast<std::size_t>(rope.scaling.kind)].name}, {"factor", rope.scaling.factor}};
  if (rope.scaling.kind == RopeKind::llama3) {
    scaling["low_freq_factor"] = rope.scaling.low_frequency_factor;
    scaling["high_freq_factor"] = rope.scaling.high_frequency_factor;
    scaling["original_max_position_embeddings"] = rope.scaling.original_positions;
  }
  object["rope_scaling"] = scaling;
}

}  // namespace tsprun::detail
