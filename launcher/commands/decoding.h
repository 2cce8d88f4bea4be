// What commands that decode texts have in common: the options of drawing tokens, and the layouts that work.
#pragma once

#include "launcher/model/model_text.h"
#include "launcher/options.h"
#include "layers/layout/layout.h"
#include "layers/model/sampling.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// The options of drawing, each with its default.
struct DrawingOptions {
  Given<double> temperature{1.0};
  Given<std::size_t> top_k{0};
  Given<double> top_p{1.0};
  Given<double> repetition_penalty{1.0};

  /// Adds the rows of the options.
  void declare(OptionTable& table);
  /// Takes what wasn't typed from the generation_config.json of the model's folder, which may be empty, and says so on stderr;
  /// checks all together. Throws Error(refused), also for options that would change nothing.
  SamplingOptions validated(const std::filesystem::path& folder, std::size_t vocabulary, std::uint64_t seed);

 private:
  void take_recommended(const std::filesystem::path& folder, std::size_t vocabulary);
};

/// Returns the options for the report.
nlohmann::ordered_json sampling_json(const SamplingOptions& sampling);

/// The option --stop.
struct StopOptions {
  std::vector<std::string> given;

  // Values derived during validation, not given on the command line.
  std::vector<std::string> texts;  ///< those that a model writes as text, before which it ends
  std::vector<Token> tokens;       ///< special tokens, which are no text

  /// Adds the row of the option.
  void declare(OptionTable& table);
  /// Finds out which of the texts are special tokens. Throws Error(refused) if the model's tokens don't make text, and for a text
  /// with a special token in it.
  void validate(const ModelText& reader);
};

/// Returns a whole number that was given, or the default, if it is within the bounds. Throws Error(refused).
std::size_t checked(const char* option, const Given<std::size_t>& number, std::size_t lowest, std::size_t highest);

/// Returns the nearest layout that can be decoded: with tsp instead of zero3.
Layout decodable(const Layout& layout);
/// Throws Error(refused) unless a command can decode under the layout.
void check_decodable(std::string_view command, const GlobalOptions& global);

}  // namespace tsprun::detail::launcher
