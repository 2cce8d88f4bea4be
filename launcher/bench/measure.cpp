// Times operations in batches, and checks results element by element.
#include "launcher/bench/measure.h"

#include "launcher/bench/pattern.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

namespace tsprun::detail::bench {

namespace {

// An operation that takes at least so many seconds needs no more warm-up than one run.
constexpr double kLongOperation = 50e-3;
// Most doubles in one message between the benchmark's ranks: 1 KiB.
constexpr std::size_t kMessage = 128;

// Source of an output's expected elements: the values of one rank, or (kAllRanks) the reductions over all.
constexpr int kAllRanks = -1;
struct Piece {
  std::size_t offset;
  std::size_t count;
  int source;
  std::uint64_t index;  // of the first element in the source's input
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Combines all ranks' values into rank 0's `values`; the others' stay as they are. Messages are small, so they need little
// memory.
template <class Combine>
void collect(Subject& subject, std::span<double> values, Combine combine) {
  double theirs[kMessage];
  for (std::size_t first = 0; first < values.size(); first += kMessage) {
    const std::span<double> mine = values.subspan(first, std::min(kMessage, values.size() - first));
    if (subject.rank() != 0) subject.send(mine, 0);
    for (int from = 1; subject.rank() == 0 && from < subject.size(); ++from) {
      subject.receive({theirs, mine.size()}, from);
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = combine(mine[i], theirs[i]);
    }
  }
}

double larger(double a, double b) { return std::max(a, b); }

// Returns this rank's seconds for `batch` operations after a barrier. In a pingpong only ranks 0 and 1 count.
double time_batch(Subject& subject, const Case& which, std::uint64_t batch) {
  subject.barrier();
  if (which.kind == Kind::pingpong && subject.rank() > 1) return 0;
  const double start = now();
  subject.run(which, batch);
  return now() - start;
}

double slowest_batch(Subject& subject, const Case& which, std::uint64_t batch) {
  double seconds = time_batch(subject, which, batch);
  collect(subject, {&seconds, 1}, larger);
  return tell(subject, seconds);
}

struct Estimate {
  std::uint64_t batch;
  double seconds;  // of a batch
};

// Chooses the number of operations in a batch, and warms up. The batch grows until the ranks' different starts after the barrier
// matter little.
Estimate choose_batch(Subject& subject, const Case& which) {
  const double cold = slowest_batch(subject, which, 1);
  if (cold >= kLongOperation) return {1, cold};
  std::uint64_t batch = 1;
  double seconds = slowest_batch(subject, which, batch);
  while (seconds < 4 * kBatchSeconds) {
    batch *= 2;
    seconds = slowest_batch(subject, which, batch);
  }
  const double each = seconds / static_cast<double>(batch);
  if (each >= kBatchSeconds) return {1, each};
  // A tenth more, so that samples still reach the bound if operations get faster meanwhile.
  const auto chosen = static_cast<std::uint64_t>(std::ceil(1.1 * kBatchSeconds / each));
  return {chosen, each * static_cast<double>(chosen)};
}

// Returns how many iterations to do after `done` that took `elapsed` seconds.
std::uint64_t more_iterations(const Pace& pace, std::uint64_t done, double elapsed, double estimate) {
  if (pace.iterations != 0) return done == 0 ? pace.iterations : 0;
  const double each = done == 0 ? estimate : elapsed / static_cast<double>(done);
  const double wanted = std::max(static_cast<double>(kAutoIterations), std::ceil(pace.min_seconds / each));
  const double allowed = std::max(1.0, std::floor(pace.max_seconds / each));
  const auto target = static_cast<std::uint64_t>(std::min(wanted, allowed));
  if (done == 0) return std::min(target, kAutoIterations);
  return target > done ? target - done : 0;
}

std::vector<Piece> expected_pieces(const Case& which, int rank) {
  const std::size_t count = which.count();
  const auto p = static_cast<std::uint64_t>(rank);
  std::vector<Piece> pieces;
  switch (which.kind) {
    case Kind::pingpong:
      if (rank < 2) pieces.push_back({0, count, 1 - rank, 0});
      break;
    case Kind::broadcast: pieces.push_back({0, count, 0, 0}); break;
    case Kind::all_gather:
      for (int r = 0; r < which.ranks; ++r) pieces.push_back({static_cast<std::size_t>(r) * count, count, r, 0});
      break;
    case Kind::reduce_scatter: pieces.push_back({0, count, kAllRanks, p * count}); break;
    case Kind::all_reduce: pieces.push_back({0, count, kAllRanks, 0}); break;
    case Kind::all_to_all:
      for (int r = 0; r < which.ranks; ++r) pieces.push_back({static_cast<std::size_t>(r) * count, count, r, p * count});
      break;
    case Kind::all_to_all_v: {
      std::size_t offset = 0;
      for (int r = 0; r < which.ranks; ++r) {
        std::uint64_t index = 0;
        for (int before = 0; before < rank; ++before) index += which.part(r, before);
        pieces.push_back({offset, which.part(r, rank), r, index});
        offset += which.part(r, rank);
      }
      break;
    }
    case Kind::reduce:
      if (rank == 0) pieces.push_back({0, count, kAllRanks, 0});
      break;
    case Kind::barrier: break;
  }
  return pieces;
}

std::uint64_t check_data_once(Subject& subject, const Case& which, std::uint32_t seed) {
  const Tick tick = [&subject] { subject.tick(); };
  const auto [input, output] = buffers_of(subject, which);
  // All ones is NaN, −1 or no bool, so that elements that the operation doesn't write count as wrong, all but a few of i8. In
  // place, the input is filled afterwards.
  if (output.count != 0) std::memset(output.data, 0xFF, output.bytes());
  const bool root = subject.rank() == 0;
  if (which.kind == Kind::broadcast && which.place == Placement::usual && root) fill(output, seed, 0, 0, tick);
  fill(input, seed, subject.rank(), 0, tick, reduces(which.kind) ? which.reduction : Reduction::sum);
  subject.run(which, 1);
  std::uint64_t wrong = 0;
  for (const Piece& piece : expected_pieces(which, subject.rank())) {
    const ConstBuffer part = ConstBuffer(output).slice(piece.offset, piece.count);
    wrong += piece.source == kAllRanks ? count_wrong_reductions(part, seed, which.ranks, piece.index, tick, which.reduction)
                                       : count_wrong(part, seed, piece.source, piece.index, tick);
  }
  return wrong;
}

/// A rank's clock compared with that of rank 0, which may be on another machine.
struct Clock {
  double ahead = 0;  ///< seconds by which it is ahead of rank 0's
  double error = 0;  ///< largest error of that, in seconds
};

/// Compares every rank's clock with rank 0's; the shortest of several round trips gives the result.
Clock compare_clocks(Subject& subject) {
  constexpr int kRounds = 5;
  double mine[2] = {0, 0};
  for (int other = 1; other < subject.size(); ++other) {
    if (subject.rank() == 0) {
      double best[2] = {0, std::numeric_limits<double>::infinity()};
      for (int i = 0; i < kRounds; ++i) {
        const double begin = now();
        double there = 0;
        subject.send({&begin, 1}, other);
        subject.receive({&there, 1}, other);
        const double end = now();
        if ((end - begin) / 2 >= best[1]) continue;
        best[0] = there - (begin + end) / 2;
        best[1] = (end - begin) / 2;
      }
      subject.send(best, other);
    } else if (subject.rank() == other) {
      for (int i = 0; i < kRounds; ++i) {
        double there = 0;
        subject.receive({&there, 1}, 0);
        const double here = now();
        subject.send({&here, 1}, 0);
      }
      subject.receive(mine, 0);
    }
  }
  return {mine[0], mine[1]};
}

std::uint64_t check_barrier_once(Subject& subject, const Case& which, const Clock& clock) {
  double came = now() - clock.ahead - clock.error;
  subject.run(which, 1);
  const double left = now() - clock.ahead + clock.error;
  collect(subject, {&came, 1}, larger);
  return left < tell(subject, came) ? 1 : 0;
}

}  // namespace

double tell(Subject& subject, double value) {
  if (subject.rank() != 0) {
    subject.receive({&value, 1}, 0);
    return value;
  }
  for (int to = 1; to < subject.size(); ++to) subject.send({&value, 1}, to);
  return value;
}

RowBuffers buffers_of(Subject& subject, const Case& which) {
  const std::size_t element = size_of(which.dtype);
  const Buffer input(subject.input().data(), which.input_bytes() / element, which.dtype);
  const Buffer output(subject.output().data(), which.output_bytes() / element, which.dtype);
  if (which.place != Placement::in_place) return {input, output};
  const std::size_t own = static_cast<std::size_t>(subject.rank()) * which.count();
  if (which.kind == Kind::all_gather) return {output.slice(own, which.count()), output};
  if (which.kind == Kind::reduce_scatter) return {input, input.slice(own, which.count())};
  return {output, output};
}

double median(std::span<const double> sorted) {
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double percentile(std::span<const double> sorted, double q) {
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

double Timing::algbw(const Case& which) const {
  return seconds_p50 > 0 ? static_cast<double>(which.bytes) / seconds_p50 / 1e9 : 0;
}

double Timing::busbw(const Case& which) const { return algbw(which) * which.bus_factor(); }

Timing measure(Subject& subject, const Case& which, const Pace& pace) {
  const Tick tick = [&subject] { subject.tick(); };
  // Fills the buffers before the clock runs: real numbers, and every page touched.
  const auto [input, output] = buffers_of(subject, which);
  fill(input, 0, subject.rank(), 0, tick, which.reduction);
  fill(output, 0, subject.rank(), 0, tick, which.reduction);

  const Estimate estimate = choose_batch(subject, which);
  std::vector<double> samples;
  const double start = now();
  while (true) {
    const std::uint64_t next = more_iterations(pace, samples.size(), now() - start, estimate.seconds);
    const auto agreed = static_cast<std::uint64_t>(tell(subject, static_cast<double>(next)));
    if (agreed == 0) break;
    for (std::uint64_t i = 0; i < agreed; ++i) samples.push_back(time_batch(subject, which, estimate.batch));
  }
  collect(subject, samples, larger);

  const double operations = static_cast<double>(estimate.batch) * (which.kind == Kind::pingpong ? 2 : 1);
  for (double& sample : samples) sample /= operations;
  std::sort(samples.begin(), samples.end());
  return {median(samples), percentile(samples, 0.99), samples.front(), samples.size(), estimate.batch};
}

double copy_speed(Subject& subject) {
  constexpr int kCopies = 7;
  const std::size_t bytes = std::min(subject.input().size(), subject.output().size());
  if (bytes < kLeastCopied) return 0;
  std::vector<double> samples;
  for (int i = 0; i < kCopies; ++i) {
    subject.barrier();
    const double start = now();
    std::memcpy(subject.output().data(), subject.input().data(), bytes);
    double seconds = now() - start;
    subject.tick();
    collect(subject, {&seconds, 1}, larger);
    samples.push_back(seconds);
  }
  std::sort(samples.begin(), samples.end());
  return static_cast<double>(bytes) / median(samples) / 1e9;
}

std::uint64_t check(Subject& subject, const Case& which, std::uint32_t seed) {
  double wrong = 0;
  const Clock clock = which.kind == Kind::barrier ? compare_clocks(subject) : Clock();
  for (int i = 0; i < kCheckIterations; ++i) {
    const std::uint32_t fresh = seed + static_cast<std::uint32_t>(i) + 1;
    wrong += static_cast<double>(which.kind == Kind::barrier ? check_barrier_once(subject, which, clock)
                                                             : check_data_once(subject, which, fresh));
  }
  collect(subject, {&wrong, 1}, [](double a, double b) { return a + b; });
  return static_cast<std::uint64_t>(tell(subject, wrong));
}

}  // namespace tsprun::detail::bench
