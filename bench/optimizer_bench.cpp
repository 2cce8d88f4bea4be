// AdamW and the norm that gradients are clipped by, against the memory's speed: bytes that they read and write a second beside a
// read-only stream, all with a thread on each core, in turns. Bar: 0.85 of the stream.
//
//   norm      reads the gradients: 4 bytes an element
//   AdamW     reads gradients, moments and parameters, writes the last three: 28 bytes an element; in bf16, whose parameters have
//             an f32 copy, 2 more
#include "bench/floor_loops.h"
#include "bench/team.h"
#include "core/kernels/optimizer.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::bench {

namespace {

constexpr double kBar = 0.85;

struct Subject {
  std::string name;
  double bytes;
  std::function<void()> run;
  std::vector<double> speeds = {};  // GB/s

  double median() {
    std::ranges::sort(speeds);
    return speeds[speeds.size() / 2];
  }
};

void measure(std::size_t elements, int rounds) {
  kernels::Pool pool(allowed_cpus().size(), kernels::Idle::spin);
  std::vector<std::byte> workspace(kernels::sum_of_squares_workspace(elements));
  kernels::Compute on;
  on.pool = &pool;
  on.workspace = workspace;
  std::vector<float> values(elements, 1), m(elements, 0), v(elements, 0), gradients(elements, 1e-3F);
  std::vector<bf16> narrow(elements, bf16(1));
  const auto view = [&](auto& memory, DType dtype) {
    return Tensor(reinterpret_cast<std::byte*>(memory.data()), dtype, {elements});
  };
  const auto words = std::span(reinterpret_cast<const std::uint64_t*>(gradients.data()), elements / 2);
  const auto count = static_cast<double>(elements);
  kernels::AdamW options;
  const auto update = [&](bool in_bf16) {
    ++options.step;
    const Tensor wide = view(values, DType::f32);
    kernels::adamw(on, options, in_bf16 ? view(narrow, DType::bf16) : wide, in_bf16 ? wide : Tensor(), view(m, DType::f32),
                   view(v, DType::f32), view(gradients, DType::f32));
  };
  std::vector<Subject> subjects = {{"stream", 4 * count,
                                    [&] {
                                      pool.run(pool.threads(), [&](std::size_t task, std::size_t) {
                                        const std::size_t part = words.size() / pool.threads();
                                        if (read_stream(words.subspan(task * part, part)) == 1) std::abort();
                                      });
                                    }},
                                   {"norm of f32", 4 * count, [&] { kernels::sum_of_squares(on, view(gradients, DType::f32)); }},
                                   {"AdamW of f32", 28 * count, [&] { update(false); }},
                                   {"AdamW of bf16", 30 * count, [&] { update(true); }}};
  for (int round = 0; round <= rounds; ++round) {
    for (Subject& subject : subjects) {
      const auto begin = std::chrono::steady_clock::now();
      subject.run();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (round > 0) subject.speeds.push_back(subject.bytes / seconds / 1e9);  // the first warms up
    }
  }
  fmt::print("{} elements, {} threads, {} rounds\n{:<16}{:>8}{:>12}{:>6}\n", elements, pool.threads(), rounds, "", "GB/s",
             "of stream", "bar");
  const double stream = subjects.front().median();
  for (Subject& subject : subjects)
    fmt::print("{:<16}{:>8.1f}{:>12.2f}{:>6}\n", subject.name, subject.median(), subject.median() / stream, kBar);
}

}  // namespace

}  // namespace tsprun::detail::bench

int main(int argc, char** argv) {
  CLI::App app("AdamW and the norm of gradients against a read-only stream");
  std::size_t elements = std::size_t{1} << 26;
  int rounds = 9;
  app.add_option("--elements", elements, "parameters")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "times each runs")->capture_default_str()->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  tsprun::detail::bench::measure(elements, rounds);
  return 0;
}
