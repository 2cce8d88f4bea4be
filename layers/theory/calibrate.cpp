// Runs a phantom's kernels, and takes means and medians of their times.
#include "layers/theory/calibrate.h"

#include "core/program/recorder.h"
#include "layers/theory/peaks.h"
#include "transport/posix.h"

#include <algorithm>
#include <cstdint>

namespace tsprun::detail::theory {

namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

TimedStep time_kernels(const MeshSetting& of, int number, bool training, int passes, const std::function<void()>& before_each) {
  Recorder recorder;
  recorder.run_kernels();
  PeakOptions options;
  options.training = training;
  options.recorder = &recorder;
  RunPeaks run(of, number, options);
  // Ids that are spread over the vocabulary, as a phantom's are that has none.
  const std::size_t tokens = of.setting.tokens();
  std::vector<std::int32_t> ids(tokens);
  std::vector<std::int64_t> labels(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    labels[i] = static_cast<std::int64_t>(i * of.setting.model.vocabulary / tokens);
    ids[i] = static_cast<std::int32_t>(labels[i]);
  }
  const TokenBatch batch{.batch = of.setting.batch, .sequence = of.setting.sequence, .ids = ids, .labels = labels};
  run.pass(batch);
  TimedStep step;
  std::vector<std::vector<double>> seconds;
  std::vector<double> between;
  for (int pass = 0; pass < passes; ++pass) {
    before_each();
    recorder.begin(run.use());
    const std::uint64_t begin = posix::now_ns();
    run.pass(batch);
    double rest = static_cast<double>(posix::now_ns() - begin);
    const Program program = recorder.end();
    const std::vector<KernelTime>& times = recorder.kernel_times();
    std::vector<double> ns(program.costs.size());
    std::vector<double> ticks(program.costs.size());
    std::vector<double> runs(program.costs.size());
    std::size_t kernel = 0;
    for (const ProgramItem& item : program.items) {
      if (item.kind != ItemKind::kernel) continue;
      const KernelTime& time = times[kernel++];
      ns[item.index] += static_cast<double>(time.ns);
      ticks[item.index] += static_cast<double>(time.ticks);
      ++runs[item.index];
      rest -= static_cast<double>(time.ns);
    }
    between.push_back(1e-9 * rest);
    seconds.resize(program.costs.size());
    step.kernels.resize(program.costs.size());
    step.kernel_runs = static_cast<double>(kernel);
    for (std::size_t i = 0; i < program.costs.size(); ++i) {
      const KernelCost& cost = program.costs[i];
      seconds[i].push_back(1e-9 * ns[i] / runs[i]);
      step.kernels[i] = {.cost = cost,
                         .price = {.bytes = static_cast<double>(cost.bytes_read + cost.bytes_written),
                                   .seconds = median(seconds[i]),
                                   .ticks = ticks[i] / runs[i]}};
    }
  }
  step.between_seconds = median(between);
  return step;
}

}  // namespace tsprun::detail::theory
