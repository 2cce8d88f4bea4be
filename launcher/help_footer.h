// The end of `tsprun COMMAND --help`: examples, and the names of the options that all commands share.
#pragma once

#include "launcher/option_table.h"

#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Returns the end of a command's manual.
std::string help_footer(const OptionTable& global, std::span<const std::string_view> examples);

}  // namespace tsprun::detail::launcher
