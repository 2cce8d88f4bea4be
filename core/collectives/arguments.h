// Checks of a communicator's arguments. All functions throw Error(refused) naming the operation, the argument, its value and what
// is needed instead.
#pragma once

#include "tsprun/types.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail::arguments {

/// Refuses an operation; the error reads "all_reduce: why".
[[noreturn]] void refuse(std::string_view operation, const std::string& why);
/// Requires an address unless the buffer is empty; the error reads "all_reduce: send has 3 f32 at a null address".
void check_memory(std::string_view operation, std::string_view argument, const ConstBuffer& buffer);
/// Requires equal dtypes.
void check_same_dtype(std::string_view operation, const ConstBuffer& send, const ConstBuffer& recv);
/// Requires a reduction that elements of this type have, see reduces().
void check_reduction(std::string_view operation, Reduction reduction, DType dtype);
/// Requires 0 ≤ rank < size.
void check_member(std::string_view operation, std::string_view argument, int rank, int size);
/// Requires that `whole` has `ranks` times the count of `part`.
void check_whole(std::string_view operation, std::string_view whole_name, const ConstBuffer& whole, std::string_view part_name,
                 const ConstBuffer& part, int ranks);
/// Requires a list with an entry for each rank.
void check_one_each(std::string_view operation, std::string_view list_name, std::span<const std::size_t> list, int ranks);
/// Requires one count per rank, adding up to the count of `whole`.
void check_counts(std::string_view operation, std::string_view counts_name, std::span<const std::size_t> counts, int ranks,
                  std::string_view whole_name, const ConstBuffer& whole);
/// Requires one chunk per rank within `whole`: without `offsets`, one after another and filling it; with `offsets`, without
/// overlap.
void check_chunks(std::string_view operation, std::span<const std::size_t> counts,
                  const std::optional<std::span<const std::size_t>>& offsets, int ranks, std::string_view whole_name,
                  const ConstBuffer& whole);
/// Requires that `part` has the count of this rank, counts[rank].
void check_own_count(std::string_view operation, std::span<const std::size_t> counts, int rank, std::string_view part_name,
                     const ConstBuffer& part);
/// Requires equal counts.
void check_equal_counts(std::string_view operation, const ConstBuffer& send, const ConstBuffer& recv);
/// Requires that `part` doesn't overlap `whole`, unless it begins exactly at `place`, where the operation works in place.
void check_overlap(std::string_view operation, std::string_view part_name, const ConstBuffer& part, std::string_view whole_name,
                   const ConstBuffer& whole, const std::byte* place);
/// Requires that the two buffers don't overlap.
void check_disjoint(std::string_view operation, const ConstBuffer& send, const ConstBuffer& recv);

}  // namespace tsprun::detail::arguments
