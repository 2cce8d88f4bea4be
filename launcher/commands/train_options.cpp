// The rows of `train`'s options, and what a run takes from the checkpoint that it resumes.
#include "launcher/commands/train_options.h"

#include "launcher/model/layouts.h"
#include "launcher/refuse.h"
#include "layers/checkpoints/checkpoint_folder.h"
#include "layers/checkpoints/checkpoint_manifest.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>
#include <tuple>

namespace tsprun::detail::launcher {

namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000;
constexpr std::int64_t kMostRestarts = 1'000'000;
constexpr std::int64_t kMostWithin = 86'400;

/// Returns true if a run may begin in this folder: it is missing, or has no checkpoints.
bool holds_nothing(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::exists(dir, error)) return true;
  return std::filesystem::is_directory(dir, error) && !std::filesystem::exists(dir / kManifestName, error) &&
         steps_in(dir).empty() && interrupted_in(dir).empty();
}

bool same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto plain = [](const std::filesystem::path& path) { return (std::filesystem::absolute(path) / "").lexically_normal(); };
  return plain(a) == plain(b);
}

/// Returns where a resumed run saves if --save isn't given: the folder that its checkpoint is in. Empty: that isn't a folder of a
/// run.
std::string own_folder(const std::filesystem::path& resumed, const std::filesystem::path& checkpoint) {
  std::error_code error;
  if (!std::filesystem::equivalent(resumed, checkpoint, error)) return resumed.string();
  const std::filesystem::path name = (checkpoint / ".").lexically_normal().parent_path();  // without a slash at its end
  if (!step_of(name.filename().string())) return {};
  return name.has_parent_path() ? name.parent_path().string() : ".";
}

Choice<RateSchedule> rate_schedules() {
  Choice<RateSchedule> choice;
  for (std::size_t i = 0; i < kRateSchedules.size(); ++i)
    choice.choices.emplace_back(kRateSchedules[i], static_cast<RateSchedule>(i));
  return choice;
}

/// Makes a resumed run take the row's value from its checkpoint only where this holds.
template <class Holds>
void restore_if(OptionRow& row, Holds holds) {
  row.restore = [holds, restore = row.restore](const CheckpointState& state) {
    if (holds(state)) restore(state);
  };
}

bool rate_falls(const CheckpointState& state) { return state.schedule != RateSchedule::constant; }

/// Checks the options of the learning rate together.
void validate_rates(const TrainOptions& options) {
  if (options.schedule == RateSchedule::constant) {
    constexpr const char* kWhy = "has no effect with --lr-schedule constant; try --lr-schedule cosine";
    if (options.least_rate > 0) refuse(fmt::format("--min-lr {}: {}", options.least_rate.text, kWhy));
    if (options.decay_steps > 0) refuse(fmt::format("--decay-steps {}: {}", options.decay_steps.text, kWhy));
    return;
  }
  if (options.warmup >= options.steps) {
    refuse(fmt::format("--lr-schedule {}: --warmup {} leaves none of the {} steps for the rate to fall; try --warmup {}",
                       options.schedule.text, options.warmup.value, options.steps.value, options.steps / 10));
  }
  if (const std::uint64_t most = options.steps - options.warmup; options.decay_steps > most) {
    refuse(fmt::format("--decay-steps {}: {} steps come after the warm-up; try --decay-steps {}", options.decay_steps.text, most,
                       most));
  }
  if (options.least_rate > options.learning_rate) {
    refuse(fmt::format("--min-lr {}: above --lr {}, from which the rate falls; try --min-lr {}", options.least_rate.text,
                       options.learning_rate.value, options.learning_rate / 10));
  }
}

/// Checks what depends on the number of steps.
void validate_steps(const TrainOptions& options) {
  validate_rates(options);
  if (!options.resumed || options.resumed->state.step < options.steps) return;
  const std::uint64_t done = options.resumed->state.step;
  if (options.epochs > 0) {
    refuse(fmt::format("--epochs {}: they are {} steps, and {} has done {} already; try --epochs {}", options.epochs,
                       options.steps.value, options.resumed->folder.string(), done, std::floor(options.epochs) + 1));
  }
  refuse(fmt::format("--steps {}: {} has done {} already; try --steps {}", options.steps.value, options.resumed->folder.string(),
                     done, done + 100));
}

