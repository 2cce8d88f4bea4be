// Measures operations for a benchmark. The method is the same for tsprun, MPI and the plain loops, which are Subjects.
//
//   timing    an untimed barrier precedes each iteration; operations below 100 µs are timed in batches of at least 100 µs; the
//             time of an iteration is the slowest rank's
//   checking  a separate, untimed pass: fresh data in every iteration, every element of every output compared
//
// All ranks call the same functions with the same arguments. Rank 0 decides on the number of iterations and tells the others.
#pragma once

#include "launcher/bench/case.h"

#include <cstdint>
#include <limits>
#include <span>

namespace tsprun::detail::bench {

/// A rank of the library that is measured. Failures are thrown as the library's own exceptions.
class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  /// Sends values to another rank, so that the ranks can agree on how to measure. Never timed.
  virtual void send(std::span<const double> values, int to) = 0;
  /// Receives values that another rank sent by send().
  virtual void receive(std::span<double> values, int from) = 0;

  /// Performs the operation `times` times, one directly after the other, on the buffers below. A pingpong is a round trip from
  /// rank 0's input to rank 1's output and from rank 1's input to rank 0's output; other ranks do nothing. Roots are rank 0.
  virtual void run(const Case& which, std::uint64_t times) = 0;
  /// Returns the input buffer, at least as large as the case needs.
  virtual std::span<std::byte> input() = 0;
  /// Returns the output buffer, at least as large as the case needs.
  virtual std::span<std::byte> output() = 0;
  /// Tells peers during long work between operations that this rank isn't stalled.
  virtual void tick() {}
};

/// Returns rank 0's value on all ranks.
double tell(Subject& subject, double value);

/// Buffers that an operation reads and writes on this rank. In place they overlap.
struct RowBuffers {
  Buffer input;
  Buffer output;
};
/// Returns the case's buffers within those of the subject.
RowBuffers buffers_of(Subject& subject, const Case& which);

/// Iterations and time to spend on a row.
struct Pace {
  std::uint64_t iterations = 0;  ///< exactly that many; 0: at least kAutoIterations and min_seconds, at most max_seconds
  double min_seconds = 0.3;
  double max_seconds = 2;
};
/// Fewest iterations of a row, unless max_seconds ends it earlier.
inline constexpr std::uint64_t kAutoIterations = 20;
/// Shortest timed batch, in seconds.
inline constexpr double kBatchSeconds = 100e-6;
/// Number of iterations of check().
inline constexpr int kCheckIterations = 5;

/// Times of a measured row; valid on rank 0.
struct Timing {
  double seconds_p50 = 0;  ///< median of one operation (pingpong: one way)
  double seconds_p99 = 0;
  double seconds_min = 0;
  std::uint64_t iterations = 0;
  std::uint64_t batch = 1;  ///< operations per iteration

  double algbw(const Case& which) const;  ///< in GB/s of 10⁹ bytes
  double busbw(const Case& which) const;
};

/// Measures one row. Collective over the subject's ranks.
Timing measure(Subject& subject, const Case& which, const Pace& pace);

/// Fewest bytes that copy_speed() copies: smaller buffers lie in caches.
inline constexpr std::size_t kLeastCopied = std::size_t{32} << 20;
/// Measures by how many 10⁹ bytes a second the slowest rank copies its input buffer to its output buffer while all do. Returns it
/// on rank 0; 0 if the smaller buffer has less than kLeastCopied bytes. Collective over the subject's ranks.
double copy_speed(Subject& subject);

/// Returns the number of wrong elements over all ranks and iterations, on every rank. For a barrier it returns how many times a
/// rank left before the last one had come; ranks may be on several machines, so clocks are compared first.
std::uint64_t check(Subject& subject, const Case& which, std::uint32_t seed);

/// Value of "#wrong" if nothing was checked.
inline constexpr std::uint64_t kUnchecked = std::numeric_limits<std::uint64_t>::max();

/// Returns the median of sorted values; for an even number of them the mean of the middle two. `sorted` must not be empty.
double median(std::span<const double> sorted);
/// Returns the q-quantile of sorted values by nearest rank. `sorted` must not be empty.
double percentile(std::span<const double> sorted, double q);

}  // namespace tsprun::detail::bench
