// Runs a template's tree.
#pragma once

#include "layers/text/template/syntax.h"

#include <cstddef>
#include <ctime>
#include <string>

namespace tsprun::detail::text::jinja {

/// Error that ended a template, with its line.
struct RunTrouble {
  std::string what;
  std::size_t line;
  bool raised;  ///< by the template itself
};

/// Runs a template on a dictionary of variables. Throws RunTrouble.
std::string run(const Body& body, const Dict& variables, std::time_t now);

}  // namespace tsprun::detail::text::jinja
