// Kinds of operation that a benchmark measures, and cases (a kind at a size), with everything that follows from a case alone:
// element counts, buffer sizes, the bus factor.
//
// Nothing in launcher/bench knows which library moves the bytes. tsprun's `bench`, the MPI program and the plain loops in bench/
// use the same code, so that they measure the same things in the same way.
#pragma once

#include "tsprun/types.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bench {

/// Kind of operation that is measured. case.cpp has a row for each.
enum class Kind : std::uint8_t {
  pingpong,
  broadcast,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  all_to_all_v,  ///< with parts of unlike sizes: see Case::part()
  reduce,
  barrier
};

/// Returns all kinds, in the order that `all` means.
std::span<const Kind> all_kinds();
/// Returns a kind's name as it is typed and reported.
std::string_view name(Kind kind);
/// Returns the kind of this name; empty if there is none.
std::optional<Kind> kind_from_name(std::string_view text);
/// Returns true if the buffer consists of one equal part per rank, so that its size must be a multiple of ranks × element size.
bool has_parts(Kind kind);
/// Returns true if the operation has a root.
bool has_root(Kind kind);
/// Returns true if the operation is a reduction.
bool reduces(Kind kind);

/// Placement of an operation's input and output.
enum class Placement : std::uint8_t {
  usual,         ///< a broadcast in place, all others in two buffers
  in_place,      ///< in one buffer: the own part lies in the gathered output, the own result in the unscattered input
  out_of_place,  ///< a broadcast in two buffers: the root first copies its input to its output
};

/// One row of a benchmark.
struct Case {
  Kind kind = Kind::barrier;
  DType dtype = DType::f32;
  int ranks = 1;
  /// Size in bytes as nccl-tests defines it: the whole buffer (gathered output, unscattered input). A multiple of ranks × element
  /// size for kinds with parts, of the element size for others; 0 for a barrier.
  std::uint64_t bytes = 0;
  Placement place = Placement::usual;
  Reduction reduction = Reduction::sum;  ///< of the kinds that reduce; `dtype` must have it

  /// Returns the number of elements of the whole buffer.
  std::size_t elements() const { return bytes / size_of(dtype); }
  /// Returns the number of elements of one rank's part; of the whole buffer for kinds without parts.
  std::size_t count() const;
  /// Returns the elements that a rank sends to another in an all_to_all or all_to_all_v. Of the latter, as in rccl-tests, the
  /// parts are 0, 2/n, 4/n, … of even ones: rank p sends the ((p + r) mod n)-th of them to rank r.
  std::size_t part(int from, int to) const;
  /// Returns the elements of each part that `rank` sends, by their receivers, and gets, by their senders: the same numbers.
  std::vector<std::size_t> parts_of(int rank) const;
  /// Returns the least bytes that a rank's input buffer must hold. A usual broadcast needs none, since it happens in the output
  /// buffer.
  std::uint64_t input_bytes() const;
  /// Returns the least bytes that a rank's output buffer must hold.
  std::uint64_t output_bytes() const;
  /// Returns busbw / algbw, as nccl-tests' doc/PERFORMANCE.md defines it.
  double bus_factor() const;
};

/// Returns the case in the form that nccl-tests shows on the left, in two buffers.
std::optional<Case> out_of_place(const Case& which);
/// Returns the case in the form that nccl-tests shows on the right, in one buffer; empty if the operation has no such form.
std::optional<Case> in_place(const Case& which);

/// Sizes of buffers that serve every case of a list.
struct BufferBytes {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  std::uint64_t total() const { return input + output; }
};

/// Returns a case for every kind at every size, in the order given. Sizes are rounded down to a size that the kind can have;
/// cases that would be empty are left out. A barrier has one case. pingpong has none on a single rank.
std::vector<Case> make_cases(std::span<const Kind> kinds, std::span<const std::uint64_t> sizes, DType dtype, int ranks);
/// Returns the sizes of buffers that serve every case.
BufferBytes buffers_for(std::span<const Case> cases);
/// Returns every case in its out-of-place and, if it has one, its in-place form.
std::vector<Case> in_both_places(std::span<const Case> cases);

/// Returns first, first · factor, … up to `last` bytes. Precondition: first ≥ 1, factor ≥ 2.
std::vector<std::uint64_t> growing_sizes(std::uint64_t first, std::uint64_t last, std::uint64_t factor);

/// Splits "a,b,c" at the commas. Empty parts are kept, so that callers can refuse them.
std::vector<std::string> split_list(std::string_view text);

}  // namespace tsprun::detail::bench
