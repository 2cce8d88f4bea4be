// The large kernels against the machine's SGEMM peak: one 512³ product by OpenBLAS, on the same thread, in the same run; and each
// in bf16 against itself in f32. With --products instead: matrix products of real blocks by either library of --gemm, in turns.
//
// Each round times the peak, then every subject once; the table shows medians over the rounds and the ratio of a subject's speed
// to the peak's, or to that of the same subject in f32. FLOPs of attention are counted causal: 4·n·d·S(S+1)/2 forward, 2.5 times
// that backward.
#include "core/kernels/activation.h"
#include "core/kernels/flash.h"
#include "core/kernels/gemm.h"
#include "core/kernels/gemm_library.h"
#include "core/kernels/level.h"
#include "products.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace {

using tsprun::DType;
using tsprun::detail::ConstTensor;
using tsprun::detail::Tensor;
namespace kernels = tsprun::detail::kernels;

struct Options {
  std::size_t seq = 4096;
  std::size_t tokens = 1024;
  int rounds = 7;
  double dropout = 0;
  bool products = false;
  tsprun::bench::ProductOptions of_products;
  std::string json;
};

struct Subject {
  std::string name;
  DType dtype;
  double bar;  // of the peak, or in bf16 of the same subject's speed in f32; 0: none
  double flops;
  std::function<void()> run;
  std::vector<double> seconds;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Memory of a tensor of normal numbers.
class Array {
 public:
  Array(DType dtype, std::vector<std::size_t> sizes, unsigned seed = 1) : dtype_(dtype), sizes_(std::move(sizes)) {
    std::size_t count = 1;
    for (const std::size_t size : sizes_) count *= size;
    bytes_.resize(count * size_of(dtype));
    std::minstd_rand generator(seed);
    std::uniform_real_distribution<float> distribution(-1, 1);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = distribution(generator);
      if (dtype == DType::bf16) {
        view().as<tsprun::bf16>()[i] = tsprun::bf16(value);
      } else {
        view().as<float>()[i] = value;
      }
    }
  }
  Tensor view() { return {bytes_.data(), dtype_, sizes_}; }

 private:
  DType dtype_;
  std::vector<std::size_t> sizes_;
  std::vector<std::byte> bytes_;
};

/// Inputs and outputs of a subject's kernels; lives as long as its `run`.
struct Attention {
  kernels::Attention attention;
  Array q, k, v, o, d_o, dq, dk, dv, lse, delta;

  Attention(DType dtype, std::size_t seq, std::size_t heads, std::size_t d, double dropout)
      : attention{1 / std::sqrt(static_cast<double>(d)), kernels::Mask::from_positions(0, 0), {}, {.draw = {dropout, 1}}},
        q(dtype, {1, seq, heads, d}, 1),
        k(dtype, {1, seq, heads, d}, 2),
        v(dtype, {1, seq, heads, d}, 3),
        o(dtype, {1, seq, heads, d}),
        d_o(dtype, {1, seq, heads, d}, 4),
        dq(DType::f32, {1, seq, heads, d}),
        dk(DType::f32, {1, seq, heads, d}),
        dv(DType::f32, {1, seq, heads, d}),
        lse(DType::f32, {1, heads, seq}),
        delta(DType::f32, {1, heads, seq}) {}

  void forward(const kernels::Compute& on) {
    kernels::flash_forward(on, attention, o.view(), lse.view(), q.view(), k.view(), v.view());
  }
  void backward(const kernels::Compute& on) {
    kernels::flash_delta(on, delta.view(), d_o.view(), o.view());
    kernels::flash_backward(on, attention, dq.view(), dk.view(), dv.view(), d_o.view(), lse.view(), delta.view(), q.view(),
                            k.view(), v.view());
  }
};

struct Mlp {
  Array x, w1, w3, w2, gate, up, act, y, dy, dact, dgate, dup, dx, dw1, dw3, dw2;

  Mlp(DType t, std::size_t tokens, std::size_t h, std::size_t f)
      : x(t, {tokens, h}),
        w1(t, {f, h}),
        w3(t, {f, h}),
        w2(t, {h, f}),
        gate(t, {tokens, f}),
        up(t, {tokens, f}),
        act(t, {tokens, f}),
        y(DType::f32, {tokens, h}),
        dy(t, {tokens, h}),
        dact(t, {tokens, f}),
        dgate(t, {tokens, f}),
        dup(t, {tokens, f}),
        dx(DType::f32, {tokens, h}),
        dw1(DType::f32, {f, h}),
        dw3(DType::f32, {f, h}),
        dw2(DType::f32, {h, f}) {}

