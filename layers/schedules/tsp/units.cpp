// Cuts every owner's K/V heads into buckets, then every turn's query heads into units, each within one bucket.
#include "layers/schedules/tsp/units.h"

namespace tsprun::detail {

TspUnits plan_units(const HeadCut& heads, std::size_t kv_heads, std::size_t bucket_heads) {
  TspUnits plan;
  auto& [buckets, units] = plan;
  std::vector<std::size_t> bucket_of(kv_heads);
  for (int r = 0; r < heads.ranks(); ++r) {
    const HeadRange owned = heads.kv_heads_owned(r);
    for (std::size_t head = owned.first; head < owned.end(); ++head) {
      // A head that later turns read, too, must stay longer than its neighbours, so it gets a bucket of its own.
      const bool joins = head > owned.first && buckets.back().heads.count < bucket_heads &&
                         heads.kv_last_reader(head) == heads.kv_last_reader(head - 1);
      if (joins) ++buckets.back().heads.count;
      else buckets.push_back({.owner = r, .heads = {head, 1}});
      bucket_of[head] = buckets.size() - 1;
    }
  }
  for (int r = 0; r < heads.ranks(); ++r) {
    const HeadRange queries = heads.query_heads(r);
    for (std::size_t head = queries.first; head < queries.end(); ++head) {
      const std::size_t bucket = bucket_of[heads.kv_head_of(head)];
      if (head > queries.first && units.back().bucket == bucket) {
        ++units.back().queries.count;
        continue;
      }
      units.push_back({.turn = r,
                       .bucket = bucket,
                       .queries = {head, 1},
                       .first_of_turn = head == queries.first,
                       .last_of_turn = false,
                       .first_of_bucket = units.empty() || units.back().bucket != bucket,
                       .last_of_bucket = false});
    }
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    const bool end = u + 1 == units.size();
    units[u].last_of_turn = end || units[u + 1].turn != units[u].turn;
    units[u].last_of_bucket = end || units[u + 1].bucket != units[u].bucket;
  }
  return plan;
}

}  // namespace tsprun::detail
