// The peer: the operations of `tsprun bench`, done by whatever MPI this program was compiled with and measured by the same code
// (launcher/bench/measure.h): same sizes, barriers, batches, medians, slowest rank. bench/compare_mpi.py builds and runs it.
//
//   mpirun -n 4 ./mpi_bench all_reduce,all_gather --sizes 1K,1M --json out.json
#include "bench/arguments.h"

// The C interface is all that is used; MPI's old C++ one doesn't compile without warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace tsprun::detail::bench {

namespace {

class MpiSubject final : public Subject {
 public:
  explicit MpiSubject(BufferBytes need) : input_(need.input), output_(need.output) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void send(std::span<const double> values, int to) override {
    MPI_Send(values.data(), static_cast<int>(values.size()), MPI_DOUBLE, to, 1, MPI_COMM_WORLD);
  }
  void receive(std::span<double> values, int from) override {
    MPI_Recv(values.data(), static_cast<int>(values.size()), MPI_DOUBLE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  std::span<std::byte> input() override { return input_.bytes(); }
  std::span<std::byte> output() override { return output_.bytes(); }

  void run(const Case& which, std::uint64_t times) override {
    const std::size_t most = which.kind == Kind::all_to_all_v ? which.elements() : which.count();
    if (most > 0x7FFF'FFFF) throw std::length_error("MPI counts are ints: choose a smaller size");
    const auto count = static_cast<int>(which.count());
    if (which.kind == Kind::all_to_all_v) lay_out(which);
    for (std::uint64_t i = 0; i < times; ++i) run_once(which, count);
  }

 private:
  /// Sets counts_ and offsets_ to the parts of an all_to_all_v.
  void lay_out(const Case& which) {
    counts_.clear();
    offsets_.clear();
    for (const std::size_t part : which.parts_of(rank_)) {
      offsets_.push_back(counts_.empty() ? 0 : offsets_.back() + counts_.back());
      counts_.push_back(static_cast<int>(part));
    }
  }
  void run_once(const Case& which, int count) {
    const MPI_Datatype type = which.dtype == DType::f64 ? MPI_DOUBLE : MPI_FLOAT;
    void* in = input_.bytes().data();
    void* out = output_.bytes().data();
    const MPI_Comm world = MPI_COMM_WORLD;
    switch (which.kind) {
      case Kind::pingpong:
        if (rank_ == 0) MPI_Send(in, count, type, 1, 0, world);
        if (rank_ < 2) MPI_Recv(out, count, type, 1 - rank_, 0, world, MPI_STATUS_IGNORE);
        if (rank_ == 1) MPI_Send(in, count, type, 0, 0, world);
        break;
      case Kind::broadcast: MPI_Bcast(out, count, type, 0, world); break;
      case Kind::all_gather: MPI_Allgather(in, count, type, out, count, type, world); break;
      case Kind::reduce_scatter: MPI_Reduce_scatter_block(in, out, count, type, MPI_SUM, world); break;
      case Kind::all_reduce: MPI_Allreduce(in, out, count, type, MPI_SUM, world); break;
      case Kind::all_to_all: MPI_Alltoall(in, count, type, out, count, type, world); break;
      case Kind::all_to_all_v:
        MPI_Alltoallv(in, counts_.data(), offsets_.data(), type, out, counts_.data(), offsets_.data(), type, world);
        break;
      case Kind::reduce: MPI_Reduce(in, out, count, type, MPI_SUM, 0, world); break;
      case Kind::barrier: MPI_Barrier(world); break;
    }
  }

  int rank_ = 0;
  int size_ = 1;
  std::vector<int> counts_;
  std::vector<int> offsets_;
  PlainMemory input_;
  PlainMemory output_;
};

std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text);
  return all.find("Open MPI") != std::string::npos ? "openmpi" : all.find("MPICH") != std::string::npos ? "mpich" : "mpi";
}

void measure_all(const Arguments& arguments) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::vector<Case> cases = arguments.cases(ranks);
  MpiSubject subject(buffers_for(cases));
  const std::string library = library_name();
  measure_cases(subject, arguments, cases, "mpi_bench: " + std::to_string(ranks) + " ranks, " + library, library);
}

}  // namespace

}  // namespace tsprun::detail::bench

int main(int argc, char** argv) {
  CLI::App app("the collectives of an MPI library, measured as tsprun bench measures ours");
  tsprun::detail::bench::Arguments arguments;
  arguments.add_to(app);
  CLI11_PARSE(app, argc, argv);
  MPI_Init(&argc, &argv);
  try {
    tsprun::detail::bench::measure_all(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_bench: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
