// Output of a benchmark: nccl-tests' columns for people, rows of the JSON report for scripts. A terminal that is too narrow for
// these columns gets a line for each form of a row.
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

namespace tsprun::detail::bench {

/// Times and wrong elements of one form of a row; `wrong` may be kUnchecked.
struct Measurement {
  Timing timing;
  std::uint64_t wrong = kUnchecked;
};

/// Outcomes of both forms of a row; a form that the operation doesn't have is empty.
struct Measurements {
  std::optional<Measurement> out_of_place = {};
  std::optional<Measurement> in_place = {};
};

/// Returns a comment line that says what is measured: "# tsprun bench: 8 ranks on 2 cores, transport shm".
std::string title_line(std::string_view title);
/// Returns the comment lines above the rows of a kind: its name and nccl-tests' column heads.
std::vector<std::string> table_head(Kind kind);
/// Returns one row as nccl-tests prints it: size count type redop root, then time algbw busbw #wrong out of place and in place.
/// `count` is the elements of one rank's part if the operation has parts. Times are medians in µs, bandwidths in GB/s (10⁹
/// bytes).
std::string table_row(const Case& which, const Measurements& outcomes);
/// Returns the lines below the rows of a kind: nccl-tests' "# Out of bounds values" and "# Avg bus bandwidth", the mean over all
/// rows in both forms; then the 99th percentiles as comments, since parsers count columns from both ends.
std::vector<std::string> table_foot(std::span<const Case> cases, std::span<const Measurements> outcomes);

/// Returns the comment lines above a table of `columns` columns that has no room for nccl-tests'.
std::vector<std::string> narrow_head(const Case& which, std::size_t columns);
/// Returns a row of such a table: a line for each form, with size and place, time, algbw (where there is room), busbw and #wrong.
std::vector<std::string> narrow_rows(const Case& which, const Measurements& outcomes, std::size_t columns);

/// Returns one element of the report's "bench": the figures of the usual form (see Placement), and those of each form under its
/// name, null if there is none. `wrong` is null if nothing was checked. Bandwidths are in GB/s.
nlohmann::ordered_json json_row(const Case& which, const Measurements& outcomes, std::string_view transport);

/// Prints tables and collects JSON rows of cases as they come, one kind after the other.
class ResultTable {
 public:
  using Print = std::function<void(const std::string& line)>;
  /// `columns`: those of the terminal, into which tables fit.
  explicit ResultTable(Print print, std::size_t columns = static_cast<std::size_t>(-1))
      : print_(std::move(print)), columns_(columns) {}

  /// Adds one row with its forms.
  void add(const Case& which, const Measurements& outcomes, std::string_view transport);
  /// Adds one row for programs that measure the usual form alone.
  void add(const Case& which, const Timing& timing, std::uint64_t wrong, std::string_view transport);
  /// Prints the lines below the last kind's rows. Call after the last add().
  void finish();
  const nlohmann::ordered_json& rows() const { return rows_; }

 private:
  Print print_;
  std::size_t columns_;
  std::vector<Case> cases_;  ///< cases of the kind that is being printed
  std::vector<Measurements> outcomes_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace tsprun::detail::bench
