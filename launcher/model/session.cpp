// Agrees on the kernel level, loads what multiplies matrices, and records and writes the trace.
#include "launcher/model/session.h"

#include "core/kernels/gemm_library.h"
#include "core/kernels/level.h"
#include "launcher/model/layouts.h"
#include "launcher/model/profile_table.h"
#include "launcher/model/trace_file.h"

#include <algorithm>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// Returns the lowest of all ranks' levels. Uses a gather, not a reduction, since no kernel may run before the level is known.
kernels::Level common_level(Communicator& world, kernels::Level of_this_rank) {
  const auto mine = static_cast<std::byte>(of_this_rank);
  std::vector<std::byte> all(static_cast<std::size_t>(world.size()));
  world.all_gather(ConstBuffer(&mine, 1, DType::byte), Buffer(all.data(), all.size(), DType::byte));
  return static_cast<kernels::Level>(*std::min_element(all.begin(), all.end()));
}

}  // namespace

Session::Session(Context& context, ReportSink& sink, const GlobalOptions& global)
    : context_(context), sink_(sink), global_(global) {
  const kernels::Level level = common_level(context.world(), global.kernel_level);
  kernels::set_level(level);
  const std::string gemm = kernels::load_gemm_library();
  if (speaks()) {
    sink_.set("kernels", std::string(kernels::name(level)));
    sink_.set("gemm", gemm);
  }
  if (!global.trace.empty() || global.trace_options.profile) {
    trace_.emplace();
    if (global.trace_options.profile) trace_->sum_up(profile_.emplace(), !global.trace.empty());
    trace_->wake(global.trace_options.whole_job());
  }
  rank_.emplace(context, RankOptions{.threads = static_cast<std::size_t>(global.threads), .trace = trace_ ? &*trace_ : nullptr});
  mesh_.emplace(context.world(), layout_of(global));
}

Session::TracedStep::TracedStep(Session& session, std::uint64_t step) : session_(session) {
  if (!session.trace_) return;
  session.trace_->wake(session.global_.trace_options.holds(step));
  span_.emplace(&*session.trace_, "step", static_cast<std::int64_t>(step));
}

Session::TracedStep::~TracedStep() {
  if (!session_.trace_) return;
  span_.reset();
  session_.trace_->wake(session_.global_.trace_options.whole_job());
}

void Session::stop_tracing() {
  if (!trace_) return;
  trace_->note_memory_now();
  trace_->wake(false);
}

void Session::finish(void (ReportSink::*print)(std::string_view)) {
  if (!trace_) return;
  stop_tracing();
  engine_of(context_).observe(nullptr);
  if (profile_) {
    const nlohmann::ordered_json all = gather_profiles(context_, *profile_);
    if (speaks()) {
      sink_.set("profile", all);
      for (const std::string& line : profile_lines(all, global_.columns)) (sink_.*print)(line);
    }
  }
  if (global_.trace.empty()) return;
  const std::string trouble =
      write_trace(context_, *trace_, global_.faults.values, {.path = global_.trace, .flows = global_.trace_options.flows});
  if (!trouble.empty() && speaks()) sink_.set(kTraceTrouble, trouble);
}

}  // namespace tsprun::detail::launcher