/// Returns the rows of all options that a checkpoint may keep.
OptionTable table_of(TrainOptions& options, ModelCommandOptions& model) {
  OptionTable table;
  model.declare(table, kTrainUse);
  options.declare(table);
  return table;
}

}  // namespace

void warn_of_skipped(const std::vector<std::string>& skipped) {
  for (const std::string& line : skipped) spdlog::warn("skipped a checkpoint: {}", line);
}

LearningRate TrainOptions::rates() const {
  return {
      .schedule = schedule, .peak = learning_rate, .least = least_rate, .warmup = warmup, .steps = steps, .decay = decay_steps};
}

UpdateOptions TrainOptions::update(std::uint64_t step) const {
  return {.learning_rate = rates().at(step),
          .weight_decay = weight_decay,
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = epsilon,
          .clip = clip,
          .step = step};
}

bool TrainOptions::evaluates_after(std::uint64_t step) const {
  return !eval_data.empty() && (step == steps || (eval_every != 0 && step % eval_every == 0));
}

bool TrainOptions::saves_after(std::uint64_t step) const {
  return !save.empty() && (step == steps || (save_every != 0 && step % save_every == 0));
}

void TrainOptions::declare(OptionTable& table) {
  using enum Trait;
  constexpr double kMost = 1e6;
  table.group("Training");
  // Rows are restored in their order: --steps looks at --epochs, and what the schedule needs at the schedule.
  table
      .add("--epochs E", epochs,
           "read each window of --seq tokens once in every epoch, in random order, instead of drawing windows anywhere, and end "
           "after E epochs (rounded up to steps); 0: --steps says when",
           Number{{.lowest = 0, .highest = kMost}})
      .saved(&CheckpointState::epochs);
  const auto of_steps =
      table.add("--steps N", steps, "steps in all, those of a resumed checkpoint included", Whole{1, kMostSteps});
  of_steps.saved(&CheckpointState::steps);
  // A constant rate doesn't depend on the number of steps, so checkpoints of such runs don't keep it.
  restore_if(of_steps.row, [this](const CheckpointState& state) { return rate_falls(state) && epochs == 0; });
  of_steps.row.record = [this, record = of_steps.row.record](CheckpointState& state) {
    if (schedule != RateSchedule::constant) record(state);
  };
  of_steps.row.difference = [difference = of_steps.row.difference](const auto& saved, const auto& now) {
    return rate_falls(saved) && rate_falls(now) ? difference(saved, now) : std::string();
  };
  table.add("--lr RATE", learning_rate, "learning rate", Number{{.lowest = 0, .highest = kMost}})
      .saved(&CheckpointState::learning_rate);
  table
      .add("--warmup N", warmup, "steps in which the learning rate grows from 0, linearly; then --lr-schedule",
           Whole{0, kMostSteps})
      .saved(&CheckpointState::warmup);
  table
      .add("--lr-schedule NAME", schedule,
           "{}: how the learning rate falls to --min-lr: not at all, over all steps, or (wsd) linearly in the last --decay-steps",
           rate_schedules())
      .saved(&CheckpointState::schedule);
  const auto falls = [this](const CheckpointState&) { return schedule != RateSchedule::constant; };
  const auto least = table.add("--min-lr RATE", least_rate, "where the schedule ends, one step after the last",
                               Number{{.lowest = 0, .highest = kMost}});
  least.saved(&CheckpointState::least_rate);
  restore_if(least.row, falls);
  const auto decay =
      table.add("--decay-steps N", decay_steps,
                "last steps, in which the learning rate falls; default: all after the warm-up, for wsd a tenth of all",
                Whole{0, kMostSteps}, computed);
  decay.saved(&CheckpointState::decay_steps);
  restore_if(decay.row, falls);
  table.add("--weight-decay X", weight_decay, "of matrices only", Number{{.lowest = 0, .highest = kMost}})
      .saved(&CheckpointState::weight_decay);
  table.add("--beta1 X", beta1, "AdamW's", Number{{.lowest = 0, .highest = 1, .below = true}}).saved(&CheckpointState::beta1);
  table.add("--beta2 X", beta2, "AdamW's", Number{{.lowest = 0, .highest = 1, .below = true}}).saved(&CheckpointState::beta2);
  table.add("--eps X", epsilon, "AdamW's", Number{{.lowest = 0, .highest = 1, .open = true}}).saved(&CheckpointState::epsilon);
  table.add("--clip X", clip, "largest global gradient norm; 0: none", Number{{.lowest = 0, .highest = kMost}})
      .saved(&CheckpointState::clip);
  table.add("--eval-data FILE", eval_data,
            "files of validation data, as --data's: their mean loss is printed after the last step, and after every K-th", reads);
  table.add("--eval-every K", eval_every, "steps between evaluations of --eval-data; default: one at the end",
            Whole{1, kMostSteps}, computed);
  table.add("--save DIR", save,
            "write checkpoints DIR/step-000120, each a --model folder too; default: with --resume the folder that it goes on in",
            per_node);
  table.add("--save-every K", save_every, "steps between checkpoints; default: one at the end", Whole{1, kMostSteps}, computed);
  table.add("--keep K", keep, "checkpoints that stay, the newest; 0: all", Whole{0, kMostSteps});
  table.add("--overwrite", overwrite,
            "save into a folder that holds another run's checkpoints, and delete those after this run's first");
  table.add("--resume DIR", resume,
            "go on from a checkpoint, or from the newest whole one in a folder; options that aren't given are the checkpoint's; "
            "with --save of the same folder a run begins there if it is empty",
            per_node | reads);
  table.add("--save-within SECONDS", save_within,
            "that a signal which asks the job to end waits for a last checkpoint to be saved; 0: not at all",
            Whole{0, kMostWithin});
  table.add("--save-on SIGNAL", save_on, "{}: the signal on which a checkpoint is saved, and the run goes on",
            Choice<int>{{{"USR1", SIGUSR1}, {"USR2", SIGUSR2}}});
  table.add("--log-every N", log_every,
            "print a line every N steps, and for the first and the last; default: at most one a second", Whole{1, kMostSteps},
            computed | per_node);
  table.add("--max-restarts R", max_restarts, "times that a failed run goes on by itself from its newest checkpoint",
            Whole{0, kMostRestarts});
}

