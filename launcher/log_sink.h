// The destination of tsprun's own log lines: stderr, and while a job runs the job's Output for stderr. Output never blocks the
// thread that watches ranks and reads signals.
#pragma once

#include "launcher/output.h"

#include <spdlog/sinks/base_sink.h>

#include <mutex>

namespace tsprun::detail::launcher {

/// Sink of spdlog's lines.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// Sends lines to `output` from now on; null: to stderr again. `output` is borrowed.
  static void divert(Output* output);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override;
};

}  // namespace tsprun::detail::launcher
