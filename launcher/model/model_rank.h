// What the ranks of the model commands have in common: options for the model, its weights, and the audit at the end.
#pragma once

#include "launcher/model/audit.h"
#include "launcher/model/model_options.h"
#include "launcher/model/session.h"
#include "layers/model/model.h"

#include <span>

namespace tsp::launcher {

ModelOptions model_options(const Session& session, const ModelCommandOptions& options, bool training);
/// The folder's weights, or fresh ones.
void fill_weights(Model& model, const ModelCommandOptions& options);
/// How the world's all_reduces go, for forecasts; good while the session lives.
AllReduceChoice all_reduce_choice(Session& session);
/// On rank 0: reports the audit, and prints it unless --quiet.
void say_audit(Session& session, std::span<const RankAudit> audits, const Forecast& forecast,
               const nlohmann::ordered_json& paper = nullptr);
/// What theory counts of a run.
theory::MeshSetting mesh_setting(Session& session, const ModelCommandOptions& options);
/// Collective: reports and prints the audit, and writes the trace. `ids` [B, S]: those of the audited step, one of so many.
void finish_with_audit(Session& session, const RankAudit& mine, const ModelCommandOptions& options, std::span<const Token> ids,
                       bool training, std::uint64_t passes);
/// Collective: the same of a text, of which `ids` has all tokens and the first `prompt` were given. Stdout is the text's: the
/// audit goes to stderr, whole if it was asked for (`print`), else its first line alone.
void finish_with_text_audit(Session& session, const RankAudit& mine, const ModelCommandOptions& options,
                            std::span<const Token> ids, std::size_t prompt, bool print);

}  // namespace tsp::launcher