void find_resumed(TrainOptions& options, ModelCommandOptions& model) {
  if (options.resume.empty()) return;
  const bool own = !options.save.empty() && same_folder(options.save, options.resume);
  if (own && holds_nothing(options.resume)) {
    spdlog::info("--resume {}: holds no checkpoint yet; a new run begins there", options.resume);
    return;
  }
  if (own && !model.model.empty()) {
    spdlog::info("--model {}: where the run began; it goes on from its checkpoint", model.model);
    model.model.clear();
  }
  if (own) model.unchecked = false;  // as the command says that earlier versions printed for going on
  if (!model.model.empty()) {
    refuse(fmt::format("--resume {} and --model {}: a checkpoint brings its weights; give one of them", options.resume,
                       model.model));
  }
  options.resumed = find_checkpoint(options.resume, options.skipped);
  warn_of_skipped(options.skipped);
  if (options.save.empty()) {
    options.save = own_folder(options.resume, options.resumed->folder);
    options.saves_unasked = !options.save.empty();
    if (options.save.empty())
      spdlog::warn("--resume {}: lies in no folder of a run, so nothing will be saved; give --save DIR", options.resume);
  }
  for (const std::string& line : options.resumed->warnings) spdlog::warn("{}", line);
  model.resumed = options.resumed->config;
  model.source = options.resumed->folder;
  const CheckpointState& state = options.resumed->state;
  if (model.dtype.given() && model.dtype != state.dtype) {
    refuse(fmt::format("--dtype {}: {} holds {}; leave --dtype out", model.dtype.text, options.resumed->folder.string(),
                       name(state.dtype)));
  }
  const OptionTable table = table_of(options, model);
  for (const OptionRow& row : table.rows()) {
    if (!row.restore) continue;
    row.restore(state);
    row.parse();  // refuses what a manifest may say but the option may not
  }
}

