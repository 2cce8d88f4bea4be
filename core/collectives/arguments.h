// The checks of a communicator's arguments. All throw Error(refused) with the operation, the argument, its value and what is
// needed.
#pragma once

#include "core/tensor/dtype.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace tsprun::arguments {

/// Memory for all elements; "send: 3 f32 at a null address".
void check_memory(std::string_view operation, std::string_view argument, ConstBuffer buffer);
void check_same_dtype(std::string_view operation, ConstBuffer send, ConstBuffer recv);
/// Sums need numbers.
void check_summable(std::string_view operation, DType dtype);
void check_member(std::string_view operation, std::string_view argument, int rank, int size);
/// `whole` = ranks × `part`.
void check_whole(std::string_view operation, std::string_view whole_name, ConstBuffer whole, std::string_view part_name,
                 ConstBuffer part, int ranks);
/// One count a rank, adding up to `whole`.
void check_counts(std::string_view operation, std::string_view counts_name, std::span<const std::size_t> counts, int ranks,
                  std::string_view whole_name, ConstBuffer whole);
/// One chunk a rank within `whole`: one after another and filling it, or, with `offsets`, wherever they say, not overlapping.
void check_chunks(std::string_view operation, std::span<const std::size_t> counts,
                  const std::optional<std::span<const std::size_t>>& offsets, int ranks, std::string_view whole_name,
                  ConstBuffer whole);
/// `part` has the count of this rank.
void check_own_count(std::string_view operation, std::span<const std::size_t> counts, int rank, std::string_view part_name,
                     ConstBuffer part);
void check_equal_counts(std::string_view operation, ConstBuffer send, ConstBuffer recv);
/// `part` may be exactly `place` (a slice of `whole`: in place), otherwise it must not overlap `whole`.
void check_overlap(std::string_view operation, std::string_view part_name, ConstBuffer part, std::string_view whole_name,
                   ConstBuffer whole, const std::byte* place);
/// The two must not overlap at all.
void check_disjoint(std::string_view operation, ConstBuffer send, ConstBuffer recv);

}  // namespace tsprun::arguments
