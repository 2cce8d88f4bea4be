// Finds the known word nearest to an unknown one, for "did you mean" in errors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Returns a word in the form in which words are compared: without leading dashes, in lower case, joined by '-'.
std::string plain_word(std::string_view word);

/// Returns how many insertions, deletions, replacements and swaps of neighbours turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the known word that was probably meant by `typed`; empty: none is near enough. Case, leading dashes, and whether words
/// are joined by '-' or '_' don't count.
std::string nearest_word(std::string_view typed, std::span<const std::string> known);

/// Returns " (did you mean WORD?)", or an empty text.
std::string did_you_mean(std::string_view typed, std::span<const std::string> known);

}  // namespace tsprun::detail
