#include "launcher/model/model_rank.h"

#include "launcher/model/audit_table.h"
#include "launcher/model/layouts.h"
#include "layers/model/weights.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace tsp::launcher {

ModelOptions model_options(const Session& session, const ModelCommandOptions& options, bool training) {
  return {.config = options.shape,
          .dtype = options.dtype,
          .recompute = options.recompute,
          .training = training,
          .exchange = sequence_exchange(session.global())};
}

theory::MeshSetting mesh_setting(Session& session, const ModelCommandOptions& options) {
  return {.setting = options.setting(), .shape = session.mesh().shape(), .exchange = sequence_exchange(session.global())};
}

void fill_weights(Model& model, const ModelCommandOptions& options) {
  if (options.model.empty()) {
    model.parameters().fill_fresh(options.shape.layers, options.seed);
  } else {
    model.parameters().load(Weights(options.model));
  }
}

AllReduceChoice all_reduce_choice(Session& session) {
  return [&world = session.world()](std::size_t bytes) { return world.algorithm(Op::all_reduce, bytes); };
}

void say_audit(Session& session, std::span<const RankAudit> audits, const Forecast& forecast,
               const nlohmann::ordered_json& paper) {
  report_audit(session.sink(), audits, forecast, paper);
  if (session.global().quiet) return;
  for (const std::string& line : audit_table(audits, forecast)) session.sink().line(line);
}

void finish_with_audit(Session& session, const RankAudit& mine, const ModelCommandOptions& options, std::span<const Token> ids,
                       bool training, std::uint64_t passes) {
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) {
    const theory::MeshSetting of = mesh_setting(session, options);
    const ForecastOptions run{.threads = session.rank().compute().threads(),
                              .training = training,
                              .passes = passes,
                              .all_reduce = all_reduce_choice(session)};
    say_audit(session, audits, forecast(of, ids, run), paper_json(of, options.dtype));
  }
  session.finish();
}

void finish_with_text_audit(Session& session, const RankAudit& mine, const ModelCommandOptions& options,
                            std::span<const Token> ids, std::size_t prompt, bool print) {
  const std::vector<RankAudit> audits = gather_audits(session.rank(), mine);
  if (session.speaks()) {
    const theory::MeshSetting of = mesh_setting(session, options);
    const std::size_t summed = options.shape.hidden * of.setting.bytes.accumulated;
    const bool one_shot = session.world().algorithm(Op::all_reduce, summed) == Algorithm::one_shot;
    const theory::TokenSum sum = one_shot ? theory::TokenSum::one_shot : theory::TokenSum::in_chunks;
    const Forecast forecast = forecast_text(of, ids, prompt, sum, session.rank().compute().threads());
    report_audit(session.sink(), audits, forecast);
    if (print) {
      for (const std::string& line : audit_table(audits, forecast)) session.sink().error_line(line);
    } else if (spdlog::should_log(spdlog::level::info)) {
      session.sink().error_line(fmt::format("tsprun: info: {}; --audit prints the figures", audit_verdict(audits, forecast)));
    }
  }
  session.finish();
}

}  // namespace tsp::launcher
