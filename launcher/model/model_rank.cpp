// Loads or draws weights, and forecasts the run's traffic and peaks for the audit.
#include "launcher/model/model_rank.h"

#include "launcher/model/audit_table.h"
#include "launcher/model/layouts.h"
#include "layers/parameters/model_folder.h"
#include "layers/parameters/not_finite.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace tsprun::detail::launcher {

ModelOptions model_options(const ModelCommandOptions& options, bool training) {
  return {.config = options.shape, .dtype = options.dtype, .recompute = options.recompute, .training = training};
}

theory::MeshSetting mesh_setting(Session& session, const ModelCommandOptions& options) {
  return {.setting = options.setting(), .layout = session.mesh().layout()};
}

void load_weights(Session& session, ParameterStore& store, const std::filesystem::path& from) {
  const ModelFolder weights(from);
  store.load(weights);
  check_finite(session.rank(), session.world(), store,
               [&](const Parameter& parameter) { return weights.path_of(parameter.name).string() + ": "; });
}

void fill_weights(Session& session, Model& model, const ModelCommandOptions& options) {
  if (options.model.empty()) {
    model.parameters().fill_fresh(options.shape.layers, options.seed);
  } else {
    load_weights(session, model.parameters(), options.model);
  }
}

void say_audit(Session& session, std::span<const RankAudit> audits, const nlohmann::ordered_json& paper) {
  report_audit(session.sink(), audits, Audited::steps, paper);
  if (session.global().quiet) return;
  for (const std::string& line : audit_table(audits)) session.sink().line(line);
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
    theory::RunPeaks run(of, session.rank().rank(), peak_options(session, training));
    for (const std::uint64_t number : passes.decisive.numbers()) {
      run.pass(passes.tokens(number));
      session.rank().tick();
    }
    mine.forecast.memory = run.peaks();
    const std::vector<std::int64_t> labels(measured.size());
    run.pass({.batch = of.setting.batch, .sequence = of.setting.sequence, .ids = measured, .labels = labels});
    mine.forecast.traffic = run.traffic();
  }
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) say_audit(session, audits, paper_json(of));
  session.finish();
}

void finish_with_text_audit(Session& session, RankAudit mine, const ModelCommandOptions& options,
                            std::span<const DecodedText> texts, bool print) {
  session.stop_tracing();
  const theory::MeshSetting of = mesh_setting(session, options);
  mine.forecast = theory::decoding_counts(of, session.rank().rank(), texts, peak_options(session, false));
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) {
    report_audit(session.sink(), audits, Audited::text);
    if (print) {
      for (const std::string& line : audit_table(audits, Audited::text)) session.sink().error_line(line);
    } else if (spdlog::should_log(spdlog::level::info)) {
      session.sink().error_line(
          fmt::format("tsprun: info: {}; --audit prints the figures", audit_verdict(audits, Audited::text)));
    }
  }
  session.finish();
}

}  // namespace tsprun::detail::launcher
