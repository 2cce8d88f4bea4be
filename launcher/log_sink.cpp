// Writes log lines to stderr, or to the Output of a running job.
#include "launcher/log_sink.h"

#include <cstdio>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {
Output* diverted = nullptr;
}

void LogSink::divert(Output* output) { diverted = output; }

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  if (diverted != nullptr) diverted->append(std::string_view(line.data(), line.size()));
  else std::fwrite(line.data(), 1, line.size(), stderr);
}

void LogSink::flush_() { std::fflush(stderr); }

}  // namespace tsprun::detail::launcher
