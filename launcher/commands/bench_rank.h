// Every rank's part of `tsprun bench`: it runs the cases one after the other through its communicator, on buffers in
// its heap.
#pragma once

#include "core/context.h"
#include "launcher/bench/measure.h"
#include "launcher/report_sink.h"

#include <span>
#include <string>

namespace tsprun::detail::launcher {

/// Cases to measure, and how to measure them. Views are borrowed.
struct BenchPlan {
  std::span<const bench::Case> cases;
  bench::Pace pace;
  bool check = true;
  bool both_places = true;             ///< measure out of place and in place; else each operation's usual form alone
  std::span<const std::string> notes;  ///< lines to print above the tables
  int cores = 1;                       ///< cores that this machine's ranks may use together; a single rank may be bound to fewer
  bool several_machines = false;
};

/// Measures all cases, prints the tables, and sets "bench" in the report after each row. Returns the rank's exit code. Throws
/// what operations throw, and on rank 0 Error(corrupt), after all rows, if any element was wrong.
int bench_rank(Context& context, ReportSink& sink, const BenchPlan& plan);

}  // namespace tsprun::detail::launcher
