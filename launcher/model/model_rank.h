// Steps that the ranks of all model commands share: making the model, filling its weights, and the audit at the end.
#pragma once

#include "launcher/model/audit.h"
#include "launcher/model/model_options.h"
#include "launcher/model/session.h"
#include "layers/io/read_ahead.h"
#include "layers/model/model.h"
#include "layers/parameters/model_folder.h"
#include "layers/theory/peaks.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

namespace tsprun::detail::launcher {

/// Returns what Model's constructor needs to know of the options. `training`: the model also computes backward passes.
ModelOptions model_options(const ModelCommandOptions& options, bool training);

/// The weights of a run: those of --model's folder, or fresh ones.
class RunWeights {
 public:
  /// Starts reading ahead what this rank will hold of the folder: make it before the model, whose memory takes a while, too.
  /// `options` must outlive this object. Throws Error(refused).
  RunWeights(Session& session, const ModelCommandOptions& options);
  /// Fills the model, once. Collective. Throws Error(refused) if a loaded weight isn't finite.
  void fill(Model& model);

 private:
  Session& session_;
  const ModelCommandOptions& options_;
  std::optional<ModelFolder> folder_;
  std::optional<file::ReadAhead> ahead_;
};

/// Loads a parameter store from a folder or file of weights. Collective. Throws Error(refused) if a weight isn't finite.
void load_weights(Session& session, ParameterStore& store, const std::filesystem::path& from);
/// Ends a session with its audit: puts it into the report, prints it, unless --quiet, and writes the trace. Collective. `audits`:
/// those of all ranks, in order. Throws Error(refused) on rank 0 if `strict` and a figure isn't as forecast.
void finish_with(Session& session, std::span<const RankAudit> audits, bool strict, const nlohmann::ordered_json& paper = nullptr);
/// Returns the model and the layout of this run, from which theory calculates memory and traffic.
theory::MeshSetting mesh_setting(Session& session, const ModelCommandOptions& options);
/// Returns the options for forecasting what this rank holds and receives on a phantom with the same peers and algorithms.
theory::PeakOptions peak_options(Session& session, bool training);

/// The passes of a run that decided a rank's memory peaks. `tokens` makes the tokens of a pass again; its result is valid until
/// the next call.
struct PassesOfRun {
  /// Bit in the number of an evaluation between training steps.
  static constexpr std::uint64_t kEvaluation = std::uint64_t{1} << 63;

  theory::DecisivePasses decisive;
  std::function<TokenBatch(std::uint64_t number)> tokens;
  bool files = false;  ///< weights were read from files
  bool saved = false;  ///< a checkpoint was saved after the last pass

  /// Records that the model has just made pass `number`.
  void note(std::uint64_t number, const TokenBatch& batch, const Model& model, Rank& rank) {
    decisive.note(number, batch, model.rows_given(), rank.context().memory_use().total);
  }
};

/// Ends a run with its audit: forecasts this rank's counts, gathers all ranks' audits, reports and prints them on rank 0, and
/// writes the trace. Collective. `ids` [B, S]: tokens of the step whose traffic was measured. `passes`: all passes of the run.
void finish_with_audit(Session& session, RankAudit mine, const ModelCommandOptions& options, std::span<const Token> ids,
                       bool training, const PassesOfRun& passes);
/// Ends a generation with its audit, and writes the trace. Collective. `texts`: those of this rank's replica, with the tokens
/// that were put in. The audit goes to stderr, since stdout has the text: its verdict alone, or all of it if a mode is given,
/// "report" or "strict". Throws Error(refused) on rank 0 if it is "strict" and a figure isn't as forecast.
void finish_with_text_audit(Session& session, RankAudit mine, const ModelCommandOptions& options,
                            std::span<const DecodedText> texts, std::string_view mode);

}  // namespace tsprun::detail::launcher
