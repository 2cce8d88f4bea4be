// The checks of a communicator's arguments and the texts of their errors.
#include "core/collectives/arguments.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tsprun::detail::arguments {

namespace {

/// Returns a buffer's size as text: "10 f32".
std::string amount(const ConstBuffer& buffer) { return fmt::format("{} {}", buffer.count, name(buffer.dtype)); }

bool overlap(const ConstBuffer& a, const ConstBuffer& b) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a.count != 0 && b.count != 0 && a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

}  // namespace

void refuse(std::string_view operation, const std::string& why) {
  // The board knows operations, not their calls with uneven counts.
  const std::string_view op = operation.ends_with("_v") ? operation.substr(0, operation.size() - 2) : operation;
  throw Error(Cause::refused, fmt::format("{}: {}", operation, why), -1, std::string(op));
}

void check_one_each(std::string_view operation, std::string_view list_name, std::span<const std::size_t> list, int ranks) {
  if (list.size() != static_cast<std::size_t>(ranks)) {
    refuse(operation,
           fmt::format("{} has {} entries, but the group has {} ranks: one each is needed", list_name, list.size(), ranks));
  }
}

void check_memory(std::string_view operation, std::string_view argument, const ConstBuffer& buffer) {
  if (buffer.count != 0 && buffer.data == nullptr)
    refuse(operation, fmt::format("{} has {} at a null address", argument, amount(buffer)));
}

void check_same_dtype(std::string_view operation, const ConstBuffer& send, const ConstBuffer& recv) {
  if (send.dtype != recv.dtype) {
    refuse(operation,
           fmt::format("send holds {}, but recv holds {}: both must be of one type", name(send.dtype), name(recv.dtype)));
  }
}

void check_reduction(std::string_view operation, Reduction reduction, DType dtype) {
  if (reduces(reduction, dtype)) return;
  if (dtype == DType::byte) refuse(operation, "bytes can't be reduced: they are no numbers; u8 and all other types can");
  std::string takers;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto each = static_cast<DType>(i);
    if (reduces(reduction, each)) takers += fmt::format("{}{}", takers.empty() ? "" : ", ", name(each));
  }
  refuse(operation, fmt::format("the reduction {} takes {}, not {}", name(reduction), takers, name(dtype)));
}

void check_member(std::string_view operation, std::string_view argument, int rank, int size) {
  if (rank < 0 || rank >= size) {
    refuse(operation,
           fmt::format("{} = {}, but the group has {} rank{}: 0 to {}", argument, rank, size, size == 1 ? "" : "s", size - 1));
  }
}

void check_whole(std::string_view operation, std::string_view whole_name, const ConstBuffer& whole, std::string_view part_name,
                 const ConstBuffer& part, int ranks) {
  std::size_t needed = 0;
  const bool too_large = __builtin_mul_overflow(part.count, static_cast<std::size_t>(ranks), &needed);
  if (too_large || whole.count != needed) {
    refuse(operation, fmt::format("{} has {}, but {} ranks × {}'s {} = {} are needed", whole_name, amount(whole), ranks,
                                  part_name, part.count, too_large ? "more than memory" : fmt::format("{}", needed)));
  }
}

void check_counts(std::string_view operation, std::string_view counts_name, std::span<const std::size_t> counts, int ranks,
                  std::string_view whole_name, const ConstBuffer& whole) {
  check_one_each(operation, counts_name, counts, ranks);
  std::size_t sum = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (__builtin_add_overflow(sum, counts[r], &sum)) {
      refuse(operation, fmt::format("{}[{}] = {}: so many elements don't exist", counts_name, r, counts[r]));
    }
  }
  if (whole.count != sum)
    refuse(operation, fmt::format("{} has {}, but {} add up to {}", whole_name, amount(whole), counts_name, sum));
}

void check_chunks(std::string_view operation, std::span<const std::size_t> counts,
                  const std::optional<std::span<const std::size_t>>& offsets, int ranks, std::string_view whole_name,
                  const ConstBuffer& whole) {
  if (!offsets) return check_counts(operation, "counts", counts, ranks, whole_name, whole);
  check_one_each(operation, "counts", counts, ranks);
  check_one_each(operation, "offsets", *offsets, ranks);
  std::vector<std::size_t> order;  // chunks that aren't empty, later sorted by offset
  order.reserve(counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] == 0) continue;
    if (counts[r] > whole.count || (*offsets)[r] > whole.count - counts[r]) {
      refuse(operation, fmt::format("chunk {} of {} elements at offset {} doesn't lie within {}, which has {}", r, counts[r],
                                    (*offsets)[r], whole_name, amount(whole)));
    }
    order.push_back(r);
  }
  const auto lies_before = [&](std::size_t a, std::size_t b) { return (*offsets)[a] < (*offsets)[b]; };
  // Chunks mostly rise or fall with their ranks.
  if (!order.empty() && lies_before(order.back(), order.front())) std::ranges::reverse(order);
  if (!std::ranges::is_sorted(order, lies_before)) std::ranges::sort(order, lies_before);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::size_t before = order[i - 1];
    const std::size_t after = order[i];
    if ((*offsets)[after] - (*offsets)[before] >= counts[before]) continue;
    refuse(operation,
           fmt::format("chunk {} ({} elements at offset {}) overlaps chunk {} (at offset {}) of {}; chunks must lie apart",
                       before, counts[before], (*offsets)[before], after, (*offsets)[after], whole_name));
  }
}

void check_own_count(std::string_view operation, std::span<const std::size_t> counts, int rank, std::string_view part_name,
                     const ConstBuffer& part) {
  const std::size_t needed = counts[static_cast<std::size_t>(rank)];
  if (part.count != needed)
    refuse(operation, fmt::format("{} has {}, but counts[{}] = {}", part_name, amount(part), rank, needed));
}

void check_equal_counts(std::string_view operation, const ConstBuffer& send, const ConstBuffer& recv) {
  if (send.count != recv.count) {
    refuse(operation, fmt::format("send has {}, but recv has {}: both need as many", amount(send), amount(recv)));
  }
}

void check_overlap(std::string_view operation, std::string_view part_name, const ConstBuffer& part, std::string_view whole_name,
                   const ConstBuffer& whole, const std::byte* place) {
  if (part.data != place && overlap(part, whole)) {
    refuse(operation, fmt::format("{} overlaps {}; in place means that {} is exactly this rank's own part of {}", part_name,
                                  whole_name, part_name, whole_name));
  }
}

void check_disjoint(std::string_view operation, const ConstBuffer& send, const ConstBuffer& recv) {
  if (overlap(send, recv)) refuse(operation, "send overlaps recv; this operation doesn't work in place");
}

}  // namespace tsprun::detail::arguments
