// The floor under every collective: bare loops that move the same bytes with as many threads as cores (at most one a rank), all
// bytes of an operation split evenly between them.
//
//   broadcast                n−1 copies of the buffer
//   all_gather, all_to_all   n copies
//   reduce_scatter, reduce   a sum of n streams
//   all_reduce               both: a sum of n streams, n copies
//   pingpong                 one copy by one thread each way; up to 64 B a bare flag between two threads
//
// --read measures a read-only stream instead, which decoding is held against.
//
// Measured by the code that measures tsprun and MPI. A barrier has no floor but the flag; it is left out.
#include "bench/arguments.h"
#include "bench/floor_loops.h"
#include "bench/team.h"
#include "transport/posix.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tsprun::detail::bench {

namespace {

constexpr std::uint64_t kFlagBytes = 64;

/// The buffers of n imagined ranks, shared by all threads.
struct Buffers {
  Buffers(BufferBytes need, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.emplace_back(need.input);
      outputs.emplace_back(need.output);
    }
  }
  std::span<std::byte> input(int rank) const { return inputs[static_cast<std::size_t>(rank)].bytes(); }
  std::span<std::byte> output(int rank) const { return outputs[static_cast<std::size_t>(rank)].bytes(); }

  std::vector<PlainMemory> inputs;
  std::vector<PlainMemory> outputs;
};

/// One thread of the team.
class FloorSubject final : public Subject {
 public:
  FloorSubject(Team& team, const Buffers& buffers, int ranks, int thread)
      : team_(team), buffers_(buffers), ranks_(ranks), thread_(thread) {}

  int rank() const override { return thread_; }
  int size() const override { return team_.size(); }
  void barrier() override { team_.barrier(thread_); }
  void send(std::span<const double> values, int to) override { team_.send(thread_, to, values); }
  void receive(std::span<double> values, int from) override { team_.receive(from, thread_, values); }
  std::span<std::byte> input() override { return buffers_.input(thread_); }
  std::span<std::byte> output() override { return buffers_.output(thread_); }

  void run(const Case& which, std::uint64_t times) override {
    if (which.kind == Kind::pingpong && which.bytes <= kFlagBytes) return team_.flag_pingpong(thread_, times);
    for (std::uint64_t i = 0; i < times; ++i) run_once(which);
  }

  /// Touches the buffers of those imagined ranks that have no thread.
  void prepare() {
    for (int rank = thread_; rank < ranks_; rank += team_.size()) {
      std::ranges::fill(buffers_.input(rank), std::byte{0});
      std::ranges::fill(buffers_.output(rank), std::byte{0});
    }
    barrier();
  }

 private:
  // This thread's share [first, last) of `elements`.
  std::size_t share(std::size_t elements, int thread) const {
    return elements * static_cast<std::size_t>(thread) / static_cast<std::size_t>(team_.size());
  }

  void run_once(const Case& which) {
    switch (which.kind) {
      case Kind::pingpong:
        if (thread_ == 0) {
          std::memcpy(buffers_.output(1).data(), buffers_.input(0).data(), which.bytes);
          std::memcpy(buffers_.output(0).data(), buffers_.input(1).data(), which.bytes);
        }
        break;
      case Kind::broadcast: copy_shares(which, 1); break;
      case Kind::all_gather: gather_shares(which, false); break;
      case Kind::all_to_all:
      case Kind::all_to_all_v: gather_shares(which, true); break;  // of even parts
      case Kind::reduce_scatter:
      case Kind::reduce: sum_shares(which); break;
      case Kind::all_reduce:
        sum_shares(which);
        // The copies read what other threads summed.
        barrier();
        copy_shares(which, 0);
        break;
      case Kind::barrier: break;
    }
  }

  // Rank 0's output to the outputs of ranks first_rank … n-1; with first_rank 0 the last of n copies goes to rank 0's input.
  void copy_shares(const Case& which, int first_rank) {
    const std::size_t first = share(which.elements(), thread_) * size_of(which.dtype);
    const std::size_t last = share(which.elements(), thread_ + 1) * size_of(which.dtype);
    const std::byte* from = buffers_.output(0).data();
    for (int rank = first_rank; rank < ranks_; ++rank) {
      std::byte* to = rank == 0 ? buffers_.input(0).data() : buffers_.output(rank).data();
      std::memcpy(to + first, from + first, last - first);
    }
  }

