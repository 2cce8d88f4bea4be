// Sums of a rank's kernels and waits, for `--profile`: a row for each kernel on tensors of the same sizes, however long the run
// is. Where a text's next token attends, keys count as the next power of two, since their number grows with every token.
#pragma once

#include "tsprun/trace.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// Adds up the events of one rank; used by the rank's thread.
class Profile {
 public:
  /// All calls of a kernel on tensors of the same sizes.
  struct Kernel {
    std::string_view name;                 ///< points to static storage
    std::string_view matrix;               ///< as TraceEvent has it
    std::array<std::uint32_t, 5> sizes{};  ///< as TraceEvent has them
    std::uint64_t calls = 0;
    std::uint64_t ns = 0;     ///< with what the ticks between its tasks spent on communication
    double flops = 0;         ///< of all calls
    std::uint64_t bytes = 0;  ///< read and written by all calls
  };
  /// All waits in which the same rank's part of the same kind of operation was missing for longest.
  struct Wait {
    Op op = Op::barrier;
    std::int32_t rank = -1;  ///< world rank; -1: nothing was missing any more when it was looked for
    std::uint64_t calls = 0;
    std::uint64_t ns = 0;
  };

  /// Adds a kernel or a wait; other events aren't summed up.
  void add(const TraceEvent& event);
  /// Adds to the time in which events were added.
  void lasted(std::uint64_t ns) { total_ns_ += ns; }

  /// Returns the sums in the order of their first events.
  const std::vector<Kernel>& kernels() const { return kernels_; }
  const std::vector<Wait>& waits() const { return waits_; }
  /// Returns the nanoseconds in which events were added, kernels, waits and everything else.
  std::uint64_t total_ns() const { return total_ns_; }

 private:
  struct Hash {
    std::size_t operator()(const std::tuple<std::string_view, std::string_view, std::array<std::uint32_t, 5>>& key) const;
  };

  std::vector<Kernel> kernels_;
  std::vector<Wait> waits_;
  std::unordered_map<std::tuple<std::string_view, std::string_view, std::array<std::uint32_t, 5>>, std::size_t, Hash> places_;
  std::map<std::pair<Op, std::int32_t>, std::size_t> wait_places_;
  std::uint64_t total_ns_ = 0;
};

}  // namespace tsprun::detail
