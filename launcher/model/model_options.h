// The options that all model commands share: which model, which data, how it is computed. Texts in, checked values out; every
// refusal names option, value and what works. What is refused here never starts a rank.
#pragma once

#include "launcher/inputs.h"
#include "launcher/model/progress.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "layers/model/config.h"
#include "layers/theory/setting.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// Which of the options a command takes.
struct ModelOptionUse {
  bool model_folder = true;  ///< --model beside --config
  bool data = true;          ///< --data, --batch, --seq
  bool files = true;         ///< --data among them
  bool seed = true;
  bool recompute = true;
  bool ranks = true;  ///< ranks will compute the model: --layout must be one that they can
};

/// Texts as typed stand beside the values that validate_model() makes of them.
struct ModelCommandOptions {
  std::string config;
  std::string model;       ///< after validation the folder that holds it: the newest checkpoint, where a folder of them was named
  bool unchecked = false;  ///< --no-checksum
  std::vector<std::string> data;
  // Empty: not typed. What a resumed run takes from its checkpoint then, others get by default.
  std::string dtype_text;
  std::string batch_text;
  std::string sequence_text;
  std::string seed_text;
  std::string recompute_text = "none";
  std::optional<ModelConfig> resumed;  ///< the checkpoint's model: --config may then be left out

  // Results of validation.
  ModelConfig shape;         ///< of --config or the folder's config.json
  DType dtype = DType::f32;  ///< f32, f64, bf16
  Recompute recompute = Recompute::none;
  std::size_t batch = 1;     ///< B, over all ranks
  std::size_t sequence = 1;  ///< S
  std::uint64_t seed = 0;
  std::vector<std::filesystem::path> files;  ///< --data
  std::uint64_t tokens = 0;                  ///< in all files

  /// What theory counts.
  theory::Setting setting() const;
};

/// What ranks will hold, for the check of memory.
enum class ModelUse : std::uint8_t { training, inference };

/// Declares them on a command.
void add_model_options(CLI::App& app, ModelCommandOptions& options, const ModelOptionUse& use = {});

/// Turns texts into values and looks at all files: config, headers of weights, data. Throws Error(refused). Prints a warning for
/// each field or tensor that is ignored.
void validate_model(ModelCommandOptions& options, const GlobalOptions& global, const ModelOptionUse& use = {});
/// Opens the data. `sequence_needed`: a training sequence must fit. Throws Error(refused).
void validate_data(ModelCommandOptions& options, bool sequence_needed);
/// Throws Error(refused) if what a rank holds for certain (parameters and, in training, gradients, optimizer states and saved
/// activations) exceeds --mem-per-rank, or all ranks' together the machine: by how much, for what.
void validate_memory(const ModelCommandOptions& options, const GlobalOptions& global, ModelUse use);

/// The files that ranks will read for these options: the data, the configuration, a folder's weights. After validate_model() and
/// validate_data(). Throws Error(refused).
Inputs model_inputs(const ModelCommandOptions& options);

/// dtype, batch, seq, recompute of the report.
void report_model(Report& report, const ModelCommandOptions& options);
/// A bar on a terminal, lines elsewhere, nothing with --quiet.
Progress::Style progress_style(const GlobalOptions& global);

/// Throws Error(refused) if a FIFO stands where a file shall be written.
void refuse_fifo(const std::string& option, const std::string& path);
/// Throws Error(refused) unless the file can be created or written (a FIFO can't). Leaves things as they were.
void check_writable(const std::string& option, const std::string& path);
struct NumberRange {
  double lowest;
  double highest;
  double usual;        ///< what a refusal proposes where an end itself doesn't work
  bool open = false;   ///< `lowest` itself doesn't work
  bool below = false;  ///< `highest` itself doesn't work
};
/// Throws Error(refused) naming the option, the value and the nearest that works.
double parse_number(const std::string& option, const std::string& text, const NumberRange& range);
DType parse_dtype(const std::string& text);

}  // namespace tsprun::launcher
