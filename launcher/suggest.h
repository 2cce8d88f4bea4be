// "Did you mean": finds the known word nearest to an unknown one, and what options of other programs are called here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

/// Returns how many insertions, deletions, replacements and swaps of neighbours turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the known word that was probably meant by `typed`; empty: none is near enough. Case, leading dashes, and whether words
/// are joined by '-' or '_' don't count.
std::string nearest_word(std::string_view typed, std::span<const std::string> known);

/// Returns "; did you mean WORD?", or an empty text.
std::string did_you_mean(std::string_view typed, std::span<const std::string> known);

/// Returns what to write here for an option of mpirun, torchrun, srun, nccl-tests or a training script, such as "-n N"; empty:
/// not known.
std::string_view spelling_here(std::string_view option);

}  // namespace tsprun::launcher
