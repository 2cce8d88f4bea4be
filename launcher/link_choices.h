// Transports between all pairs of ranks, with reasons: as the options decide, and as the ranks chose and reported (core/links.h).
// The log and the report's `transports` show it as a table.
#pragma once

#include "launcher/options.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// The transport between two ranks.
struct LinkChoice {
  std::string kind;  ///< "shm", "verbs" or "tcp"; empty: not known, or not yet
  std::string why;
};

/// The transports between all pairs of ranks.
class LinkChoices {
 public:
  /// Starts with what follows from the options and from this machine's devices alone.
  explicit LinkChoices(const GlobalOptions& options);

  /// Takes what a rank said of its choices: the value of live/way/RANK in the job's store. Other keys, and lines that can't be
  /// understood, are ignored.
  void heard(std::string_view key, std::string_view value);
  /// Returns true if every rank with a choice has told it. Programs that don't use tsprun's library never do.
  bool complete() const { return untold_ == 0; }
  /// Returns true if all ranks share one node's memory, so that the table has nothing to tell.
  bool trivial() const { return trivial_; }

  /// Returns the transport from one rank to another, with the reason.
  LinkChoice between(int from, int to) const;
  /// Returns the table as lines, one for each transport and reason, with the number of pairs.
  std::vector<std::string> lines() const;
  /// Returns the report's `transports`: an element for consecutive ranks that use one transport for one reason towards the same
  /// others. `from_ranks` and `to_ranks` are ranges, "0-3" and "0-3,8", and stand for all pairs of two different ranks; `from`
  /// and `to` are the first such pair. So the table grows with the nodes, not with the pairs of ranks.
  nlohmann::ordered_json json() const;

 private:
  struct Told {
    bool done = false;
    std::vector<int> choice;  ///< by rank: index into reasons_; -1: not told
  };
  LinkChoice forecast(int from, int to) const;
  LinkChoice chosen(int from, int to) const;

  int ranks_;
  int nodes_;
  bootstrap::Demand intra_;
  bootstrap::Demand inter_;
  int node_here_;                   ///< -1: all nodes are here
  std::vector<std::string> lacks_;  ///< by kind: what this machine lacks; asked between nodes only
  bool trivial_;
  int untold_;
  std::vector<LinkChoice> reasons_;
  std::vector<Told> told_;  ///< by rank
};

}  // namespace tsprun::detail::launcher
