// Timing and checking: see measure.h.
#include "launcher/bench/measure.h"

#include "launcher/bench/pattern.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

namespace tsprun::bench {

namespace {

// From here on one run is warm-up enough.
constexpr double kLongOperation = 50e-3;
// Doubles in a message by which the benchmark agrees with itself: a kibibyte.
constexpr std::size_t kMessage = 128;

// Where an output's expected elements come from: the values of one rank, or the sums over all.
constexpr int kAllRanks = -1;
struct Piece {
  std::size_t offset;
  std::size_t count;
  int source;
  std::uint64_t index;  // of the first element in the source's input
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Rank 0's value, on all ranks.
double tell(Subject& subject, double value) {
  if (subject.rank() != 0) {
    subject.receive({&value, 1}, 0);
    return value;
  }
  for (int to = 1; to < subject.size(); ++to) subject.send({&value, 1}, to);
  return value;
}

// Rank 0's `values` become what `combine` makes of all ranks'; the others' stay. In messages small enough to need no memory worth
// counting.
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

// This rank's seconds for `batch` operations after a barrier. In a pingpong only ranks 0 and 1 count.
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

// Also the warm-up. A batch grows until it takes so long that the ranks' different starts after the barrier don't count for much.
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
  // A tenth more, so that samples of a row that got faster meanwhile still reach the bound.
  const auto chosen = static_cast<std::uint64_t>(std::ceil(1.1 * kBatchSeconds / each));
  return {chosen, each * static_cast<double>(chosen)};
}

// How many iterations follow after `done` that took `elapsed` seconds.
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
  // All ones is NaN in every type: what the operation doesn't write is wrong. In place the input comes after it.
  if (output.count != 0) std::memset(output.data, 0xFF, output.bytes());
  const bool root = subject.rank() == 0;
  if (which.kind == Kind::broadcast && which.place == Place::usual && root) fill(output, seed, 0, 0, tick);
  fill(input, seed, subject.rank(), 0, tick);
  subject.run(which, 1);
  std::uint64_t wrong = 0;
  for (const Piece& piece : expected_pieces(which, subject.rank())) {
    const ConstBuffer part = ConstBuffer(output).slice(piece.offset, piece.count);
    wrong += piece.source == kAllRanks ? count_wrong_sums(part, seed, which.ranks, piece.index, tick)
                                       : count_wrong(part, seed, piece.source, piece.index, tick);
  }
  return wrong;
}

/// A rank's clock beside that of rank 0, which may be another machine's.
struct Clock {
  double ahead = 0;  ///< seconds
  double error = 0;  ///< at most
};

/// The shortest of some round trips to rank 0 tells.
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

RowBuffers buffers_of(Subject& subject, const Case& which) {
  const std::size_t element = size_of(which.dtype);
  const Buffer input(subject.input().data(), which.input_bytes() / element, which.dtype);
  const Buffer output(subject.output().data(), which.output_bytes() / element, which.dtype);
  if (which.place != Place::in_place) return {input, output};
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
  // Real numbers, and every page touched, before the clock runs.
  const auto [input, output] = buffers_of(subject, which);
  fill(input, 0, subject.rank(), 0, tick);
  fill(output, 0, subject.rank(), 0, tick);

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

}  // namespace tsprun::bench
