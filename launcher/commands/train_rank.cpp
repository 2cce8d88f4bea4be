// One rank of `tsprun train`: the loop over steps, with checkpoints, progress and audit.
#include "launcher/commands/train.h"

#include "launcher/model/audit.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/session.h"
#include "launcher/model/training_batch.h"
#include "launcher/model/window_batch.h"
#include "layers/parameters/not_finite.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

void save(Session& session, Model& model, const TrainPlan& plan, std::uint64_t step) {
  const RunFolder& folder = *plan.folder;
  const CheckpointState state = checkpoint_state(*plan.train, *plan.model, *plan.global, folder.run(), kernels::level(), step);
  const SaveOptions options{
      .keep = plan.train->keep, .source = plan.source, .before_publish = [&] { check_lease(folder.dir(), folder.token()); }};
  const SavedCheckpoint saved =
      save_checkpoint(session.rank(), session.world(), model.parameters(), plan.model->shape, state, folder.dir(), options);
  if (!session.speaks()) return;
  for (const std::string& warning : saved.warnings) session.sink().line(warning);
  if (plan.train->overwrite) {
    try {
      folder.remove_others();
    } catch (const Error& error) {
      session.sink().line(fmt::format("--overwrite: {}", error.what()));
    }
  }
  session.sink().append("checkpoints", {{"step", step}, {"folder", saved.folder.string()}, {"bytes", saved.bytes}});
  if (plan.progress != ProgressLine::Style::silent) {
    session.sink().line(
        fmt::format("saved {} ({:.1f} MiB)", saved.folder.string(), static_cast<double>(saved.bytes) / (1 << 20)));
  }
}

/// What signals have asked of the ranks, as all of them know it.
struct Requests {
  int end_by = 0;  ///< the signal on which they end early; 0: they don't
  bool save = false;
};

/// Agrees with all ranks on what signals have asked of any of them.
Requests agree(Session& session, WindDown& wind_down) {
  std::array<double, 2> asked = {static_cast<double>(wind_down.asked()), wind_down.asked_to_save() ? 1.0 : 0.0};
  session.world().all_reduce(std::span<double>(asked), Reduction::max);
  const Requests requests{.end_by = static_cast<int>(asked[0]), .save = asked[1] > 0};
  if (requests.save) wind_down.note_save();
  return requests;
}

/// The validation data of a run; every rank evaluates them together.
class Validation {
 public:
  /// Opens the files of --data of `options`, which are --eval-data's. Borrows all.
  Validation(Session& session, Model& model, const ModelCommandOptions& options)
      : session_(session), model_(model), options_(options), stream_(options.stream()) {}

  /// Reads the windows from number `first` on that are evaluated together; valid until the next call.
  TokenBatch batch(std::uint64_t first) {
    batch_.emplace(stream_, options_, first);
    return batch_->tokens();
  }

  /// Evaluates all windows, prints and reports their mean loss. Leaves it, and says so, when a signal asks any rank's tsprun to
  /// end; returns whether it was done.
  bool run(const TrainPlan& plan, std::uint64_t step, PassesOfRun& passes) {
    const std::uint64_t windows = window_count(stream_.size(), options_.sequence);
    // All evaluations read the same windows, so one decides peaks only if steps have left more in memory since the one before.
    const std::uint64_t held = session_.rank().context().memory_use().total;
    const bool decisive = held != std::exchange(held_before_, held);
    Loss all;
    for (std::uint64_t first = 0; first < windows; first += batch_->count()) {
      if (plan.wind_down != nullptr && ends(*plan.wind_down)) {
        say_left(plan, step);
        return false;
      }
      const TokenBatch tokens = batch(first);
      const Loss loss = model_.evaluate(tokens);
      if (!std::isfinite(loss.mean)) {
        blame_not_finite(session_.rank(), session_.world(), model_.parameters(),
                         {.what = fmt::format("step {}: the loss of --eval-data is not finite ({:.4f})", step, loss.mean),
                          .advice = "if the model diverged, a smaller --lr, --warmup or --clip may help",
                          .run = [&] { model_.evaluate(tokens); }});
      }
      all.mean += loss.mean * static_cast<double>(loss.tokens);
      all.tokens += loss.tokens;
      if (decisive) passes.decisive.add(PassesOfRun::kEvaluation | first);
    }
    if (all.tokens > 0) all.mean /= static_cast<double>(all.tokens);  // none where every token ends a document
    if (!session_.speaks()) return true;
    session_.sink().append("evaluations", {{"step", step}, {"loss", all.mean}, {"tokens", all.tokens}});
    if (plan.progress == ProgressLine::Style::silent) return true;
    session_.sink().line(fmt::format("evaluated after step {}: loss {:.4f} nats over {} tokens (perplexity {:.3f})", step,
                                     all.mean, all.tokens, std::exp(all.mean)));
    return true;
  }

 private:
  bool ends(const WindDown& wind_down) {
    double asked = wind_down.asked() != 0 ? 1 : 0;
    session_.world().all_reduce(std::span<double>(&asked, 1), Reduction::max);
    return asked > 0;
  }

  void say_left(const TrainPlan& plan, std::uint64_t step) {
    if (!session_.speaks() || plan.progress == ProgressLine::Style::silent) return;
    session_.sink().line(fmt::format(
        "the evaluation after step {} was left for a signal; `tsprun eval` evaluates a checkpoint on the same files", step));
  }