  // A part of every rank's input to every rank's output: the first one, or with `each` another one to each.
  void gather_shares(const Case& which, bool each) {
    const std::size_t part = which.count() * size_of(which.dtype);
    const std::size_t first = share(which.count(), thread_) * size_of(which.dtype);
    const std::size_t last = share(which.count(), thread_ + 1) * size_of(which.dtype);
    for (int to = 0; to < ranks_; ++to) {
      for (int from = 0; from < ranks_; ++from) {
        std::memcpy(buffers_.output(to).data() + static_cast<std::size_t>(from) * part + first,
                    buffers_.input(from).data() + (each ? static_cast<std::size_t>(to) * part : 0) + first, last - first);
      }
    }
  }

  template <class T>
  void sum_elements(std::size_t first, std::size_t last, std::byte* to) {
    std::vector<const T*> streams;
    for (int rank = 0; rank < ranks_; ++rank) streams.push_back(reinterpret_cast<const T*>(buffers_.input(rank).data()) + first);
    sum_streams(reinterpret_cast<T*>(to), streams, last - first);
  }

  // Sums of all ranks' inputs. They go where a reduce_scatter puts them, to each rank's own output, elsewhere to rank 0's.
  void sum_shares(const Case& which) {
    const std::size_t per_output = which.count();
    std::size_t first = share(which.elements(), thread_);
    const std::size_t end = share(which.elements(), thread_ + 1);
    while (first < end) {
      const std::size_t rank = first / per_output;
      const std::size_t last = std::min(end, (rank + 1) * per_output);
      std::byte* to = buffers_.output(static_cast<int>(rank)).data() + (first - rank * per_output) * size_of(which.dtype);
      if (which.dtype == DType::f64) {
        sum_elements<double>(first, last, to);
      } else {
        sum_elements<float>(first, last, to);
      }
      first = last;
    }
  }

  Team& team_;
  const Buffers& buffers_;
  int ranks_;
  int thread_;
};

void measure_all(Arguments arguments, int ranks) {
  arguments.check = false;
  const int threads = std::min(ranks, static_cast<int>(allowed_cpus().size()));
  std::vector<Case> cases = arguments.cases(ranks);
  std::erase_if(cases, [threads](const Case& each) {
    return each.kind == Kind::barrier || (each.kind == Kind::pingpong && threads < 2 && each.bytes <= kFlagBytes);
  });
  if (cases.empty()) throw std::invalid_argument("nothing to measure: no operation asked for has a floor at these sizes");
  const Buffers buffers(buffers_for(cases), ranks);
  Team team(threads);
  const std::string title =
      "floor: bare loops for " + std::to_string(ranks) + " ranks on " + std::to_string(threads) + " threads";
  team.run([&](int thread) {
    FloorSubject subject(team, buffers, ranks, thread);
    subject.prepare();
    measure_cases(subject, arguments, cases, title, "floor");
  });
}

/// Prints the median speed, in GB/s, at which a thread on each core reads its part of 1 GiB.
void measure_reading() {
  constexpr std::size_t kWords = std::size_t{1} << 27;
  constexpr int kRounds = 9;
  Team team(static_cast<int>(allowed_cpus().size()));
  const auto part = kWords / static_cast<std::size_t>(team.size());
  std::vector<std::vector<std::uint64_t>> words(static_cast<std::size_t>(team.size()));
  std::vector<double> speeds;
  team.run([&](int thread) {
    std::vector<std::uint64_t>& mine = words[static_cast<std::size_t>(thread)];
    mine.assign(part, 1);
    for (int round = 0; round < kRounds; ++round) {
      team.barrier(thread);
      const std::uint64_t begin = posix::now_ns();
      if (read_stream(mine) != part) std::abort();
      team.barrier(thread);
      const auto bytes = static_cast<double>(part * sizeof(std::uint64_t)) * team.size();
      if (thread == 0) speeds.push_back(bytes / static_cast<double>(posix::now_ns() - begin));
    }
  });
  std::nth_element(speeds.begin(), speeds.begin() + kRounds / 2, speeds.end());
  std::printf("%.2f\n", speeds[kRounds / 2]);
}

}  // namespace

}  // namespace tsprun::detail::bench

int main(int argc, char** argv) {
  CLI::App app("bare loops over the bytes of collective operations: the floor that bench/README.md compares with");
  tsprun::detail::bench::Arguments arguments;
  int ranks = 2;
  arguments.add_to(app);
  app.add_option("-n,--ranks", ranks, "how many ranks' bytes to move")->check(CLI::Range(1, 1024))->capture_default_str();
  bool reading = false;
  app.add_flag("--read", reading, "measure a read-only stream of a thread on each core instead, in GB/s");
  CLI11_PARSE(app, argc, argv);
  try {
    if (reading) {
      tsprun::detail::bench::measure_reading();
      return 0;
    }
    tsprun::detail::bench::measure_all(arguments, ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "floor: %s\n", error.what());
    return 1;
  }
  return 0;
}
