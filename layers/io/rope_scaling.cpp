// Reads and writes what config.json says of rotary positions.
#include "layers/io/rope_scaling.h"

#include "layers/io/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail {

namespace {

using nlohmann::json;
using RopeKind = RopeScaling::Kind;

/// Fields of config.json that hold an object of rope scaling. The second may hold one for each kind of layers instead.
constexpr std::array<std::string_view, 2> kRopeObjects = {"rope_scaling", "rope_parameters"};
constexpr std::string_view kFullKind = "full_attention";
constexpr std::string_view kWindowKind = "sliding_attention";
constexpr std::array<std::string_view, 2> kRopeTypeNames = {"rope_type", "type"};

constexpr std::string_view kOriginal = "original_max_position_embeddings";
constexpr std::string_view kFraction = "partial_rotary_factor";
constexpr std::string_view kGrowth = "llama_4_scaling_beta";

/// A kind of scaling: its name, and the fields that it may have.
struct RopeKindRow {
  RopeKind kind;
  std::string_view name;
  std::span<const std::string_view> fields;
};
constexpr std::string_view kLinearRopeFields[] = {"factor"};
constexpr std::string_view kLlama3RopeFields[] = {"factor", "low_freq_factor", "high_freq_factor", kOriginal};
constexpr std::string_view kYarnRopeFields[] = {"factor", "attention_factor", "beta_fast", "beta_slow",
                                                "mscale", "mscale_all_dim",   "truncate",  kOriginal};
constexpr std::string_view kLongRopeFields[] = {"factor", "attention_factor", "short_factor", "long_factor", kOriginal};
constexpr RopeKindRow kRopeKinds[] = {{RopeKind::none, "default", {}},
                                      {RopeKind::linear, "linear", kLinearRopeFields},
                                      {RopeKind::llama3, "llama3", kLlama3RopeFields},
                                      {RopeKind::yarn, "yarn", kYarnRopeFields},
                                      {RopeKind::proportional, "proportional", kLinearRopeFields}};
constexpr std::size_t kRopeKindsOfAll = 4;  // the first ones; the others some families have
/// Kinds of families whose scaling is longrope; it had other names at first.
constexpr RopeKindRow kLongRopeKinds[] = {{RopeKind::none, "default", {}},
                                          {RopeKind::longrope, "longrope", kLongRopeFields},
                                          {RopeKind::longrope, "su", kLongRopeFields},
                                          {RopeKind::longrope, "yarn", kLongRopeFields}};

std::span<const RopeKindRow> kinds_of(const ModelType& type) {
  if (type.original_positions > 0) return kLongRopeKinds;
  return std::span(kRopeKinds).first(type.rope_by_kinds ? std::size(kRopeKinds) : kRopeKindsOfAll);
}

/// Returns the kind that an object states under one or both of two names.
const RopeKindRow& read_kind(ConfigFields& inner, std::span<const RopeKindRow> kinds) {
  const RopeKindRow* kind = nullptr;
  for (const std::string_view field : kRopeTypeNames) {
    const json* value = inner.find(field);
    if (value == nullptr) continue;
    const auto row = std::ranges::find_if(kinds, [&](const RopeKindRow& each) { return *value == each.name; });
    if (row == kinds.end()) {
      std::string names;
      for (const RopeKindRow& each : kinds)
        names += fmt::format("{}\"{}\"", &each == &kinds.front() ? "" : &each == &kinds.back() ? " or " : ", ", each.name);
      inner.refuse(field, names + " (no other rope scaling is supported)");
    }
    if (kind != nullptr && kind->kind != row->kind)
      inner.refuse(field, fmt::format("\"{}\" as {} says", kind->name, kRopeTypeNames[0]));
    kind = &*row;
  }
  return kind == nullptr ? kinds.front() : *kind;
}

double positive(ConfigFields& inner, std::string_view field, std::optional<double> usual = {}) {
  return inner.number_that([](double value) { return std::isfinite(value) && value > 0; }, field, "a positive finite number",
                           usual);
}

/// Returns the factor that yarn's authors found best, with a multiplier that came later.
double yarn_attention(double factor, double multiplier = 1) { return factor <= 1 ? 1 : 0.1 * multiplier * std::log(factor) + 1; }

void read_yarn(ConfigFields& inner, const ModelConfig& config, RopeScaling& scaling) {
  scaling.beta_fast = positive(inner, "beta_fast", 32);
  scaling.beta_slow = positive(inner, "beta_slow", 1);
  scaling.truncate = inner.flag("truncate", true);
  const auto multiplier = [&](std::string_view field) {
    return inner.number_that([](double value) { return std::isfinite(value) && value >= 0; }, field,
                             "a finite number, at least 0", 0);
  };
  const double multiplied = multiplier("mscale");
  const double divided = multiplier("mscale_all_dim");
  const double usual = multiplied > 0 && divided > 0
                           ? yarn_attention(scaling.factor, multiplied) / yarn_attention(scaling.factor, divided)
                           : yarn_attention(scaling.factor);
  scaling.attention_factor = positive(inner, "attention_factor", usual);
  if (!config.type->query_growth) return;
  scaling.query_growth = inner.number_that([](double value) { return std::isfinite(value) && value >= 0; }, kGrowth,
                                           "a finite number, at least 0", 0);
  inner.find("max_position_embeddings");  // for tokenizers
}

/// Returns longrope's factor on cosines and sines, where files don't say it.
double longrope_attention(const ModelConfig& config, std::size_t original) {
  const double factor = static_cast<double>(config.max_positions) / static_cast<double>(original);
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
}

std::vector<double> read_factors(ConfigFields& inner, const json& object, std::string_view field, std::size_t pairs) {
  inner.entries(field, pairs, pairs);
  std::vector<double> factors;
  for (const json& each : object.at(std::string(field))) {
    if (!each.is_number() || !std::isfinite(each.get<double>()) || each.get<double>() <= 0)
      inner.refuse_entry(field, factors.size(), "a positive finite number");
    factors.push_back(each.get<double>());
  }
  return factors;
}

void read_longrope(ConfigFields& inner, const json& object, const ModelConfig& config, RopeScaling& scaling) {
  const std::size_t pairs = config.rotary_dims({}) / 2;
  scaling.short_factors = read_factors(inner, object, "short_factor", pairs);
  scaling.long_factors = read_factors(inner, object, "long_factor", pairs);
  const double factor = static_cast<double>(config.max_positions) / static_cast<double>(scaling.original_positions);
  if (positive(inner, "factor", factor) != factor)
    inner.refuse("factor", fmt::format("{}, the positions over the original ones, or no such field", factor));
  scaling.attention_factor = positive(inner, "attention_factor", longrope_attention(config, scaling.original_positions));
}

/// `original`: the original context as a field beside the object says, if one does.
RopeScaling read_scaling(ConfigFields& inner, const json& object, const ModelConfig& config,
                         std::optional<std::size_t> original) {
  const RopeKindRow& row = read_kind(inner, kinds_of(*config.type));
  const bool grows = config.type->query_growth && row.kind == RopeKind::yarn;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) inner.refuse(key, "no rotary positions by kinds of layers (such models have one kind)");
    const bool known = std::ranges::find(kRopeTypeNames, key) != kRopeTypeNames.end() || key == "rope_theta" ||
                       key == kFraction || value.is_null() || (key == "factor" && row.kind == RopeKind::none && value == 1) ||
                       (grows && (key == kGrowth || key == "max_position_embeddings")) ||
                       std::ranges::find(row.fields, key) != row.fields.end();
    if (!known) inner.refuse(key, fmt::format("no such field in a rope scaling of type \"{}\"", row.name));
  }
  RopeScaling scaling{.kind = row.kind};
  if (row.kind == RopeKind::none) return scaling;
  if (row.kind == RopeKind::proportional) {
    scaling.factor = positive(inner, "factor", 1);
    scaling.turned_part =
        inner.number_that([](double value) { return value > 0 && value <= 1; }, kFraction, "a number above 0, up to 1", 1);
    return scaling;
  }
  if (row.kind != RopeKind::longrope) scaling.factor = positive(inner, "factor");
  if (row.kind == RopeKind::llama3) {
    scaling.low_frequency_factor = positive(inner, "low_freq_factor");
    scaling.high_frequency_factor = positive(inner, "high_freq_factor");
    if (scaling.high_frequency_factor <= scaling.low_frequency_factor)
      inner.refuse("high_freq_factor", fmt::format("a number above low_freq_factor {}", scaling.low_frequency_factor));
  }
  if (row.kind != RopeKind::linear) {
    const std::optional<std::size_t> usual =
        row.kind == RopeKind::llama3 ? std::nullopt : std::optional(original.value_or(config.max_positions));
    scaling.original_positions = inner.size(kOriginal, usual);
  }
  if (row.kind == RopeKind::yarn) read_yarn(inner, config, scaling);
  if (row.kind == RopeKind::longrope) read_longrope(inner, object, config, scaling);
  if (!std::isfinite(scaling.attention_factor))
    inner.refuse("attention_factor", "a positive finite number, since what the other fields say isn't");
  return scaling.kind == RopeKind::linear && scaling.factor == 1 ? RopeScaling() : scaling;
}

