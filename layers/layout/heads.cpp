// Computes ranges of heads from D, n_h and n_kv, and refuses degrees that don't divide n_h.
#include "layers/layout/heads.h"

#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tsprun::detail {

namespace {
/// Returns the nearest degrees below and above `degree` that divide `heads`.
std::vector<std::size_t> nearest_divisors(std::size_t heads, std::size_t degree) {
  std::vector<std::size_t> result;
  for (std::size_t below = degree; below-- > 1;) {
    if (heads % below == 0) {
      result.push_back(below);
      break;
    }
  }
  for (std::size_t above = degree + 1; above <= heads; ++above) {
    if (heads % above == 0) {
      result.push_back(above);
      break;
    }
  }
  return result;
}
}  // namespace

HeadCut::HeadCut(std::size_t query_heads, std::size_t kv_heads, int ranks)
    : query_heads_(query_heads), kv_heads_(kv_heads), ranks_(ranks) {
  if (kv_heads == 0 || query_heads == 0 || query_heads % kv_heads != 0) {
    throw Error(Cause::refused, fmt::format("{} K/V heads don't divide {} query heads", kv_heads, query_heads));
  }
  if (ranks < 1 || query_heads % static_cast<std::size_t>(ranks) != 0) {
    const std::size_t degree = ranks < 1 ? 0 : static_cast<std::size_t>(ranks);
    throw Error(Cause::refused, fmt::format("{} query heads don't divide by {}; try {}", query_heads, ranks,
                                            fmt::join(nearest_divisors(query_heads, degree), " or ")));
  }
}

HeadRange HeadCut::query_heads(int rank) const {
  const std::size_t count = query_heads_ / static_cast<std::size_t>(ranks_);
  return {static_cast<std::size_t>(rank) * count, count};
}

HeadRange HeadCut::kv_heads_owned(int rank) const {
  // K/V heads j whose first query head j·g is one of the rank's.
  const HeadRange mine = query_heads(rank);
  const std::size_t g = heads_per_kv_head();
  const std::size_t first = (mine.first + g - 1) / g;
  return {first, (mine.end() + g - 1) / g - first};
}

HeadRange HeadCut::kv_heads_read(int rank) const {
  const HeadRange mine = query_heads(rank);
  const std::size_t first = kv_head_of(mine.first);
  return {first, kv_head_of(mine.end() - 1) + 1 - first};
}

int HeadCut::kv_owner(std::size_t kv_head) const {
  return static_cast<int>(kv_head * heads_per_kv_head() / query_heads(0).count);
}

int HeadCut::kv_last_reader(std::size_t kv_head) const {
  return static_cast<int>(((kv_head + 1) * heads_per_kv_head() - 1) / query_heads(0).count);
}

std::size_t HeadCut::kv_heads_read_by_all() const {
  std::size_t sum = 0;
  for (int rank = 0; rank < ranks_; ++rank) sum += kv_heads_read(rank).count;
  return sum;
}

}  // namespace tsprun::detail
