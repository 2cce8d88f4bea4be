// Declares and checks --trace-steps and --trace-flows.
#include "launcher/trace_options.h"

#include "launcher/refuse.h"

#include <fmt/format.h>

#include <limits>

namespace tsprun::detail::launcher {

namespace {

constexpr std::int64_t kLastStep = std::numeric_limits<std::int32_t>::max();

StepRange parse_steps(const std::string& option, const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto step = [&](const std::string& part) {
    return static_cast<std::uint64_t>(parse_integer(option, part, 1, kLastStep));
  };
  const std::uint64_t first = step(text.substr(0, colon));
  const std::uint64_t last = colon == std::string::npos ? first : step(text.substr(colon + 1));
  if (last < first) {
    refuse(fmt::format("{} {}: the last step comes before the first; try {} {}:{}", option, text, option, last, first));
  }
  return {first, last};
}

}  // namespace

void TraceOptions::declare(OptionTable& table) {
  table.add("--profile", profile, "print at the end where the ranks' time went: the kernels and waits that took longest");
  table.add("--trace-steps A:B", steps,
            "with --trace or --profile: training steps A to B alone, such as 3:5; default: the whole job", parse_steps);
  table.add("--trace-flows WHICH", flows,
            "with --trace: arrows from all senders to all receivers (all), to the next rank of a group (neighbours), none",
            Choice<TraceFlows>{{{"all", TraceFlows::all}, {"neighbours", TraceFlows::neighbours}, {"none", TraceFlows::none}}});
}

void validate_trace_options(const TraceOptions& options, const std::string& file) {
  if (!file.empty()) return;
  if (options.steps.given() && !options.profile)
    refuse(fmt::format("--trace-steps {}: there is no trace; give --trace FILE or --profile", options.steps.text));
  if (options.flows != TraceFlows::all)
    refuse(fmt::format("--trace-flows {}: there is no trace; give --trace FILE", options.flows.text));
}

void check_trace_steps(const TraceOptions& options, const std::string& command, std::uint64_t first, std::uint64_t last) {
  if (options.whole_job()) return;
  if (last == 0) refuse(fmt::format("--trace-steps {}: {} has no training steps; leave it out", options.steps.text, command));
  if (options.steps->last >= first && options.steps->first <= last) return;
  refuse(fmt::format("--trace-steps {}: steps {} to {} are trained; try --trace-steps {}:{}", options.steps.text, first, last,
                     first, last));
}

}  // namespace tsprun::detail::launcher