bool is_by_kinds(const json& object) {
  return object.is_object() && std::ranges::any_of(object, [](const json& each) { return each.is_object(); });
}

/// Refuses a file that doesn't say the base of both kinds of layers in one object.
void require_kinds(ConfigFields& fields, std::string_view field, const json& object) {
  if (field != kRopeObjects[1]) fields.refuse(field, fmt::format("null ({} alone is supported)", kRopeObjects[1]));
  for (const std::string_view kind : {kFullKind, kWindowKind}) {
    const auto of_kind = object.find(kind);
    if (of_kind == object.end() || !of_kind->is_object() || of_kind->value("rope_theta", json()).is_null())
      fields.refuse(field, fmt::format("null, or objects \"{}\" and \"{}\" with \"rope_theta\" in each", kFullKind, kWindowKind));
  }
}

/// An object of rope scaling, and what messages call it.
struct RopeObject {
  std::string name;
  const json* object;
};

/// Returns those of layers without a window, which are all layers where kinds aren't told apart; `of_windows` gets the other
/// kind's, if there is one.
std::vector<RopeObject> rope_objects(ConfigFields& fields, const ModelType& type, RopeObject& of_windows) {
  std::vector<RopeObject> objects;
  for (const std::string_view field : kRopeObjects) {
    const json* object = fields.find(field);
    if (object == nullptr) continue;
    if (!object->is_object()) fields.refuse(field, "null or an object");
    if (type.rope_by_kinds) require_kinds(fields, field, *object);
    if (!type.local_rotary_in_windows || !is_by_kinds(*object)) {
      objects.push_back({std::string(field), object});
      continue;
    }
    for (const auto& [kind, of_kind] : object->items()) {
      ConfigFields inner(*object, fields.where(), fmt::format("{}{}.", fields.path(), field));
      if (kind != kFullKind && kind != kWindowKind)
        inner.refuse(kind, fmt::format("no such kind of layers (\"{}\" and \"{}\" are supported)", kFullKind, kWindowKind));
      if (of_kind.is_null()) continue;
      if (!of_kind.is_object()) inner.refuse(kind, "null or an object");
      RopeObject named{fmt::format("{}.{}", field, kind), &of_kind};
      if (kind == kWindowKind) of_windows = std::move(named);
      else objects.push_back(std::move(named));
    }
  }
  return objects;
}

