// The commands and their options as JSON, which `tsprun --list-commands` prints: tools/manual.py makes the man page and the
// shells' completions of it.
#pragma once

#include "launcher/commands/command.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// A command with all that its --help says.
struct ListedCommand {
  CommandFacts facts;
  std::string usage;  ///< "tsprun run [OPTIONS] -- PROGRAM [ARGUMENT...]"
  std::string prose;  ///< what --help says besides; may be empty
  const OptionTable& options;
};

/// Returns {"help", "options", "commands": [{"name", "help", "usage", "prose", "examples", "options"}]}. An option is {"names",
/// "value", "help", "group", "default", "required", "repeats", "file", "words"}, as the row of the table says: "file" whether its
/// value names a file, "words" those from which its value is chosen, empty if it isn't. Precondition: the tables are bound.
nlohmann::ordered_json command_list(const std::string& help, const OptionTable& global,
                                    const std::vector<ListedCommand>& commands);

}  // namespace tsprun::detail::launcher
