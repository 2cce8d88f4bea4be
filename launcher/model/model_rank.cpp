// Loads or draws weights, and forecasts the run's traffic and peaks for the audit.
#include "launcher/model/model_rank.h"

#include "launcher/model/audit_table.h"
#include "launcher/model/layouts.h"
#include "layers/parameters/not_finite.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace tsprun::detail::launcher {

ModelOptions model_options(const ModelCommandOptions& options, bool training) {
  return {.config = options.shape, .dtype = options.dtype, .recompute = options.recompute, .training = training};
}

theory::MeshSetting mesh_setting(Session& session, const ModelCommandOptions& options) {
  return {.setting = options.setting(), .layout = session.mesh().layout()};
}

namespace {

void load_finite(Session& session, ParameterStore& store, const ModelFolder& weights, file::ReadAhead* ahead) {
  const bool finite = store.load(weights, ahead);
  check_finite(
      session.rank(), session.world(), store,
      [&](const Parameter& parameter) { return weights.path_of(parameter.name).string() + ": "; }, finite);
}

}  // namespace

void load_weights(Session& session, ParameterStore& store, const std::filesystem::path& from) {
  load_finite(session, store, ModelFolder(from), nullptr);
}

RunWeights::RunWeights(Session& session, const ModelCommandOptions& options) : session_(session), options_(options) {
  if (options.model.empty()) return;
  folder_.emplace(options.model);
  ahead_.emplace(ranges_to_load(*folder_, model_packs(options.shape, session.mesh())),
                 file::kMostAhead / static_cast<std::uint64_t>(session.rank().context().local_size()));
}

void RunWeights::fill(Model& model) {
  if (!folder_) return model.parameters().fill_fresh(options_.shape.layers, options_.seed);
  load_finite(session_, model.parameters(), *folder_, &*ahead_);
  ahead_.reset();
  folder_.reset();
}

namespace {

/// Fails the job, last of all, if a figure isn't as forecast.
void require_equal(Session& session, std::span<const RankAudit> audits, Audited kind) {
  if (!session.speaks() || is_as_forecast(audits, kind)) return;
  throw Error(Cause::refused, fmt::format("--audit strict: {}", audit_verdict(audits, kind)));
}

}  // namespace

void finish_with(Session& session, std::span<const RankAudit> audits, bool strict, const nlohmann::ordered_json& paper) {
  if (session.speaks()) {
    report_audit(session.sink(), audits, Audited::steps, paper);
    if (!session.global().quiet) {
      for (const std::string& line : audit_table(audits, Audited::steps, session.global().columns)) session.sink().line(line);
    }
  }
  session.finish();
  if (strict) require_equal(session, audits, Audited::steps);
}

theory::PeakOptions peak_options(Session& session, bool training) {
  return {.threads = session.rank().compute().threads(), .training = training, .like = likeness(session.rank().context())};
}

void finish_with_audit(Session& session, RankAudit mine, const ModelCommandOptions& options, std::span<const Token> ids,
                       bool training, const PassesOfRun& passes) {
  session.stop_tracing();
  const theory::MeshSetting of = mesh_setting(session, options);
  const std::vector<Token> measured(ids.begin(), ids.end());  // `ids` may view memory that passes.tokens() overwrites
  {
    theory::PeakOptions peaks = peak_options(session, training);
    peaks.files = passes.files;
    theory::RunPeaks run(of, session.rank().rank(), peaks);
    for (const std::uint64_t number : passes.decisive.numbers()) {
      const TokenBatch tokens = passes.tokens(number);
      if ((number & PassesOfRun::kEvaluation) != 0) run.evaluate(tokens);
      else run.pass(tokens);
      session.rank().tick();
    }
    if (passes.saved) run.save();
    mine.forecast.memory = run.peaks();
    const std::vector<std::int64_t> labels(measured.size());
    run.pass({.batch = of.setting.batch,
              .sequence = of.setting.sequence,
              .ids = measured,
              .labels = labels,
              .document_end = options.document_end,
              .micro_batches = of.setting.micro_batches});
    mine.forecast.traffic = run.traffic();
  }
  finish_with(session, gather_audits(session.rank(), mine), options.strict_audit, paper_json(of));
}

void finish_with_text_audit(Session& session, RankAudit mine, const ModelCommandOptions& options,
                            std::span<const DecodedText> texts, std::string_view mode) {
  session.stop_tracing();
  const theory::MeshSetting of = mesh_setting(session, options);
  mine.forecast = theory::decoding_counts(of, session.rank().rank(), texts, peak_options(session, false));
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) {
    report_audit(session.sink(), audits, Audited::text);
    if (!mode.empty()) {
      for (const std::string& line : audit_table(audits, Audited::text, session.global().columns))
        session.sink().error_line(line);
    } else if (spdlog::should_log(spdlog::level::info)) {
      session.sink().error_line(
          fmt::format("tsprun: info: {}; --audit prints the figures", audit_verdict(audits, Audited::text)));
    }
  }
  session.finish(&ReportSink::error_line);
  if (mode == "strict") require_equal(session, audits, Audited::text);
}

}  // namespace tsprun::detail::launcher
