// `tsprun compare`: the same model and data under several layouts, each in a job of its own with fresh ranks. The result is one
// table of memory, traffic, speed and exposed communication, as text, JSON and CSV.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"
#include "launcher/model/sweep.h"
#include "launcher/table.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// The options of `compare`, each with its default.
struct CompareOptions : SweepOptions {
  bool forward_only = false;
  Given<std::uint64_t> steps{3};
  std::string csv;                   ///< file to write; empty: none
  std::vector<std::string> reports;  ///< two files to be put beside each other instead of running jobs; empty: none

  /// Adds the rows of the options.
  void declare(OptionTable& table);
};

/// Job to run: a layout at one setting, or the reason why it can't be run.
struct ComparePoint {
  GlobalOptions global;
  ModelCommandOptions model;
  std::string layout;  ///< as typed
  std::string why;     ///< why a model command refuses it; empty: it can run
};

/// Returns every combination of the options' values, configs outermost, layouts innermost. Throws Error(refused) for texts that
/// can't be read. A combination that can't run becomes a point with the reason in `why`.
std::vector<ComparePoint> compare_points(const CompareOptions& options, const ModelCommandOptions& model,
                                         const GlobalOptions& global);

/// Returns the report's row for a point. `job`: the report of its job; null if it didn't run.
nlohmann::ordered_json compare_json(const ComparePoint& point, const nlohmann::ordered_json& job, bool forward_only);
/// Returns the rows as a table, for people and as CSV.
Table compare_table(const nlohmann::ordered_json& rows);

/// The command `compare`.
class CompareCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "compare",
            .help = "the same model and data under several layouts: one table; or two reports: what differs",
            .examples =
                {"tsprun compare --layouts 'tsp=2;tp=2' --config micro --seqs 256,512,1024 --data book.txt --csv measured.csv",
                 "tsprun compare monday.json tuesday.json"},
            .ranks = RankUse::jobs};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void validate_reports(const GlobalOptions& global) const;
  int run_reports(Report& report) const;

  CompareOptions options_;
  std::vector<const OptionRow*> rows_;  ///< of the command's own options
  ModelCommandOptions model_;
  std::vector<ComparePoint> points_;
};

}  // namespace tsprun::detail::launcher
