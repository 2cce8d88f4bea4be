// News that the processes which serve a job's nodes tell each other while it runs, as keys of the job's store:
//
//   live/page/R   the flight board's page of rank R, with the time at which it was read
//   live/beat/I   node I is alive
//   live/abort/I  the first failure that node I knows
//
// Those processes are the launchers or, where no tsprun started the ranks, the first rank of each node (courier.h).
#pragma once

#include "core/board/boards.h"
#include "transport/bootstrap/store_link.h"
#include "transport/number.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Returns the number that follows `prefix` in `key`; -1 if the key begins otherwise, or no number below `limit` follows.
inline int number_after(std::string_view key, std::string_view prefix, int limit) {
  if (!key.starts_with(prefix)) return -1;
  const int number = number_from<int>(key.substr(prefix.size())).value_or(-1);
  return number >= 0 && number < limit ? number : -1;
}

/// Prefix of the keys above; whoever subscribes to it hears all nodes.
inline constexpr std::string_view kNewsPrefix = "live/";
/// Nanoseconds between two signs that a node is alive.
inline constexpr std::uint64_t kBeat_ns = 200'000'000;

/// The news of one node. Used by one thread.
class News {
 public:
  /// Sets a key of the store.
  using Say = std::function<void(const std::string& key, std::span<const std::byte> value)>;

  /// Takes the numbers of ranks and nodes of the job, and this node's.
  News(int ranks, int nodes, int self) : ranks_(ranks), nodes_(nodes), self_(self) {}

  /// Says the pages that have changed since it was last called and, every 200 ms, that this node is alive.
  void tell(Boards& boards, const Say& say);
  /// Says the job's first failure, once. Does nothing if there is none, or if another node has told one.
  void tell_failure(const Failure& failure, const Say& say);
  /// Takes what another node told and shows it on the boards. Returns that node; -1 if the key is none of the above, its value is
  /// malformed, or it is this node's own.
  int hear(const std::string& key, const std::vector<std::byte>& value, Boards& boards);

 private:
  int ranks_;
  int nodes_;
  int self_;
  std::uint64_t last_beat_ns_ = 0;
  bool failure_is_known_ = false;
};

}  // namespace tsprun::detail
