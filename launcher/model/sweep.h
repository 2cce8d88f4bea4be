// Sweeps: a command that runs at every combination of several layouts, sequence lengths, batches and models.
#pragma once

#include "launcher/model/model_options.h"
#include "launcher/option_table.h"

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// The options of a sweep; each is empty if it isn't given.
struct SweepOptions {
  std::string layouts;
  std::string sequences;
  std::string batches;
  std::string configs;

  /// Adds the rows of the options. `of_layouts`: traits of --layouts.
  void declare_sweep(OptionTable& table, Trait of_layouts = Trait::none);
};

/// Combination of a sweep, as typed; a text is empty if neither the sweep nor the plain option gives it.
struct SweepPoint {
  std::string layout;
  std::string config;
  std::string sequence;
  std::string batch;
};

/// Splits "tsp=4; tp=2,sp=2" at the semicolons and strips blanks. Throws Error(refused) if a part is empty.
std::vector<std::string> split_layouts(const std::string& text);
/// Sets a point's values, whose layout isn't empty: its layout, and of --tp and --sp those that the layout has an axis for.
void take(const SweepPoint& at, GlobalOptions& global);
/// Sets a point's texts of the model's options.
void take(const SweepPoint& at, ModelCommandOptions& model);
/// Sets sequence and batch of a point that was refused, which then has a row with what was asked for.
void show_as_asked(const SweepPoint& at, ModelCommandOptions& model);
/// Returns every combination of the options' values, configs outermost, then batches, sequences and layouts. Where a sweep isn't
/// given the plain option of `model` counts, and no layout at all. Throws Error(refused) for texts that are no value under any
/// layout, for a sweep beside its plain option, for --tp and --sp if no layout has their axis, and for too many points.
std::vector<SweepPoint> sweep_points(const SweepOptions& options, const ModelCommandOptions& model, const GlobalOptions& global);

}  // namespace tsprun::detail::launcher