  void forward(const kernels::Compute& on) {
    kernels::gemm(on, gate.view(), x.view(), w1.view().transposed(0, 1));
    kernels::gemm(on, up.view(), x.view(), w3.view().transposed(0, 1));
    kernels::swiglu(on, act.view(), gate.view(), up.view());
    kernels::gemm(on, y.view(), act.view(), w2.view().transposed(0, 1));
  }
  void backward(const kernels::Compute& on) {
    kernels::gemm(on, dact.view(), dy.view(), w2.view());
    kernels::swiglu(on, act.view(), gate.view(), up.view());
    kernels::swiglu_backward(on, dgate.view(), dup.view(), dact.view(), gate.view(), up.view());
    kernels::gemm(on, dx.view(), dgate.view(), w1.view());
    kernels::gemm(on, dx.view(), dup.view(), w3.view(), kernels::Write::add);
    kernels::gemm(on, dw1.view(), dgate.view().transposed(0, 1), x.view());
    kernels::gemm(on, dw3.view(), dup.view().transposed(0, 1), x.view());
    kernels::gemm(on, dw2.view(), dy.view().transposed(0, 1), act.view());
  }
};

/// C = A·B of n × n matrices, or with `transposed` A·Bᵀ, as weights are stored.
struct Square {
  bool transposed;
  Array a, b, c;

  Square(DType dtype, std::size_t n, bool transposed_)
      : transposed(transposed_), a(dtype, {n, n}), b(dtype, {n, n}), c(dtype, {n, n}) {}
  void multiply(const kernels::Compute& on) {
    kernels::gemm(on, c.view(), a.view(), transposed ? b.view().transposed(0, 1) : b.view());
  }
};

/// Returns the subjects in f32, and then the same in bf16.
std::vector<Subject> subjects(const Options& options, const kernels::Compute& on) {
  constexpr std::size_t kHeads = 2;
  constexpr std::size_t kHidden = 1024;
  constexpr std::size_t kIntermediate = 2816;
  std::vector<Subject> result;
  const auto seq = static_cast<double>(options.seq);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto add = [&](std::string name, double of_peak, double of_f32, double flops, std::function<void()> run) {
      result.push_back({std::move(name), dtype, dtype == DType::f32 ? of_peak : of_f32, flops, std::move(run), {}});
    };
    for (const std::size_t n : {512U, 1024U, 2048U}) {
      for (const bool transposed : {false, true}) {
        const auto square = std::make_shared<Square>(dtype, n, transposed);
        const int repeats = n < 1024 ? 8 : 1;
        add(fmt::format("product {}³{}", n, transposed ? " A·Bᵀ" : ""), 0, 1.7, repeats * 2 * std::pow(static_cast<double>(n), 3),
            [=] {
              for (int i = 0; i < repeats; ++i) square->multiply(on);
            });
      }
    }
    for (const std::size_t d : {64U, 128U}) {
      const auto attention = std::make_shared<Attention>(dtype, options.seq, kHeads, d, options.dropout);
      const double flops = 4 * static_cast<double>(kHeads * d) * seq * (seq + 1) / 2;
      add(fmt::format("flash forward d={}", d), 0.6, 1.4, flops, [=] { attention->forward(on); });
      add(fmt::format("flash backward d={}", d), 0.5, 1.4, 2.5 * flops, [=] { attention->backward(on); });
    }
    const auto mlp = std::make_shared<Mlp>(dtype, options.tokens, kHidden, kIntermediate);
    const double flops = 6.0 * static_cast<double>(options.tokens * kHidden * kIntermediate);
    add("gated MLP forward", 0.85, 1.6, flops, [=] { mlp->forward(on); });
    add("gated MLP backward", 0.85, 1.6, 2 * flops, [=] { mlp->backward(on); });
  }
  return result;
}

