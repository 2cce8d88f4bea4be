// How wide text for people may be.
#pragma once

#include <cstddef>
#include <optional>

namespace tsprun::detail::launcher {

/// Columns of a screen that isn't known.
inline constexpr std::size_t kUsualColumns = 80;
/// Columns below which nothing is made to fit: a table of one letter a line helps nobody.
inline constexpr std::size_t kFewestColumns = 40;

/// Returns the columns for stdout: $COLUMNS if it is a whole number above 0, else those of the terminal that stdout is, at least
/// kFewestColumns; nothing: stdout is no terminal and nobody says.
std::optional<std::size_t> known_columns();

/// Returns the columns of prose, such as --help: those that are known, else kUsualColumns.
inline std::size_t prose_columns() { return known_columns().value_or(kUsualColumns); }

/// Returns the columns of a table: those that are known. A pipe or file gets whole rows, as from ps(1): programs read lines.
inline std::size_t table_columns() { return known_columns().value_or(static_cast<std::size_t>(-1)); }

}  // namespace tsprun::detail::launcher
