// What a benchmark measures: kinds of operation, and cases (a kind at a size). Everything that follows from a case alone lies
// here: counts, buffer sizes, the bus factor.
//
// Nothing in launcher/bench knows who moves the bytes: tsprun's `bench`, the MPI program and the bare loops of bench/ use the
// same code, so that they measure the same things in the same way.
#pragma once

#include "core/tensor/dtype.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::bench {

// X(name, per-rank parts, has a root, reduces)
// "per-rank parts": the buffer is cut into one equal part a rank, so its size must divide by ranks × element.
#define TSP_BENCH_KINDS(X)             \
  X(pingpong, false, false, false)     \
  X(broadcast, false, true, false)     \
  X(all_gather, true, false, false)    \
  X(reduce_scatter, true, false, true) \
  X(all_reduce, false, false, true)    \
  X(all_to_all, true, false, false)    \
  X(reduce, false, true, true)         \
  X(barrier, false, false, false)

enum class Kind : std::uint8_t {
#define TSP_X(name, parts, root, reduces) name,
  TSP_BENCH_KINDS(TSP_X)
#undef TSP_X
};

/// All kinds, in the order of `all`.
std::span<const Kind> all_kinds();
std::string_view name(Kind kind);
std::optional<Kind> kind_from_name(std::string_view text);
/// The buffer is cut into one part a rank.
bool has_parts(Kind kind);
bool has_root(Kind kind);
bool reduces(Kind kind);

/// Where an operation's input and output lie.
enum class Place : std::uint8_t {
  usual,         ///< a broadcast in place, everything else in two buffers
  in_place,      ///< in one: a gathered output holds the own part, an unscattered input the own result
  out_of_place,  ///< of a broadcast: the root's data in its input buffer, which it copies first
};

/// One row of a benchmark.
struct Case {
  Kind kind = Kind::barrier;
  DType dtype = DType::f32;
  int ranks = 1;
  /// nccl-tests' size: the whole buffer (gathered output, unscattered input). Divides by ranks × element where kinds have parts,
  /// by the element elsewhere; 0 for a barrier.
  std::uint64_t bytes = 0;
  Place place = Place::usual;

  /// Elements of the whole buffer.
  std::size_t elements() const { return bytes / size_of(dtype); }
  /// Elements of one rank's part; the whole buffer for kinds without parts.
  std::size_t count() const;
  /// What a rank's input and output buffers must hold at least. A usual broadcast happens in the output buffer.
  std::uint64_t input_bytes() const;
  std::uint64_t output_bytes() const;
  /// busbw = algbw × this: nccl-tests' doc/PERFORMANCE.md.
  double bus_factor() const;
};

/// The same row as nccl-tests has it on its left and on its right; none where the operation can't be done so.
std::optional<Case> out_of_place(const Case& which);
std::optional<Case> in_place(const Case& which);

/// Buffers that serve every case of a list.
struct BufferBytes {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  std::uint64_t total() const { return input + output; }
};

/// Every kind at every size, in the order given, sizes rounded down to what the kind can do; rows that would be empty are left
/// out. A barrier has one row. pingpong has none on a single rank.
std::vector<Case> make_cases(std::span<const Kind> kinds, std::span<const std::uint64_t> sizes, DType dtype, int ranks);
BufferBytes buffers_for(std::span<const Case> cases);
/// Both forms of every case.
std::vector<Case> in_both_places(std::span<const Case> cases);

/// "a,b,c" in parts; empty parts are kept, so that callers can refuse them.
std::vector<std::string> split_list(std::string_view text);

}  // namespace tsprun::bench
