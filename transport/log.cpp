// Makes the default logger, whose level TSP_LOG_LEVEL sets.
#include "transport/log.h"

#include "transport/environment.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <string>
#include <string_view>
#include <utility>

namespace tsprun::detail {

namespace {

spdlog::level::level_enum level_from_environment() {
  const Environment environment;
  // Context refuses unknown names; whoever has none gets the default.
  const std::string_view name = environment.text("TSP_LOG_LEVEL").value_or("");
  const auto level = spdlog::level::from_str(std::string(name));
  return level == spdlog::level::off && name != "off" ? spdlog::level::info : level;
}

std::shared_ptr<spdlog::logger> on_stderr() {
  auto logger = std::make_shared<spdlog::logger>("tsp", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("tsp: %l: %v");
  logger->set_level(level_from_environment());
  return logger;
}

std::shared_ptr<spdlog::logger>& place() {
  static std::shared_ptr<spdlog::logger> logger = on_stderr();
  return logger;
}

}  // namespace

spdlog::logger& logger() { return *place(); }

void use_logger(std::shared_ptr<spdlog::logger> logger) { place() = std::move(logger); }

}  // namespace tsprun::detail
