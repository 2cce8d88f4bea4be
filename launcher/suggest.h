// "Did you mean": the known word that is nearest to one that isn't known, and what other programs' options are called here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

/// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known word that was probably meant by `typed`; empty: none is near enough. Case, leading dashes, and whether words are
/// joined by '-' or '_' don't count.
std::string nearest_word(std::string_view typed, std::span<const std::string> known);

/// "; did you mean WORD?", or nothing.
std::string did_you_mean(std::string_view typed, std::span<const std::string> known);

/// What is written here for an option of mpirun, torchrun, srun, nccl-tests or a training script: "-n N"; empty: nothing known.
std::string_view spelling_here(std::string_view option);

}  // namespace tsprun::launcher
