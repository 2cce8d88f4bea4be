// Where tsprun's own log lines go: to stderr, and while a job runs to its output of the same name, which never blocks the one who
// watches the ranks and hears the signals.
#pragma once

#include "launcher/output.h"

#include <spdlog/sinks/base_sink.h>

#include <mutex>

namespace tsprun::launcher {

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// Lines go to `output` from now on, or, if null, to stderr again.
  static void divert(Output* output);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override;
};

}  // namespace tsprun::launcher
