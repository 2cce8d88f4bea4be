// Loads or draws weights, and forecasts the run's traffic and peaks for the audit.
#include "launcher/model/model_rank.h"

#include "launcher/model/audit_table.h"
#include "launcher/model/layouts.h"
#include "layers/parameters/not_finite.h"
#include "layers/parameters/weights.h"

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
  const Weights weights(from);
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

void say_audit(Session& session, std::span<const RankAudit> audits, Forecast forecast, const nlohmann::ordered_json& paper) {
  take_own(forecast, audits);
  report_audit(session.sink(), audits, forecast, paper);
  if (session.global().quiet) return;
  for (const std::string& line : audit_table(audits, forecast)) session.sink().line(line);
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
    theory::RunPeaks memory(of, session.rank().rank(), peak_options(session, training));
    for (const std::uint64_t number : passes.decisive.numbers()) {
      memory.pass(passes.tokens(number));
      session.rank().tick();
    }
    mine.memory_forecast = memory.peaks();
  }
  mine.other_forecast = theory::other_of_step(of, session.mesh(), training);
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) {
    const ForecastOptions run{.training = training, .direct_sums = sums_are_direct(session.world(), of.setting)};
    say_audit(session, audits, forecast(of, measured, run), paper_json(of));
  }
  session.finish();
}

void finish_with_text_audit(Session& session, RankAudit mine, const ModelCommandOptions& options, std::span<const Token> ids,
                            std::size_t prompt, bool print) {
  session.stop_tracing();
  const theory::MeshSetting of = mesh_setting(session, options);
  mine.memory_forecast =
      theory::decoding_peaks(of, session.rank().rank(), ids.first(ids.size() - 1), prompt, peak_options(session, false));
  mine.token_sum_forecast = theory::all_reduced(session.world(), options.shape.hidden, of.setting.bytes.accumulated);
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) {
    Forecast forecast = forecast_text(of, ids, prompt, audits);
    take_own(forecast, audits);
    report_audit(session.sink(), audits, forecast);
    if (print) {
      for (const std::string& line : audit_table(audits, forecast)) session.sink().error_line(line);
    } else if (spdlog::should_log(spdlog::level::info)) {
      session.sink().error_line(fmt::format("tsprun: info: {}; --audit prints the figures", audit_verdict(audits, forecast)));
    }
  }
  session.finish();
}

}  // namespace tsprun::detail::launcher
