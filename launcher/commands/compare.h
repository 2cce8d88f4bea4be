// `tsprun compare`: the same model and data under several layouts, each a job of its own with fresh ranks; one table of memory,
// traffic, speed and exposed communication, as text, JSON and CSV.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::launcher {

struct CompareOptions {
  std::string layouts_text;
  std::string sequences_text;  ///< empty: --seq alone, and likewise the next two
  std::string batches_text;
  std::string configs_text;
  std::string steps_text = "3";
  std::string csv;  ///< file; empty: none
  bool forward_only = false;

  // Results of validation.
  std::uint64_t steps = 3;
};

/// One job: a layout at one setting, or why it can't be.
struct ComparePoint {
  GlobalOptions global;
  ModelCommandOptions model;
  std::string layout;  ///< as typed
  std::string why;     ///< the refusal of a model command; empty if it can be
};

/// "tsp=4; tp=2,sp=2" in parts without blanks around. Throws Error(refused) if one is empty.
std::vector<std::string> split_layouts(const std::string& text);
/// Every combination, configs outermost, layouts innermost. Texts that can't be read are refused at once; what one combination
/// can't do is noted with it.
std::vector<ComparePoint> compare_points(const CompareOptions& options, const ModelCommandOptions& model,
                                         const GlobalOptions& global);

/// The row of the report for a point: of the report of its job if it ran.
nlohmann::ordered_json compare_json(const ComparePoint& point, const nlohmann::ordered_json& job, bool forward_only);
/// The table's lines, and the same as CSV.
std::vector<std::string> compare_table(const nlohmann::ordered_json& rows);
std::string compare_csv(const nlohmann::ordered_json& rows);

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

}  // namespace tsprun::launcher
