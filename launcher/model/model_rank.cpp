#include "launcher/model/model_rank.h"

#include "layers/model/weights.h"

namespace tsp::launcher {

ModelOptions model_options(const ModelCommandOptions& options, bool training) {
  return {.config = options.shape, .dtype = options.dtype, .recompute = options.recompute, .training = training};
}

void fill_weights(Model& model, const ModelCommandOptions& options) {
  if (options.model.empty()) {
    model.parameters().fill_fresh(options.shape.layers, options.seed);
  } else {
    model.parameters().load(Weights(options.model));
  }
}

void say_audit(Session& session, std::span<const RankAudit> audits, std::span<const RankForecast> forecasts,
               const nlohmann::ordered_json& paper) {
  report_audit(session.sink(), audits, forecasts, paper);
  if (session.global().quiet) return;
  for (const std::string& line : audit_table(audits, forecasts)) session.sink().line(line);
}

void finish_with_audit(Session& session, const RankAudit& mine, const ModelCommandOptions& options, std::span<const Token> ids,
                       bool training) {
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) {
    say_audit(session, audits,
              forecast(options.setting(), session.rank().size(), ids,
                       {.dtype = options.dtype, .threads = session.rank().compute().threads(), .training = training}),
              paper_json(options.setting(), session.rank().size(), options.dtype));
  }
  session.finish();
}

}  // namespace tsp::launcher
