// The report's `steps`. A month's run has millions of them, and tsprun's memory doesn't grow with the run: they are kept as text,
// in a file without a name beside the report as soon as there are more than a few hundred.
#pragma once

#include "transport/posix.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Rows of JSON, in the order in which they came.
class StepList {
 public:
  /// Makes an empty list. `beside`: the path in whose folder the file may lie; where none can lie there, it lies in $TMPDIR or
  /// /tmp.
  explicit StepList(std::filesystem::path beside) : beside_(std::move(beside)) {}

  /// Adds a row, an object in JSON. Anything else is left out.
  void append(std::string_view json);
  /// Removes the first row whose field `step` is larger than `step`, and all behind it.
  void keep_up_to(std::uint64_t step);
  /// Hands the list on as a JSON array, piece by piece.
  void print(const std::function<void(std::string_view)>& take) const;
  /// Returns why rows are missing; empty: none is.
  const std::string& trouble() const { return trouble_; }

 private:
  /// Calls `look` with every row and the place of its first byte, until that returns false.
  void each(const std::function<bool(std::string_view row, std::uint64_t place)>& look) const;
  void move_to_file();

  std::filesystem::path beside_;
  posix::UniqueFd file_;
  std::uint64_t in_file_ = 0;  // bytes
  std::string last_;           // rows that aren't in the file yet, each with a newline at its end
  std::string trouble_;
};

}  // namespace tsprun::detail::launcher