void validate_train(const TrainOptions& options, DType dtype) {
  const auto needs_save = [&](const std::string& option, const std::string& text, const char* why) {
    if (options.save.empty()) refuse(fmt::format("{} {}: {}; give --save DIR", option, text, why));
  };
  if (options.keep > 0) needs_save("--keep", options.keep.text, "no checkpoints are written");
  if (options.save_every.given()) needs_save("--save-every", options.save_every.text, "says when, not where");
  if (options.overwrite && options.save.empty()) refuse("--overwrite: nothing is saved; give --save DIR");
  if (options.save_within.given() && options.save_within > 0)
    needs_save("--save-within", options.save_within.text, "a signal waits for a last checkpoint, and none is written");
  if (options.save_on.given()) needs_save("--save-on", options.save_on.text, "no checkpoints are written");
  if (options.eval_every.given() && options.eval_data.empty())
    refuse(fmt::format("--eval-every {}: says when, not what; give --eval-data FILE", options.eval_every.text));
  if (options.max_restarts > 0) needs_save("--max-restarts", options.max_restarts.text, "there is no checkpoint to go on from");
  if (options.epochs == 0) validate_steps(options);
  else if (options.steps.given())
    refuse(fmt::format("--steps {}: the run counts epochs, {}; leave it out, or give --epochs 0", options.steps.text,
                       options.epochs));
  // Moments and their roots are f32 unless the model is f64.
  if (constexpr double kLeast = std::numeric_limits<float>::min(); dtype != DType::f64 && options.epsilon < kLeast)
    refuse(fmt::format("--eps {}: with --dtype {} it is an f32, at least {:.3g}; try --eps 1e-8", options.epsilon.text,
                       name(dtype), kLeast));
}

void count_steps(TrainOptions& options, ModelCommandOptions& model) {
  if (options.epochs == 0) return;
  model.whole_epochs = true;
  const std::uint64_t windows = (model.tokens - 1) / model.sequence;
  // A product such as 0.07 · 100 lies a little above the whole number that is meant.
  constexpr double kExact = 1 - 1e-12;
  const double batches = options.epochs * static_cast<double>(windows) / static_cast<double>(model.batch.value);
  const double steps = std::max(1.0, std::ceil(batches * kExact));
  if (steps > static_cast<double>(kMostSteps))
    refuse(fmt::format("--epochs {}: {:.3g} steps are more than {}; give fewer", options.epochs, steps, kMostSteps));
  options.steps = static_cast<std::uint64_t>(steps);
  validate_steps(options);
  spdlog::info("--epochs {}: {} windows of {} tokens, {} steps of {} windows", options.epochs, windows, model.sequence.value,
               options.steps.value, model.batch.value);
}

CheckpointState checkpoint_state(const TrainOptions& options, const ModelCommandOptions& model, const GlobalOptions& global,
                                 const std::string& run, kernels::Level level, std::uint64_t step) {
  CheckpointState state{.run = run,
                        .step = step,
                        .data_tokens = model.tokens,
                        .layout = layout_as_typed(global),
                        .kernels = std::string(kernels::name(level))};
  if (global.gemm == kernels::GemmLibrary::openblas) state.kernels += " and OpenBLAS";
  TrainOptions train = options;  // rows refer to what they may change
  ModelCommandOptions of_model = model;
  const OptionTable table = table_of(train, of_model);
  for (const OptionRow& row : table.rows()) {
    if (row.record) row.record(state);
  }
  return state;
}

std::vector<std::string> differences(const CheckpointState& saved, const CheckpointState& now) {
  TrainOptions train;
  ModelCommandOptions model;
  const OptionTable table = table_of(train, model);
  std::vector<std::string> lines;
  for (const OptionRow& row : table.rows()) {
    const std::string difference = row.difference ? row.difference(saved, now) : std::string();
    if (!difference.empty()) lines.push_back(fmt::format("{}: {}", row.name(), difference));
  }
  const auto compare = [&](std::string_view what, const auto& then, const auto& today) {
    if (then != today) lines.push_back(fmt::format("{}: {} now, {} in the checkpoint", what, today, then));
  };
  compare("tokens of --data", saved.data_tokens, now.data_tokens);
  const auto windows = [](const CheckpointState& state) {
    return std::tie(state.batch, state.sequence, state.seed, state.data_tokens, state.end_of_document);
  };
  if (saved.epochs > 0 && now.epochs > 0 && windows(saved) != windows(now))
    lines.emplace_back(
        "--epochs: windows are numbered otherwise than in the checkpoint; some of this epoch come twice or not at all");
  compare("ranks", saved.layout.ranks(), now.layout.ranks());
  compare("--layout", saved.layout.print(), now.layout.print());
  for (const AxisRow& row : kAxes) {
    if (!row.variants.empty())
      compare(fmt::format("--{}", row.name), variant_name(saved.layout, row), variant_name(now.layout, row));
  }
  compare("kernels", saved.kernels, now.kernels);
  return lines;
}

}  // namespace tsprun::detail::launcher
