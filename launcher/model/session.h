// What every rank of a model command begins and ends with: all ranks compute with the same vector instructions, kernels run on
// --threads threads, and --trace is written at the end.
#pragma once

#include "core/kernels/level.h"
#include "core/rank/rank.h"
#include "core/trace/trace.h"
#include "launcher/options.h"
#include "launcher/report_sink.h"
#include "layers/model/mesh.h"

#include <optional>
#include <string>

namespace tsprun::launcher {

/// The level that this process would compute at: TSP_KERNELS, else the machine's best.
kernels::Level kernels_of_this_process();

class Session {
 public:
  /// Collective. Holds this process at the lowest kernel level of all ranks (each rank's own: TSP_KERNELS, else the best that its
  /// machine has) and puts `kernels` in the report. Before any kernel runs. `global` must outlive it.
  Session(Context& context, ReportSink& sink, const GlobalOptions& global);

  Rank& rank() { return *rank_; }
  ReportSink& sink() { return sink_; }
  /// The ranks by what they share, as --layout says.
  Mesh& mesh() { return *mesh_; }
  Communicator& world() { return context_.world(); }
  bool speaks() const { return context_.rank() == 0; }
  const GlobalOptions& global() const { return global_; }

  /// A training step, for as long as this lives: a span of the trace; of steps that --trace-steps leaves out nothing is traced.
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

  /// What happens from here on belongs to no trace: reports are gathered. Before the peaks of memory are read for them.
  void stop_tracing();
  /// Collective: writes the trace, if one was asked for.
  void finish();

 private:
  Context& context_;
  ReportSink& sink_;
  const GlobalOptions& global_;
  std::optional<Trace> trace_;
  std::optional<Rank> rank_;
  std::optional<Mesh> mesh_;
};

}  // namespace tsprun::launcher
