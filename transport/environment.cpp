// Parses the values of variables, and refuses those that a command would ignore.
#include "transport/environment.h"

#include "transport/cause.h"
#include "transport/factory.h"
#include "transport/number.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

namespace tsprun::detail {

namespace {

constexpr double kMost = 1e6;
constexpr double kShortest_s = 1e-3;

[[noreturn]] void refuse_value(std::string_view name, std::string_view value, std::string_view works) {
  throw Error(Cause::refused, fmt::format("{}={}: {}", name, value, works));
}

}  // namespace

Environment::Environment() : lookup_([](const char* name) -> const char* { return std::getenv(name); }) {}

std::optional<std::string_view> Environment::text(std::string_view name) const {
  const char* value = lookup_(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

std::string Environment::algorithms() const { return std::string(text("TSP_ALGORITHMS").value_or("")); }

std::string_view Environment::log_level() const {
  constexpr std::array<std::string_view, 9> kLevels = {"trace", "debug",    "info", "warn", "warning",
                                                       "error", "critical", "off",  "err"};  // with spdlog's other names
  const std::string_view value = text("TSP_LOG_LEVEL").value_or("");
  if (!value.empty() && std::ranges::find(kLevels, value) == kLevels.end())
    refuse_value("TSP_LOG_LEVEL", value, "trace, debug, info, warn, error, critical and off work");
  return value;
}

bootstrap::Demand Environment::inter() const {
  const std::string_view value = text("TSP_INTER").value_or("auto");
  if (value == "auto") return bootstrap::Demand::automatic;
  std::vector<std::string_view> works = {"auto"};
  for (const Factory* kind : kFactories) {
    if (kind->between_nodes == Factory::Use::never) continue;
    if (kind->name == value) return demand_for(value);
    works.push_back(kind->name);
  }
  refuse_value("TSP_INTER", value, fmt::format("{} work", fmt::join(works, ", ")));
}

std::string_view Environment::rdma() const {
  const std::string_view value = text("TSP_RDMA").value_or("");
  if (value.size() >= sizeof bootstrap::JobDescription::rdma)
    refuse_value("TSP_RDMA", value, fmt::format("at most {} bytes are expected", sizeof bootstrap::JobDescription::rdma - 1));
  return value;
}

std::uint64_t Environment::timeout_ns() const {
  const std::string_view value = text("TSP_TIMEOUT").value_or("30");
  const std::optional<double> seconds = number_from<double>(value);
  if (!seconds || !(*seconds >= kShortest_s) || *seconds > kMost)
    refuse_value("TSP_TIMEOUT", value, "seconds are expected, 0.001 to 1000000");
  return static_cast<std::uint64_t>(*seconds * 1e9);
}

std::uint64_t Environment::mem_per_rank() const {
  const std::string_view value = text("TSP_MEM_PER_RANK").value_or("0");
  const std::optional<std::uint64_t> bytes = number_from<std::uint64_t>(value);
  if (!bytes) refuse_value("TSP_MEM_PER_RANK", value, "bytes are expected");
  return *bytes;
}

double Environment::link_gbps() const {
  const std::optional<std::string_view> value = text("TSP_LINK_GBPS");
  if (!value) return 0;
  const std::optional<double> speed = number_from<double>(*value);
  if (!speed || !(*speed > 0) || *speed > kMost)
    refuse_value("TSP_LINK_GBPS", *value, "10^9 bytes per second are expected, more than 0 and at most 1000000; try 0.5");
  return *speed;
}

bool Environment::flag(std::string_view name) const {
  const std::string_view value = text(name).value_or("0");
  if (value != "0" && value != "1") refuse_value(name, value, "0 and 1 work");
  return value == "1";
}

void refuse_ignored_variables(const Environment& environment, std::string_view command) {
  if (environment.text("TSP_NODE_FD")) return;
  for (const EnvironmentVariable& each : kEnvironment) {
    if (each.by != ObeyedBy::programs || !environment.text(each.name)) continue;
    const std::string instead = each.option.empty() ? "unset it" : fmt::format("unset it, and use {}", each.option);
    throw Error(Cause::refused, fmt::format("{}={}: only programs under `run` read it, `tsprun {}` doesn't; {}", each.name,
                                            *environment.text(each.name), command, instead));
  }
}

}  // namespace tsprun::detail
