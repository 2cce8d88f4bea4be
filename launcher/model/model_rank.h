// What the ranks of the model commands have in common: options for the model, its weights, and the audit at the end.
#pragma once

#include "launcher/model/audit.h"
#include "launcher/model/model_options.h"
#include "launcher/model/session.h"
#include "layers/model/model.h"
#include "layers/theory/peaks.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace tsprun::launcher {

ModelOptions model_options(const Session& session, const ModelCommandOptions& options, bool training);
/// Collective: the folder's weights, or fresh ones. Throws Error(refused) if any isn't finite.
void fill_weights(Session& session, Model& model, const ModelCommandOptions& options);
/// Collective: the same of a store alone, from a folder or file.
void load_weights(Session& session, ParameterStore& store, const std::filesystem::path& from);
/// How the world's all_reduces go, for forecasts; good while the session lives.
AllReduceChoice all_reduce_choice(Session& session);
/// On rank 0: reports the audit, and prints it unless --quiet.
void say_audit(Session& session, std::span<const RankAudit> audits, Forecast forecast,
               const nlohmann::ordered_json& paper = nullptr);
/// What theory counts of a run.
theory::MeshSetting mesh_setting(Session& session, const ModelCommandOptions& options);
/// How this rank's memory peaks are forecast: of a phantom with the same peers.
theory::PeakOptions peak_options(Session& session, bool training);

/// The passes that decided a rank's memory, and how to have their tokens again: valid until the next call.
struct PassesOfRun {
  theory::DecisivePasses decisive;
  std::function<TokenBatch(std::uint64_t number)> tokens;

  /// The model has just made pass `number`.
  void note(std::uint64_t number, const TokenBatch& batch, const Model& model, Rank& rank) {
    decisive.note(number, batch.batch, batch.sequence, model.rows_given(), rank.context().heap().use().total);
  }
};

/// Collective: forecasts, reports and prints the audit, and writes the trace. `ids` [B, S]: those of the step whose traffic was
/// measured. `passes`: all of the run.
void finish_with_audit(Session& session, RankAudit mine, const ModelCommandOptions& options, std::span<const Token> ids,
                       bool training, const PassesOfRun& passes);
/// Collective: the same of a text, of which `ids` has all tokens and the first `prompt` were given. Stdout is the text's: the
/// audit goes to stderr, whole if it was asked for (`print`), else its first line alone.
void finish_with_text_audit(Session& session, RankAudit mine, const ModelCommandOptions& options, std::span<const Token> ids,
                            std::size_t prompt, bool print);

}  // namespace tsprun::launcher