/// Reads the base of layers with a window, in families whose layers are of two kinds; nothing is scaled there.
void read_local_base(ConfigFields& fields, const RopeObject& of_windows, ModelConfig& config) {
  const std::string_view field = config.type->fields.local_rope_theta;
  const auto read = [](ConfigFields& from, std::string_view name, double usual) {
    return from.number_that([](double value) { return std::isfinite(value) && value >= 1; }, name, "a finite number, at least 1",
                            usual);
  };
  config.local_rope_theta = field.empty() ? config.rope_theta : read(fields, field, config.type->model.local_rope_theta);
  if (of_windows.object == nullptr) return;
  ConfigFields inner(*of_windows.object, fields.where(), fields.path() + of_windows.name + ".");
  if (read_scaling(inner, *of_windows.object, config, std::nullopt) != RopeScaling())
    inner.refuse("rope_type", "\"default\" (no rope scaling is supported in layers with a window)");
  const double theta = read(inner, "rope_theta", config.local_rope_theta);
  if (theta != config.local_rope_theta && (field.empty() || fields.find(field) != nullptr))
    inner.refuse("rope_theta", fmt::format("{} as {} says", config.local_rope_theta, field.empty() ? kFullKind : field));
  config.local_rope_theta = theta;
  if (inner.find(kFraction) != nullptr && *inner.find(kFraction) != 1)
    inner.refuse(kFraction, "1 or null (layers with a window turn whole heads)");
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

void read_rope(ConfigFields& fields, ModelConfig& config) {
  const ModelType& type = *config.type;
  config.rope_theta = fields.positive("rope_theta", type.model.rope_theta);
  std::string_view theta_said_by = fields.find("rope_theta") != nullptr ? "rope_theta" : "";  // in which field it was found
  // Longrope's factors are as many as pairs that turn, so the objects' part of a head is read before the rest of them.
  std::string_view fraction_said_by;
  const auto read_fraction = [&](ConfigFields& inner, std::string_view field, std::string_view said_by) {
    if (inner.find(field) == nullptr) return;
    const bool any = !type.fields.rotary_fraction.empty();
    const double fraction = inner.number_that([&](double value) { return value == 1 || (any && value > 0 && value < 1); }, field,
                                              any ? "a number above 0, up to 1" : "1 or null (nothing else is supported)");
    if (!fraction_said_by.empty() && fraction != config.rotary_fraction)
      inner.refuse(field, fmt::format("{} as {} says", config.rotary_fraction, fraction_said_by));
    config.rotary_fraction = fraction;
    fraction_said_by = said_by;
  };
  read_fraction(fields, type.fields.rotary_fraction, type.fields.rotary_fraction);
  RopeObject of_windows{};
  const std::vector<RopeObject> objects = rope_objects(fields, type, of_windows);
  for (const auto& [field, object] : objects) {
    ConfigFields inner(*object, fields.where(), fields.path() + field + ".");
    if (read_kind(inner, kinds_of(type)).kind != RopeKind::proportional) read_fraction(inner, kFraction, field);
  }
  std::optional<std::size_t> original;
  if (type.original_positions > 0) original = fields.size(kOriginal, type.original_positions);
  std::string_view scaling_said_by;
  for (const auto& [field, object] : objects) {
    ConfigFields inner(*object, fields.where(), fields.path() + field + ".");
    if (!original && fields.find(kOriginal) != nullptr) original = fields.size(kOriginal);
    RopeScaling scaling = read_scaling(inner, *object, config, original);
    // Which of two objects counts depends on transformers' version.
    if (!scaling_said_by.empty() && scaling != config.rope_scaling)
      fields.refuse(field, fmt::format("the same as {}", scaling_said_by));
    if (original && scaling.original_positions > 0 && *original != scaling.original_positions)
      fields.refuse(kOriginal, fmt::format("{} as {} says", scaling.original_positions, field));
    config.rope_scaling = std::move(scaling);
    scaling_said_by = field;
    const double theta = inner.positive("rope_theta", config.rope_theta);
    if (!theta_said_by.empty() && theta != config.rope_theta)
      inner.refuse("rope_theta", fmt::format("{} as {} says", config.rope_theta, theta_said_by));
    if (inner.find("rope_theta") != nullptr) theta_said_by = field;
    config.rope_theta = theta;
  }
  if (type.names_rope_base && theta_said_by.empty())
    fields.refuse("rope_theta", "a number (a file without it means 10,000 to transformers 4 and 500,000 to transformers 5)");
  if (type.local_rotary_in_windows) read_local_base(fields, of_windows, config);
}

namespace {

/// Returns a model's rope scaling as an object.
json scaling_object(const ModelConfig& config) {
  const RopeScaling& rope = config.rope_scaling;
  json scaling = json::object();
  if (rope.kind != RopeKind::longrope) scaling["rope_type"] = std::ranges::find(kRopeKinds, rope.kind, &RopeKindRow::kind)->name;
  switch (rope.kind) {
    case RopeKind::none: break;
    case RopeKind::linear: scaling["factor"] = rope.factor; break;
    case RopeKind::llama3:
      scaling["factor"] = rope.factor;
      scaling["low_freq_factor"] = rope.low_frequency_factor;
      scaling["high_freq_factor"] = rope.high_frequency_factor;
      scaling[std::string(kOriginal)] = rope.original_positions;
      break;
    case RopeKind::yarn:
      scaling["factor"] = rope.factor;
      scaling["attention_factor"] = rope.attention_factor;
      scaling["beta_fast"] = rope.beta_fast;
      scaling["beta_slow"] = rope.beta_slow;
      scaling["truncate"] = rope.truncate;
      scaling[std::string(kOriginal)] = rope.original_positions;
      if (config.type->query_growth) scaling[std::string(kGrowth)] = rope.query_growth;
      break;
    case RopeKind::longrope:
      // Older transformers accept just these three, and know the kind by "type".
      scaling["type"] = kLongRopeKinds[1].name;
      scaling["short_factor"] = rope.short_factors;
      scaling["long_factor"] = rope.long_factors;
      if (rope.attention_factor != longrope_attention(config, rope.original_positions))
        scaling["attention_factor"] = rope.attention_factor;
      break;
    case RopeKind::proportional:
      scaling[std::string(kFraction)] = rope.turned_part;
      if (rope.factor != 1) scaling["factor"] = rope.factor;
      break;
  }
  return scaling;
}

}  // namespace

void write_rope(json& object, const ModelConfig& config) {
  const ModelType& type = *config.type;
  const RopeScaling& rope = config.rope_scaling;
  for (const std::string_view field : kRopeObjects) {
    if (const auto at = object.find(field); at != object.end() && is_by_kinds(*at)) return;  // it says all
  }
  if (type.rope_by_kinds) {
    json& kinds = object[std::string(kRopeObjects[1])] = json::object();
    kinds[std::string(kFullKind)] = scaling_object(config);
    kinds[std::string(kFullKind)]["rope_theta"] = config.rope_theta;
    kinds[std::string(kWindowKind)] = {{"rope_type", kRopeKinds[0].name}, {"rope_theta", config.local_rope_theta}};
    return;
  }
  const auto missing = [&object](std::string_view field) {
    const auto at = object.find(field);
    return at == object.end() || at->is_null();
  };
  const auto put = [&](std::string_view field, const auto& value) {
    if (!field.empty() && missing(field)) object[std::string(field)] = value;
  };
  if (object_with(object, "rope_theta").empty()) put("rope_theta", config.rope_theta);
  if (type.local_rotary_in_windows) put(type.fields.local_rope_theta, config.local_rope_theta);
  if (object_with(object, kFraction).empty()) put(type.fields.rotary_fraction, config.rotary_fraction);
  if (rope.kind == RopeKind::none || !object_with(object, rope.kind == RopeKind::longrope ? "short_factor" : "factor").empty())
    return;
  if (rope.kind == RopeKind::longrope) put(kOriginal, rope.original_positions);
  object["rope_scaling"] = scaling_object(config);
}

}  // namespace tsprun::detail
