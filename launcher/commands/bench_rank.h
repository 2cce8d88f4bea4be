// What every rank of `tsprun bench` does: the cases one after another, through its communicator, on buffers in its heap.
#pragma once

#include "core/context.h"
#include "launcher/bench/measure.h"
#include "launcher/report_sink.h"

#include <span>
#include <string>

namespace tsprun::launcher {

struct BenchPlan {
  std::span<const bench::Case> cases;
  bench::Pace pace;
  bool check = true;
  bool both_places = true;             ///< else each operation's usual form alone
  std::span<const std::string> notes;  ///< lines for above the tables
  int cores = 1;                       ///< that the ranks of this machine may use together: a rank may be bound to one of them
  bool several_machines = false;
};

/// Measures, prints the table, sets "bench" in the report after each row. Returns the rank's exit code. Throws what operations
/// throw, and on rank 0 Error(corrupt), after all rows, if any element was wrong.
int bench_rank(Context& context, ReportSink& sink, const BenchPlan& plan);

}  // namespace tsprun::launcher