  Session& session_;
  Model& model_;
  const ModelCommandOptions& options_;
  TokenStream stream_;
  std::optional<WindowBatch> batch_;
  std::uint64_t held_before_ = 0;  // bytes in use before the last evaluation
};

}  // namespace

void train_rank(Context& context, ReportSink& sink, const TrainPlan& plan) {
  const ModelCommandOptions& options = *plan.model;
  Session session(context, sink, *plan.global);
  Rank& rank = session.rank();
  std::optional<RunWeights> weights;
  if (!plan.train->resumed) weights.emplace(session, options);
  Model model(rank, session.mesh(), model_options(options, true));
  model.expect(options.sequence);  // windows of the validation data may be shorter
  const std::uint64_t done = plan.train->resumed ? plan.train->resumed->state.step : 0;
  if (plan.train->resumed) {
    load_checkpoint(rank, session.world(), model.parameters(), *plan.train->resumed);
    check_finite(rank, session.world(), model.parameters(),
                 [&](const Parameter&) { return plan.train->resumed->folder.string() + ": "; });
    if (session.speaks() && plan.progress != ProgressLine::Style::silent)
      sink.line(fmt::format("going on from {} after {} steps", plan.train->resumed->folder.string(), done));
  } else {
    weights->fill(model);
  }
  if (plan.folder != nullptr) try_shared_folder(rank, session.world(), plan.folder->dir());
  TrainingBatch batch(options);
  std::optional<Validation> validation;
  if (plan.evaluated != nullptr) validation.emplace(session, model, *plan.evaluated);

  ProgressLine progress(sink, session.speaks() ? plan.progress : ProgressLine::Style::silent, "step", plan.train->steps, done,
                        plan.train->log_every);
  const auto tokens = static_cast<double>(options.batch * options.sequence);
  PassesOfRun passes{.decisive = {},
                     .tokens =
                         [&](std::uint64_t number) {
                           if ((number & PassesOfRun::kEvaluation) == 0) return batch.of_step(number);
                           return validation->batch(number & ~PassesOfRun::kEvaluation);
                         },
                     .files = plan.train->resumed || !options.model.empty()};
  double loss = 0;
  RankAudit mine;
  rank.reset_times();
  for (std::uint64_t step = done + 1; step <= plan.train->steps; ++step) {
    const std::uint64_t begin = posix::now_ns();
    context.begin_step(step);
    const Session::TracedStep traced(session, step);
    const TokenBatch tokens_of_step = batch.of_step(step);
    loss = model.forward_backward(tokens_of_step).mean;
    WindDown* const wind_down = plan.wind_down;
    bool asked = wind_down != nullptr && (wind_down->asked() != 0 || wind_down->asked_to_save());
    const double norm = model.gradient_norm(&asked);
    if (!std::isfinite(norm) || !std::isfinite(loss)) {
      // Every weight would be NaN after the update, and so would every later step and checkpoint. All ranks see the same norm and
      // loss.
      const bool updated = step > done + 1;
      blame_not_finite(rank, session.world(), model.parameters(),
                       {.what = fmt::format("step {}: the {} is not finite (loss {:.4f})", step,
                                            std::isfinite(loss) ? "gradients' norm" : "loss", loss),
                        .advice = updated ? "if the model diverged, a smaller --lr, --warmup or --clip may help"
                                          : "no weight has been updated yet; --dtype f64 shows whether numbers outgrew this type",
                        .gradients = true,
                        .run = [&] { model.forward_backward(tokens_of_step); }});
    }
    const UpdateOptions update = plan.train->update(step);
    model.update(update, norm);
    passes.note(step, tokens_of_step, model, rank);
    mine.forward = model.forward_traffic();
    mine.backward = model.backward_traffic();
    const double seconds = static_cast<double>(posix::now_ns() - begin) * 1e-9;
    board_of(context).note_loss(context.rank(), step, plan.train->steps, loss);
    if (session.speaks()) {
      sink.step({{"step", step},
                 {"loss", loss},
                 {"grad_norm", norm},
                 {"learning_rate", update.learning_rate},
                 {"tokens_per_s", tokens / seconds}});
      progress.update(step, tokens, fmt::format("loss {:.4f}  grad_norm {:.3f}", loss, norm));
    }
    Requests requests = asked ? agree(session, *wind_down) : Requests();
    // Before the checkpoint, so that a run that goes on from there has its evaluation.
    const bool evaluates = plan.train->evaluates_after(step) && requests.end_by == 0;
    if (evaluates && !validation->run(plan, step, passes)) requests = agree(session, *wind_down);
    const bool ends_early = requests.end_by != 0 && step < plan.train->steps;
    if (plan.train->saves_after(step) || ends_early || requests.save) {
      save(session, model, plan, step);
      passes.saved = true;
    }
    if (!ends_early) continue;
    wind_down->note_ended_by(requests.end_by);
    if (session.speaks()) sink.set("loss", loss);
    session.finish();
    return;
  }

  mine.memory_peak = rank.memory_peaks();
  mine.seconds = rank.times();
  check_finite(rank, session.world(), model.parameters(), [&](const Parameter&) {
    return fmt::format("after the update of step {}, a smaller --lr, --warmup or --clip may help: ", plan.train->steps);
  });
  if (session.speaks()) sink.set("loss", loss);
  finish_with_audit(session, mine, options, batch.ids(), true, passes);
}

}  // namespace tsprun::detail::launcher
