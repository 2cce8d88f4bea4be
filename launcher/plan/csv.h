// Tables as CSV (RFC 4180, but with a plain newline at the end of a line).
#pragma once

#include <string>

namespace tsprun::detail::launcher {

/// Returns a text as a cell: in quotes if it has commas, quotes or newlines.
std::string csv_cell(const std::string& text);
/// Writes a table to the file of an option, or to the lent stdout (outputs.h) if it is "-". Returns why that failed, beginning
/// with the option; empty: it succeeded.
std::string write_csv(const std::string& option, const std::string& path, const std::string& table);

}  // namespace tsprun::detail::launcher
