// What ranks that connect write for each other to the job's store (links.h says under which keys).
//
// A rank's notes say with which peers it has failed, and why. They are a byte for each rank of the world, 0 or the number of a
// reason, and then the reasons, each a line; where it has failed with nobody, nothing. So every rank reads one byte of each other
// rank's notes and a few lines, however many peers are lost.
#pragma once

#include "transport/bootstrap/gathering.h"

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Most reasons that notes tell in words, and most bytes of each. Peers with whom a rank failed for other reasons are told so.
inline constexpr std::size_t kMostReasons = 8;
inline constexpr std::size_t kMostReasonBytes = 160;

/// Returns the first `most` bytes of a text as one field of a line: control characters, such as those that separate lines and
/// fields, are blanks.
std::string one_field(std::string_view text, std::size_t most);

/// Returns a rank's notes: `lost` has, by rank, why it failed. `world`: ranks of the job.
std::vector<std::byte> write_notes(const std::map<int, std::string>& lost, std::size_t world);
/// Returns the part of each peer's notes that a rank reads.
bootstrap::GatherCut notes_for(int rank, std::size_t world);
/// Returns why the writer has failed with the rank for which this part of its notes is; nothing: it hasn't.
std::optional<std::string> read_note(std::span<const std::byte> part);

/// Returns in how large a world addresses of which so many bytes are for each rank of it fit into a value of the store, with what
/// is for all ranks; 0: in any.
std::size_t most_ranks(std::size_t own_bytes);

}  // namespace tsprun::detail
