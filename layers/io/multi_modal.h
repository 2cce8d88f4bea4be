// Text models within multi-modal ones, whose config.json has one object for each modality. The text model alone is computed; what
// is saved of it is a folder of its own.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace tsprun::detail {

/// A config.json, or that of the text model within it.
struct TextModel {
  nlohmann::json config;
  std::string path;     ///< "text_config." before the names of its fields in messages; empty: the file is the text model's own
  std::string warning;  ///< a line that says what isn't computed; likewise
};

/// Returns the text model of a file, with the fields that such files may leave out. Throws Error(refused), with a message that
/// begins with `where`, for a multi-modal file whose text model isn't known.
TextModel text_model(nlohmann::json file, const std::string& where);

/// Returns the name that a tensor has in the text model's own folder; the name itself in other folders.
std::string name_in_text_model(std::string_view stored);
/// Returns whether a tensor is one of those by which multi-modal models see images.
bool is_of_images(std::string_view name);

}  // namespace tsprun::detail