Subject peak() {
  constexpr std::size_t n = 512;
  const auto a = std::make_shared<std::vector<float>>(n * n, 0.5F);
  const auto b = std::make_shared<std::vector<float>>(n * n, 0.25F);
  const auto c = std::make_shared<std::vector<float>>(n * n);
  constexpr int kRepeats = 20;
  return {"SGEMM 512³",
          DType::f32,
          0,
          kRepeats * 2.0 * n * n * n,
          [=] {
            for (int i = 0; i < kRepeats; ++i) {
              kernels::multiply(kernels::OpenBlasProduct<float>{
                  .m = n, .n = n, .k = n, .a = a->data(), .a_step = n, .b = b->data(), .b_step = n, .c = c->data(), .c_step = n});
            }
          },
          {}};
}

/// Writes the JSON if it is asked for. Returns the exit code.
int write(const Options& options, const nlohmann::json& json) {
  if (options.json.empty()) return 0;
  std::ofstream file(options.json);
  file << json.dump(1) << "\n";
  if (file) return 0;
  fmt::print(stderr, "{}: can't be written\n", options.json);
  return 1;
}

int run(const Options& options) {
  if (options.products) return write(options, tsprun::bench::compare_products(options.of_products, options.rounds));
  kernels::set_gemm_library(kernels::GemmLibrary::openblas);
  const std::string openblas = kernels::load_gemm_library();
  kernels::set_gemm_library(kernels::GemmLibrary::tsprun);
  std::vector<std::byte> workspace(std::size_t{32} << 20);
  kernels::Compute on;
  on.workspace = workspace;
  Subject top = peak();
  std::vector<Subject> all = subjects(options, on);
  top.run();
  for (int round = 0; round < options.rounds; ++round) {
    for (Subject& subject : all) {
      top.seconds.push_back(seconds_of(top.run));
      subject.seconds.push_back(seconds_of(subject.run));
    }
  }
  const double top_speed = top.flops / median(top.seconds);
  fmt::print("kernels {}, peak of {}, one thread, S {}, {} MLP tokens, {} rounds\n", name(kernels::level()), openblas,
             options.seq, options.tokens, options.rounds);
  fmt::print("{:<28} {:>9} {:>9} {:>9} {:>6}\n", "", "GFLOP/s", "of peak", "of f32", "bar");
  fmt::print("{:<28} {:>9.1f} {:>9.2f}\n", top.name, top_speed / 1e9, 1.0);
  nlohmann::json rows = nlohmann::json::array();
  const auto speed_of = [](const Subject& subject) { return subject.flops / median(subject.seconds); };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Subject& subject = all[i];
    const bool narrow = subject.dtype == DType::bf16;
    const double speed = speed_of(subject);
    const double of_f32 = narrow ? speed / speed_of(all[i - all.size() / 2]) : 1;
    const std::string title = fmt::format("{} {}", subject.name, name(subject.dtype));
    fmt::print("{:<28} {:>9.1f} {:>9.2f} {:>9} {:>6}\n", title, speed / 1e9, speed / top_speed,
               narrow ? fmt::format("{:.2f}", of_f32) : "", subject.bar == 0 ? "" : fmt::format("{:.2f}", subject.bar));
    rows.push_back(
        {{"name", title}, {"gflops", speed / 1e9}, {"of_peak", speed / top_speed}, {"of_f32", of_f32}, {"bar", subject.bar}});
  }
  return write(options, {{"kernels", name(kernels::level())}, {"peak_gflops", top_speed / 1e9}, {"bench", rows}});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Matrix products, flash attention and the gated MLP against the machine's SGEMM peak, and in bf16 against f32");
  Options options;
  app.add_option("--seq", options.seq, "sequence length of attention")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "tokens of the MLP")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "times each subject runs")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--dropout", options.dropout, "probability with which attention drops")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.99));
  app.add_flag("--products", options.products, "matrix products of real blocks by tsprun's kernels and by OpenBLAS, in turns");
  app.add_option("--hidden", options.of_products.hidden, "widths of the blocks whose products are measured")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.of_products.threads, "threads for products")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  const auto hold_level = [](const std::string& text) {
    const std::optional<kernels::Level> level = kernels::level_from_name(text);
    if (!level || !kernels::offers(*level)) throw CLI::ValidationError(text + " isn't a level of this machine");
    kernels::set_level(*level);
  };
  app.add_option_function<std::string>("--kernels", hold_level, "level of kernels, which also chooses OpenBLAS'")
      ->envname("TSP_KERNELS");
  app.add_option("--json", options.json, "write the table here");
  CLI11_PARSE(app, argc, argv);
  return run(options);
}
