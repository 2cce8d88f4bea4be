// What a benchmark shows: nccl-tests' columns for people, rows of the JSON report for scripts.
#pragma once

#include "launcher/bench/measure.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::bench {

/// One form of a row, measured and checked; `wrong` may be kUnchecked.
struct Outcome {
  Timing timing;
  std::uint64_t wrong = kUnchecked;
};

/// A row in both forms; one that the operation doesn't have is missing.
struct Outcomes {
  std::optional<Outcome> out_of_place = {};
  std::optional<Outcome> in_place = {};
};

/// Who is measured, as a comment line: "tsprun bench: 8 ranks on 2 cores, transport shm".
std::string title_line(std::string_view who);
/// The comment lines above the rows of a kind: its name, and nccl-tests' heads.
std::vector<std::string> table_head(Kind kind);
/// One row, as nccl-tests prints it: size count type redop root, then time algbw busbw #wrong out of place and in place. `count`
/// is the elements of one rank's part where the operation has parts. Times are medians in µs, bandwidths in GB/s (10⁹ bytes).
std::string table_row(const Case& which, const Outcomes& outcomes);
/// The lines below the rows of a kind: nccl-tests' "# Out of bounds values" and "# Avg bus bandwidth", the mean over all rows in
/// both forms; and behind them the 99th percentiles, as comments, since parsers count columns from both ends.
std::vector<std::string> table_foot(std::span<const Case> cases, std::span<const Outcomes> outcomes);

/// One element of the report's "bench": the usual form's figures (see Place), and each form's under its name, null where there is
/// none. `wrong` is null if nothing was checked. Bandwidths in GB/s.
nlohmann::ordered_json json_row(const Case& which, const Outcomes& outcomes, std::string_view transport);

/// Prints tables and collects JSON rows of cases as they come, kind by kind.
class Table {
 public:
  using Print = std::function<void(const std::string& line)>;
  explicit Table(Print print) : print_(std::move(print)) {}

  void add(const Case& which, const Outcomes& outcomes, std::string_view transport);
  /// The same for programs that measure the usual form alone.
  void add(const Case& which, const Timing& timing, std::uint64_t wrong, std::string_view transport);
  /// After the last.
  void finish();
  const nlohmann::ordered_json& rows() const { return rows_; }

 private:
  Print print_;
  std::vector<Case> cases_;  ///< of the kind that is being printed
  std::vector<Outcomes> outcomes_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace tsprun::bench
