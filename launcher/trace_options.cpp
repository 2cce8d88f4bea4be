#include "launcher/trace_options.h"

#include "launcher/options.h"
#include "launcher/refuse.h"

#include <fmt/format.h>

#include <limits>

namespace tsprun::detail::launcher {

namespace {

constexpr std::int64_t kLastStep = std::numeric_limits<std::int32_t>::max();

void parse_steps(TraceOptions& options) {
  const std::string& text = options.steps_text;
  const std::size_t colon = text.find(':');
  const auto step = [&](const std::string& part) {
    return static_cast<std::uint64_t>(parse_integer("--trace-steps", part, 1, kLastStep));
  };
  options.first_step = step(text.substr(0, colon));
  options.last_step = colon == std::string::npos ? options.first_step : step(text.substr(colon + 1));
  if (options.last_step < options.first_step) {
    refuse(fmt::format("--trace-steps {}: the last step comes before the first; try --trace-steps {}:{}", text, options.last_step,
                       options.first_step));
  }
}

}  // namespace

void add_trace_options(CLI::App& app, TraceOptions& options, const std::string& group) {
  app.add_option("--trace-steps", options.steps_text,
                 "with --trace: training steps A to B alone, such as 3:5; default: the whole job")
      ->type_name("A:B")
      ->group(group);
  app.add_option("--trace-flows", options.flows_text,
                 "with --trace: arrows from all senders to all receivers (all), to the next rank of a group (neighbours), none")
      ->type_name("WHICH")
      ->capture_default_str()
      ->group(group);
}

void validate_trace_options(TraceOptions& options, const std::string& file) {
  if (!options.steps_text.empty()) parse_steps(options);
  if (options.flows_text == "all") options.flows = TraceFlows::all;
  else if (options.flows_text == "neighbours") options.flows = TraceFlows::neighbours;
  else if (options.flows_text == "none") options.flows = TraceFlows::none;
  else refuse(fmt::format("--trace-flows {}: all, neighbours and none work", options.flows_text));
  if (!file.empty()) return;
  if (!options.steps_text.empty())
    refuse(fmt::format("--trace-steps {}: there is no trace; give --trace FILE", options.steps_text));
  if (options.flows != TraceFlows::all)
    refuse(fmt::format("--trace-flows {}: there is no trace; give --trace FILE", options.flows_text));
}

void check_trace_steps(const TraceOptions& options, const std::string& command, std::uint64_t first, std::uint64_t last) {
  if (options.whole_job()) return;
  if (last == 0) refuse(fmt::format("--trace-steps {}: {} has no training steps; leave it out", options.steps_text, command));
  if (options.last_step >= first && options.first_step <= last) return;
  refuse(fmt::format("--trace-steps {}: steps {} to {} are trained; try --trace-steps {}:{}", options.steps_text, first, last,
                     first, last));
}

}  // namespace tsprun::detail::launcher
