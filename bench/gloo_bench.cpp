// The peer over tcp: all_reduce by Gloo between processes of this machine, measured by the same code as `tsprun bench`
// (launcher/bench/measure.h). Gloo's other collectives aren't asked for. bench/compare_tcp.py builds and runs it.
//
//   ./gloo_bench -n 4 all_reduce --sizes 16M --json out.json
#include "bench/arguments.h"

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::bench {

namespace {

constexpr std::uint64_t kSlot = 1;  // of plain messages

class GlooSubject final : public Subject {
 public:
  GlooSubject(int rank, int size, const std::string& folder, BufferBytes need)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, size)),
        input_(need.input / sizeof(float) + 1),
        output_(need.output / sizeof(float) + 1) {
    gloo::transport::tcp::attr attributes("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    context_->connectFullMesh(store, device);
  }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }
  void send(std::span<const double> values, int to) override {
    auto buffer = context_->createUnboundBuffer(const_cast<double*>(values.data()), values.size_bytes());
    buffer->send(to, kSlot);
    buffer->waitSend();
  }
  void receive(std::span<double> values, int from) override {
    auto buffer = context_->createUnboundBuffer(values.data(), values.size_bytes());
    buffer->recv(from, kSlot);
    buffer->waitRecv();
  }
  std::span<std::byte> input() override { return std::as_writable_bytes(std::span(input_)); }
  std::span<std::byte> output() override { return std::as_writable_bytes(std::span(output_)); }

  void run(const Case& which, std::uint64_t times) override {
    if (which.kind == Kind::barrier) {
      while (times-- > 0) barrier();
      return;
    }
    if (which.kind != Kind::all_reduce || which.dtype != DType::f32) throw std::invalid_argument("only all_reduce of f32");
    for (std::uint64_t i = 0; i < times; ++i) {
      gloo::AllreduceOptions options(context_);
      options.setInput(input_.data(), which.count());
      options.setOutput(output_.data(), which.count());
      void (*sum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
      options.setReduceFunction(sum);
      gloo::allreduce(options);
    }
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<float> input_;
  std::vector<float> output_;
};

void measure_all(const Arguments& arguments, int rank, int ranks, const std::string& folder) {
  const std::vector<Case> cases = arguments.cases(ranks);
  GlooSubject subject(rank, ranks, folder, buffers_for(cases));
  measure_cases(subject, arguments, cases, "gloo_bench: " + std::to_string(ranks) + " ranks, tcp", "gloo");
}

/// One rank; its exit code.
int run_rank(const Arguments& arguments, int rank, int ranks, const std::string& folder) {
  try {
    measure_all(arguments, rank, ranks, folder);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_bench: rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

}  // namespace tsprun::detail::bench

int main(int argc, char** argv) {
  CLI::App app("Gloo's all_reduce over tcp, measured as tsprun bench measures ours");
  tsprun::detail::bench::Arguments arguments;
  int ranks = 4;
  app.add_option("-n,--ranks", ranks, "processes")->capture_default_str();
  arguments.add_to(app);
  CLI11_PARSE(app, argc, argv);
  std::string folder = std::filesystem::temp_directory_path() / "gloo_bench_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  std::vector<pid_t> children;
  for (int rank = 1; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(tsprun::detail::bench::run_rank(arguments, rank, ranks, folder));
    children.push_back(child);
  }
  int code = tsprun::detail::bench::run_rank(arguments, 0, ranks, folder);
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) code = 1;
  }
  std::filesystem::remove_all(folder);
  return code;
}
