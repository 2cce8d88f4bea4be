// How a benchmark measures: the same for tsprun, MPI and the bare loops, which are Subjects.
//
//   timing    an untimed barrier precedes each iteration; operations below 100 µs are timed in batches of at least 100 µs; the
//             time of an iteration is the slowest rank's
//   checking  a pass of its own, untimed: fresh data in every iteration, every element of every output compared
//
// All ranks call the same functions with the same arguments; rank 0 decides how many iterations there are and tells the others.
#pragma once

#include "launcher/bench/case.h"

#include <cstdint>
#include <limits>
#include <span>

namespace tsprun::bench {

/// One rank of whatever is measured. Failures are thrown as the subject's own exceptions.
class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  /// Plain messages by which the benchmark agrees with itself; never timed.
  virtual void send(std::span<const double> values, int to) = 0;
  virtual void receive(std::span<double> values, int from) = 0;

  /// Does the operation `times` times, one right after the other, on the buffers below. A pingpong is a round trip from rank 0's
  /// input to rank 1's output and from rank 1's input to rank 0's output; other ranks do nothing. Roots are rank 0; reductions
  /// sum.
  virtual void run(const Case& which, std::uint64_t times) = 0;
  /// At least as large as the case asks for.
  virtual std::span<std::byte> input() = 0;
  virtual std::span<std::byte> output() = 0;
  /// A sign of life during long work between operations.
  virtual void tick() {}
};

/// What an operation reads and writes on this rank, in a subject's buffers; in place they overlap.
struct RowBuffers {
  Buffer input;
  Buffer output;
};
RowBuffers buffers_of(Subject& subject, const Case& which);

/// How long to measure a row.
struct Pace {
  std::uint64_t iterations = 0;  ///< exactly that many; 0: at least kAutoIterations and min_seconds, but at most max_seconds
  double min_seconds = 0.3;
  double max_seconds = 2;
};
inline constexpr std::uint64_t kAutoIterations = 20;
inline constexpr double kBatchSeconds = 100e-6;
inline constexpr int kCheckIterations = 5;

/// A measured row; valid on rank 0.
struct Timing {
  double seconds_p50 = 0;  ///< of one operation (pingpong: one way)
  double seconds_p99 = 0;
  double seconds_min = 0;
  std::uint64_t iterations = 0;
  std::uint64_t batch = 1;  ///< operations an iteration

  double algbw(const Case& which) const;  ///< GB/s, 10⁹ bytes
  double busbw(const Case& which) const;
};

Timing measure(Subject& subject, const Case& which, const Pace& pace);

/// Wrong elements over all ranks and iterations, on every rank. For a barrier: ranks that left one before the last had come, by
/// clocks that are compared first (ranks may be on several machines).
std::uint64_t check(Subject& subject, const Case& which, std::uint32_t seed);

/// What stands in "#wrong" where nothing was checked.
inline constexpr std::uint64_t kUnchecked = std::numeric_limits<std::uint64_t>::max();

/// The q-quantile by nearest rank, the median of an even number as the mean of the middle two. `sorted` isn't empty.
double median(std::span<const double> sorted);
double percentile(std::span<const double> sorted, double q);

}  // namespace tsprun::bench
