// Which transport ranks use between each other, and why: what the options settle, and what the ranks themselves chose and told
// (core/links.h). The table of the log and of the report's `transports`.
#pragma once

#include "launcher/options.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

struct Way {
  std::string kind;  ///< "shm", "verbs", "tcp"; empty: not known (yet)
  std::string why;
};

class Ways {
 public:
  /// What follows from the options and from this machine's devices alone.
  explicit Ways(const GlobalOptions& options);

  /// What a rank said of its choices: the value of live/way/RANK in the job's store; other keys say nothing here. Lines that
  /// can't be understood are left out.
  void heard(std::string_view key, std::string_view value);
  /// Every rank that there is something to choose for has told. Programs that don't speak to tsprun never do.
  bool complete() const { return untold_ == 0; }
  /// True if all ranks share one node's memory: the table has nothing to tell.
  bool trivial() const { return trivial_; }

  Way between(int from, int to) const;
  /// The table in lines: one for each transport and reason, with the number of pairs.
  std::vector<std::string> lines() const;
  /// `transports` of the report: an element for ranks in a row that use one transport for one reason towards the same others.
  /// `from_ranks` and `to_ranks` are ranges, "0-3" and "0-3,8", and stand for all pairs of two different ranks; `from` and `to`
  /// are the first such pair. So it grows with the nodes, not with the pairs of ranks.
  nlohmann::ordered_json json() const;

 private:
  struct Told {
    bool done = false;
    std::vector<int> choice;  ///< by rank: index into reasons_, -1: nothing said
  };
  Way forecast(int from, int to) const;
  Way chosen(int from, int to) const;

  int ranks_;
  int nodes_;
  std::string intra_;
  std::string inter_;
  int node_here_;  ///< -1: all nodes are here
  bool device_here_;
  bool trivial_;
  int untold_;
  std::vector<Way> reasons_;
  std::vector<Told> told_;  ///< by rank
};

}  // namespace tsprun::launcher
