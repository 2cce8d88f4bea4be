// The beginning and end of every rank of a model command: all ranks agree on the vector instructions, kernels run on --threads
// threads with the library of --gemm, and the trace is written at the end.
#pragma once

#include "core/kernels/level.h"
#include "core/rank/rank.h"
#include "core/trace/recorder.h"
#include "launcher/options.h"
#include "launcher/report_sink.h"
#include "layers/layout/mesh.h"

#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Run of a model command on one rank. Used by the rank's main thread.
class Session {
 public:
  /// Sets this process to the lowest kernel level of all ranks (each rank's own is GlobalOptions::kernel_level), loads the
  /// library that multiplies matrices, and puts both into the report as `kernels` and `gemm`; makes the rank, the mesh and, with
  /// --trace, the trace. Collective. Must run before any kernel. `global` must outlive it.
  Session(Context& context, ReportSink& sink, const GlobalOptions& global);

  Rank& rank() { return *rank_; }
  ReportSink& sink() { return sink_; }
  /// Returns the mesh of ranks that --layout describes.
  Mesh& mesh() { return *mesh_; }
  Communicator& world() { return context_.world(); }
  /// Returns true on rank 0, which prints and reports for all.
  bool speaks() const { return context_.rank() == 0; }
  const GlobalOptions& global() const { return global_; }

  /// Scope of one training step in the trace. Steps that --trace-steps leaves out are not traced.
  class TracedStep {
   public:
    TracedStep(Session& session, std::uint64_t step);
    TracedStep(const TracedStep&) = delete;
    TracedStep& operator=(const TracedStep&) = delete;
    ~TracedStep();

   private:
    Session& session_;
    std::optional<TraceSpan> span_;
  };

  /// Records the memory in use and stops tracing: what follows, the gathering of reports, doesn't belong to the run. Call it
  /// before the memory peaks are read for those reports.
  void stop_tracing();
  /// Writes the trace and prints the profile, if they were asked for; a failure to write goes into the report. Collective.
  /// `print`: where the profile's lines go.
  void finish(void (ReportSink::*print)(std::string_view) = &ReportSink::line);

 private:
  Context& context_;
  ReportSink& sink_;
  const GlobalOptions& global_;
  std::optional<Profile> profile_;
  std::optional<TraceRecorder> trace_;  // null without --trace and --profile
  std::optional<Rank> rank_;
  std::optional<Mesh> mesh_;
};

}  // namespace tsprun::detail::launcher
