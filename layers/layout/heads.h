// Cut of attention's heads over ranks. Query heads are cut evenly (D divides n_h). K/V head j, with its rows of W_K and W_V,
// belongs to the owner of its first query head j·g and exists once, whatever n_kv and D are. Ranks whose query heads read it
// without owning it (n_kv < D, or a cut that splits a group) use the owner's under TSP and hold a copy under TP.
#pragma once

#include <cstddef>
#include <vector>

namespace tsprun::detail {

/// Heads first, first + 1, …, first + count − 1.
struct HeadRange {
  std::size_t first;
  std::size_t count;
  std::size_t end() const { return first + count; }
  bool operator==(const HeadRange&) const = default;
};

/// A cut of n_h query heads and n_kv K/V heads over D ranks.
class HeadCut {
 public:
  /// Throws Error(refused) unless `ranks` divides query_heads and kv_heads divides query_heads; the message names degrees that
  /// work.
  HeadCut(std::size_t query_heads, std::size_t kv_heads, int ranks);

  int ranks() const { return ranks_; }
  std::size_t heads_per_kv_head() const { return query_heads_ / kv_heads_; }  ///< g
  std::size_t kv_head_of(std::size_t query_head) const { return query_head / heads_per_kv_head(); }

  /// Returns the rank's query heads.
  HeadRange query_heads(int rank) const;
  /// Returns the K/V heads that the rank owns; none if query heads of earlier ranks read all of its K/V heads first.
  HeadRange kv_heads_owned(int rank) const;
  /// Returns the K/V heads that the rank's query heads read.
  HeadRange kv_heads_read(int rank) const;
  /// Returns the rank that owns the head, which is the first whose query heads read it.
  int kv_owner(std::size_t kv_head) const;
  /// Returns the last rank whose query heads read the head.
  int kv_last_reader(std::size_t kv_head) const;

  /// Returns the number of K/V heads that the ranks read, summed over ranks: m(D) of the traffic table in docs/algorithms.md. It
  /// is max(n_kv, D) if one divides the other.
  std::size_t kv_heads_read_by_all() const;

 private:
  std::size_t query_heads_;
  std::size_t kv_heads_;
  int ranks_;
};

}  // namespace tsprun::detail
