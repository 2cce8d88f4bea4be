// `tsprun compare`: the same model and data under several layouts, each in a job of its own with fresh ranks. The result is one
// table of memory, traffic, speed and exposed communication, as text, JSON and CSV.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Options of `compare`, as typed and as validated.
struct CompareOptions {
  std::string layouts_text;
  std::string sequences_text;  ///< --seqs; empty: --seq alone, and likewise for the next two
  std::string batches_text;
  std::string configs_text;
  std::string steps_text = "3";
  std::string csv;  ///< file to write; empty: none
  bool forward_only = false;

  // Results of validation.
  std::uint64_t steps = 3;
};

/// One job to run: a layout at one setting, or the reason why it can't be run.
struct ComparePoint {
  GlobalOptions global;
  ModelCommandOptions model;
  std::string layout;  ///< as typed
  std::string why;     ///< why a model command refuses it; empty: it can run
};

/// Splits "tsp=4; tp=2,sp=2" at the semicolons and strips blanks. Throws Error(refused) if a part is empty.
std::vector<std::string> split_layouts(const std::string& text);
/// Returns every combination of the options' values, configs outermost, layouts innermost. Throws Error(refused) for texts that
/// can't be read. A combination that can't run becomes a point with the reason in `why`.
std::vector<ComparePoint> compare_points(const CompareOptions& options, const ModelCommandOptions& model,
                                         const GlobalOptions& global);

/// Returns the report's row for a point. `job`: the report of its job; null if it didn't run.
nlohmann::ordered_json compare_json(const ComparePoint& point, const nlohmann::ordered_json& job, bool forward_only);
/// Returns the table's lines.
std::vector<std::string> compare_table(const nlohmann::ordered_json& rows);
/// Returns the same rows as CSV.
std::string compare_csv(const nlohmann::ordered_json& rows);

/// The command `compare`.
class CompareCommand final : public Command {
 public:
  std::string name() const override { return "compare"; }
  std::string help() const override { return "the same model and data under several layouts: one table"; }
  RankUse rank_use() const override { return RankUse::jobs; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  CompareOptions options_;
  ModelCommandOptions model_;
  std::vector<ComparePoint> points_;
};

}  // namespace tsprun::detail::launcher
