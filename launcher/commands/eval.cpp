// `tsprun eval`: the loss of a model on data, and on request its logits.
#include "launcher/commands/command.h"
#include "launcher/model/memory_need.h"
#include "launcher/model/model_options.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/output_file.h"
#include "launcher/model/window_batch.h"
#include "layers/io/data.h"
#include "layers/parameters/not_finite.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// Returns a sink that writes tiles of logits of the windows from `first` on, of `length` tokens each. A window takes `sequence`
/// rows of the file.
LogitsSink logits_sink(Session& session, OutputFile& file, std::size_t sequence, std::uint64_t first, std::size_t length) {
  return [&session, &file, sequence, first, length](std::span<const std::size_t> rows, std::size_t first_id,
                                                    const ConstTensor& logits) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t row = (static_cast<std::size_t>(first) + rows[i] / length) * sequence + rows[i] % length;
      file.writer().write("logits", {.first_row = row, .rows = 1, .first_column = first_id, .columns = logits.size(1)},
                          buffer_of(logits.select(0, i)));
    }
    session.rank().tick();
  };
}

class EvalCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "eval",
            .help = "loss (and, on request, logits) of a model on data",
            .examples = {"tsprun -n 4 eval --model runs/book/step-000700 --data other.txt",
                         "tsprun -n 2 --json eval.json eval --config nano --data book.txt --logits logits.safetensors"},
            .has_trace = true,
            .has_profile = true};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override { return model_inputs(model_); }
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void evaluate(Context& context, ReportSink& sink, const GlobalOptions& global, int unnamed) const;

  ModelCommandOptions model_;
  std::string logits_;
};

void EvalCommand::declare(OptionTable& table) {
  using enum Trait;
  table.add("--logits FILE", logits_, "write the logits [windows, S, V] to a safetensors file", per_node | writes_in_place);
  model_.declare(table);
}

void EvalCommand::validate(const GlobalOptions& global) {
  validate_model(model_, global);
  validate_data(model_, false);
  validate_memory(model_, global, ModelUse::inference);
  check_need(model_, global, false, "its first windows",
             [&](const theory::MeshSetting& of, int rank, const theory::PeakOptions& how) {
               constexpr int kTellingPasses = 2;  // buffers that are kept for later use exist from the second on
               const TokenStream stream = model_.stream();
               const std::uint64_t windows = window_count(stream.size(), model_.sequence);
               theory::RunPeaks run(of, rank, how);
               std::uint64_t first = 0;
               for (int pass = 0; pass < kTellingPasses && first < windows; ++pass) {
                 const WindowBatch batch(stream, model_, first);
                 run.pass(batch.tokens());
                 first += batch.count();
               }
               return run.peaks();
             });
  if (logits_.empty()) return;
  std::vector<std::filesystem::path> sources = model_.files();
  sources.emplace_back(model_.config);
  sources.emplace_back(model_.model);
  const double bytes = static_cast<double>(window_count(model_.tokens, model_.sequence)) * static_cast<double>(model_.sequence) *
                       static_cast<double>(model_.shape.vocabulary) * sizeof(float);
  logits_ = check_output("--logits", logits_, bytes, sources);
}

/// Evaluates all windows, --batch of them at a time; prints the mean loss in nats and the audit of the first pass; sets `loss`,
/// `windows`, `tokens`, `per_rank` and `theory` in the report. Every rank runs it. `unnamed`: see OutputFile.
void EvalCommand::evaluate(Context& context, ReportSink& sink, const GlobalOptions& global, int unnamed) const {
  const ModelCommandOptions& options = model_;
  Session session(context, sink, global);
  Rank& rank = session.rank();
  RunWeights weights(session, options);
  Model model(rank, session.mesh(), model_options(options, false));
  model.expect(options.sequence);  // the last window may be shorter
  weights.fill(model);
  const TokenStream stream = options.stream();
  const std::uint64_t windows = window_count(stream.size(), options.sequence);
  std::optional<OutputFile> file;
  if (!logits_.empty()) {
    const std::vector<std::size_t> shape = {static_cast<std::size_t>(windows), options.sequence, options.shape.vocabulary};
    file.emplace(session, logits_, std::vector<safetensors::PlannedTensor>{{"logits", DType::f32, shape}}, unnamed);
  }

  ProgressLine progress(sink, session.speaks() ? progress_style(global) : ProgressLine::Style::silent, "window", windows);
  double sum = 0;
  std::uint64_t predicted = 0;
  RankAudit audit;
  ModelCommandOptions audited = options;  // the first pass
  std::vector<Token> audited_ids;
  std::optional<WindowBatch> again;
  PassesOfRun passes{.decisive = {},
                     .tokens =
                         [&](std::uint64_t first) {
                           again.emplace(stream, options, first);
                           return again->tokens();
                         },
                     .files = !options.model.empty()};
  rank.reset_times();
  for (std::uint64_t first = 0; first < windows;) {
    const WindowBatch batch(stream, options, first);
    const TokenBatch tokens = batch.tokens();
    std::optional<LogitsSink> logits;
    if (file) logits = logits_sink(session, *file, options.sequence, first, batch.length());
    const Loss loss = model.evaluate(tokens, logits ? &*logits : nullptr);
    if (!std::isfinite(loss.mean)) {
      blame_not_finite(rank, context.world(), model.parameters(),
                       {.what = fmt::format("window {}: the loss is {}", first, loss.mean),
                        .advice = "--dtype f64 shows whether numbers outgrew this type",
                        .run = [&] { model.evaluate(tokens); }});
    }
    sum += loss.mean * static_cast<double>(loss.tokens);
    predicted += loss.tokens;
    if (first == 0) {
      audit.forward = model.forward_traffic();
      audited.batch = batch.count();
      audited.sequence = batch.length();
      audited_ids.assign(tokens.ids.begin(), tokens.ids.end());
    }
    passes.note(first, tokens, model, rank);
    first += batch.count();
    progress.update(first, static_cast<double>(loss.tokens), fmt::format("loss {:.4f}", loss.mean));
  }
  audit.seconds = rank.times();
  session.stop_tracing();
  audit.memory_peak = rank.memory_peaks();
  if (file) file->publish();

  const double mean = predicted == 0 ? 0 : sum / static_cast<double>(predicted);  // none where every token ends a document
  if (session.speaks()) {
    sink.line(fmt::format("loss {:.6f} nats over {} tokens in {} windows (perplexity {:.3f})", mean, predicted, windows,
                          std::exp(mean)));
    sink.set("loss", mean);
    sink.set("tokens", predicted);
    sink.set("windows", windows);
  }
  finish_with_audit(session, audit, audited, audited_ids, false, passes);
}

int EvalCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  const posix::UniqueFd unnamed = unnamed_output(global, logits_);
  const int code = run_model_job(
      global, report, [&](Context& context, ReportSink& sink) { evaluate(context, sink, global, unnamed.get()); }, unnamed.get());
  if (code != 0 && !logits_.empty()) safetensors::discard_unfinished(logits_);
  return code;
}

}  // namespace

std::unique_ptr<Command> make_eval() { return std::make_unique<EvalCommand>(); }

}  // namespace tsprun::detail::launcher
