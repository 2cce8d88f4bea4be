#include "launcher/commands/compare_rank.h"

#include "launcher/model/audit.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/session.h"
#include "launcher/model/training_batch.h"
#include "layers/parameters/not_finite.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <cmath>

namespace tsprun::detail::launcher {

int compare_rank(Context& context, ReportSink& sink, const ComparePlan& plan) {
  const ModelCommandOptions& options = *plan.model;
  const bool training = !plan.forward_only;
  Session session(context, sink, *plan.global);
  Rank& rank = session.rank();
  Model model(rank, session.mesh(), model_options(options, training));
  fill_weights(session, model, options);
  TrainingBatch batch(options);
  PassesOfRun passes{.decisive = {}, .tokens = [&](std::uint64_t step) { return batch.of_step(step); }};

  // The first step isn't measured: it warms up caches and allocates memory for the first time.
  for (std::uint64_t step = 1; step <= plan.steps + 1; ++step) {
    const TokenBatch tokens = batch.of_step(step);
    context.world().barrier();
    if (step == 2) rank.reset_times();
    const std::uint64_t begin = posix::now_ns();
    if (training) {
      model.forward_backward(tokens);
      const double norm = model.gradient_norm();
      if (!std::isfinite(norm)) {
        blame_not_finite(rank, context.world(), model.parameters(),
                         {.what = fmt::format("step {}: the gradients' norm is not finite", step),
                          .advice = "--dtype f64 shows whether numbers outgrew this type",
                          .gradients = true,
                          .run = [&] { model.forward_backward(tokens); }});
      }
      UpdateOptions update;
      update.step = step;
      model.update(update, norm);
    } else {
      model.evaluate(tokens);
    }
    passes.note(step, tokens, model, rank);
    context.world().barrier();
    const double seconds = static_cast<double>(posix::now_ns() - begin) * 1e-9;
    if (session.speaks() && step > 1) sink.append("steps", {{"step", step}, {"seconds", seconds}});
  }

  RankAudit mine{.memory_peak = rank.memory_peaks(), .forward = model.forward_traffic(), .backward = {}, .seconds = rank.times()};
  if (training) mine.backward = model.backward_traffic();
  finish_with_audit(session, mine, options, batch.ids(), training, passes);
  return 0;
}

}  // namespace tsprun::detail::launcher
