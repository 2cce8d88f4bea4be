// Reads which layers have a window. Source of the fields' meaning: huggingface/transformers, the families' configuration files,
// and layer_type_validation() in src/transformers/configuration_utils.py.
#include "layers/io/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail {

using nlohmann::json;

namespace {

constexpr std::string_view kWindowName = "sliding_window";
constexpr std::string_view kUsedName = "use_sliding_window";
constexpr std::string_view kFirstName = "max_window_layers";
constexpr std::string_view kTypesName = "layer_types";
constexpr std::string_view kFullType = "full_attention";
constexpr std::string_view kSlidingType = "sliding_attention";

constexpr std::string_view kUsedNames[] = {kUsedName};
constexpr RestrictedFields kUnusedWindow[] = {{"[false]", kUsedNames}};

/// Refuses a window, unless the file says that it isn't used.
void refuse_windows(ConfigFields& fields) {
  if (fields.find(kWindowName) != nullptr && fields.find(kUsedName) == nullptr)
    fields.refuse(kWindowName, "null, or \"use_sliding_window\": false beside it (nothing else is supported)");
  if (const json* types = fields.find(kTypesName)) {
    if (!types->is_array() || !std::ranges::all_of(*types, [](const json& each) { return each == kFullType; }))
      fields.refuse(kTypesName, "\"full_attention\" for every layer (nothing else is supported)");
  }
}

/// Returns the window of the layers that have one; 0: none of them has.
std::size_t window_of(ConfigFields& fields, const ModelType& type) {
  const bool always = type.window == WindowField::every_layer || type.window == WindowField::alternating;
  const bool used = always || fields.flag(kUsedName, false);
  if (fields.find(kWindowName) != nullptr) return used ? fields.size(kWindowName) : 0;
  return used && !fields.has(kWindowName) ? type.usual_window : 0;
}

/// Returns, for each layer, whether it has the window where they alternate: all but those whose number, counted from 1, the
/// pattern divides, or, where it is letters, those that are an L in their repetition.
std::vector<bool> alternating_layers(ConfigFields& fields, const ModelConfig& config) {
  const ModelType& type = *config.type;
  std::vector<bool> windowed(config.layers, true);
  const json* pattern = fields.find(type.pattern_field);
  if (type.pattern_of_letters && pattern != nullptr && pattern->is_string()) {
    const auto& letters = pattern->get_ref<const std::string&>();
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
      fields.refuse(type.pattern_field, "a number, or letters L (a window) and G (none)");
    for (std::size_t i = 0; i < windowed.size(); ++i) windowed[i] = letters[i % letters.size()] == 'L';
    windowed.back() = false;  // as transformers documents it
    return windowed;
  }
  const std::size_t every = type.pattern_field.empty() ? type.usual_pattern : fields.size(type.pattern_field, type.usual_pattern);
  for (std::size_t i = 0; i < windowed.size(); ++i) windowed[i] = (i + 1) % every != 0;
  if (type.last_layer_is_full) windowed.back() = false;
  return windowed;
}

/// Returns, for each layer, whether it has the window of a file that has one and doesn't say it by layer_types.
std::vector<bool> usual_layers(ConfigFields& fields, const ModelConfig& config) {
  if (config.type->window == WindowField::alternating) return alternating_layers(fields, config);
  std::vector<bool> windowed(config.layers, true);
  if (config.type->window == WindowField::later_layers) {
    const std::size_t first = fields.integer<std::size_t>(kFirstName, 0, kMaxConfigSize, config.type->usual_first_window);
    std::fill_n(windowed.begin(), std::min(first, windowed.size()), false);
  } else if (config.type->window == WindowField::unrotated_layers) {
    for (std::size_t i = 0; i < windowed.size(); ++i) windowed[i] = !config.layer(i).rotary_positions;
  }
  return windowed;
}

/// Returns the same as layer_types says it.
std::vector<bool> stated_layers(ConfigFields& fields, const ModelConfig& config, std::size_t window) {
  // Those after the last layer count for nothing, but where the last is another than it seems.
  const bool last_is_full = config.type->last_layer_is_full;
  fields.entries(kTypesName, config.layers, last_is_full ? config.layers : kMaxLayers);
  const json& types = *fields.find(kTypesName);
  std::vector<bool> windowed;
  for (std::size_t i = 0; i < config.layers; ++i) {
    windowed.push_back(types[i] == kSlidingType);
    if (types[i] == kFullType && !(window > 0 && config.type->window == WindowField::every_layer)) continue;
    if (types[i] == kSlidingType && window > 0) continue;
    const std::string_view expected = window == 0 ? "\"full_attention\", for the file has no window in use"
                                      : config.type->window == WindowField::every_layer
                                          ? "\"sliding_attention\", for such models have sliding_window in every layer"
                                          : "\"full_attention\" or \"sliding_attention\" (nothing else is supported)";
    fields.refuse_entry(kTypesName, i, expected);
  }
  if (last_is_full) windowed.back() = false;
  return windowed;
}

}  // namespace

void read_windows(ConfigFields& fields, ModelConfig& config) {
  const WindowField which = config.type->window;
  if (which != WindowField::later_layers && which != WindowField::unrotated_layers) fields.refuse_restricted(kUnusedWindow);
  if (which == WindowField::none) return refuse_windows(fields);
  fields.find(config.type->pattern_field);  // known, also where it means nothing
  const std::size_t window = window_of(fields, *config.type);
  const bool stated = fields.find(kTypesName) != nullptr;
  // Which layers rotate by the local base depends on it.
  if (window == 0 && config.type->local_rotary_in_windows) fields.refuse(kWindowName, "a number of tokens");
  if (stated && which == WindowField::alternating) alternating_layers(fields, config);  // checked, though it means nothing then
  if (window == 0 && !stated) return;
  const std::vector<bool> windowed = stated ? stated_layers(fields, config, window) : usual_layers(fields, config);
  std::vector<LayerSpec> layers;
  for (std::size_t i = 0; i < config.layers; ++i) {
    layers.push_back(config.layer(i));
    layers.back().window = windowed[i] ? window : 0;
    layers.back().local_rotary = windowed[i] && config.type->local_rotary_in_windows;
    if (config.type->rotary_in_windows_alone && window > 0) layers.back().rotary_positions = windowed[i];
  }
  config.specs = LayerSpecs(std::move(layers));
}

void write_windows(const ModelConfig& config, json& object) {
  if (config.type->window == WindowField::none) return;
  std::size_t window = 0;
  json types = json::array();
  for (std::size_t i = 0; i < config.layers; ++i) {
    window = std::max(window, config.layer(i).window);
    types.push_back(config.layer(i).window > 0 ? kSlidingType : kFullType);
  }
  if (config.type->window == WindowField::every_layer) {
    object.emplace(kWindowName, window == 0 ? json() : json(window));
    return;
  }
  if (config.type->window == WindowField::alternating) {
    // Null would say another model where no layer has the window that the file has; any window says this one.
    const bool unrotated = config.type->rotary_in_windows_alone && !config.layer(0).rotary_positions;
    if (window == 0 && (unrotated || config.type->local_rotary_in_windows)) window = config.type->usual_window;
    object.emplace(kWindowName, window == 0 ? json() : json(window));
    if (json& stated = object[std::string(kTypesName)]; stated.is_null()) stated = std::move(types);
    return;
  }
  if (window == 0 || object.value(std::string(kUsedName), json()) == true) return;  // the source says it
  object[std::string(kUsedName)] = true;
  object[std::string(kWindowName)] = window;
  object[std::string(kTypesName)] = std::move(types);
}

}  // namespace tsprun::detail
