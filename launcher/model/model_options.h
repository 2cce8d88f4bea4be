// The options that all model commands share: which model, which data, how it is computed. Texts are parsed and checked here
// before a rank starts; every refusal names the option, its value and what works.
#pragma once

#include "launcher/inputs.h"
#include "launcher/model/progress.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "layers/io/config.h"
#include "layers/io/data.h"
#include "layers/layout/setting.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Largest number of tokens in a batch.
inline constexpr std::size_t kMostTokens = std::size_t{1} << 31;

/// Selection of the options that a command takes.
struct ModelOptionUse {
  bool model_folder = true;  ///< --model as well as --config
  bool data = true;          ///< --data, --batch, --seq
  bool files = true;         ///< --data; without it --batch and --seq remain
  bool seed = true;
  bool recompute = true;
  bool micro_batches = false;
  bool swept = false;        ///< --configs may stand for --config
  bool ranks = true;         ///< ranks will compute the model, so --layout must suit it
  bool only_trains = false;  ///< layouts with which nothing but training is possible are accepted
  bool audit = true;         ///< --audit; `ranks` must be true
  bool as_stored = false;    ///< without --dtype, bf16 weights of --model are computed in bf16
  bool documents = false;    ///< --documents: sequences aren't read, so it is said which documents they have
  bool beyond = false;       ///< nothing is predicted, so --seq may exceed the positions of a model that has rotary ones
};

/// The options, each with its default. Members without a description are described by their rows (declare()).
struct ModelCommandOptions {
  std::string config;
  std::string model;       ///< after validation the folder that holds the model, such as the newest checkpoint
  bool unchecked = false;  ///< --no-checksum
  std::vector<std::string> data;
  std::string eos;                 ///< the token behind each text of --data; empty: none
  bool eos_restored = false;       ///< it is a checkpoint's, not typed
  bool reset_attention = false;    ///< a document ends with each such token, and attention and positions with it
  Given<std::size_t> batch{1};     ///< B, sequences over all ranks
  Given<std::size_t> sequence{1};  ///< S, tokens per sequence
  std::string documents;           ///< lengths of those that each sequence packs; empty: it is one
  Given<DType> dtype{DType::f32};
  Given<Recompute> recompute{Recompute::none};
  Given<std::size_t> micro_batches{1};  ///< M, parts of a data rank's sequences in training
  Given<std::uint64_t> seed{0};
  Given<bool> strict_audit{false};  ///< --audit strict: a figure that isn't as forecast fails the job

  // Values derived during validation, not given on the command line.
  std::optional<ModelConfig> resumed;          ///< the checkpoint's model: --config may then be left out
  ModelConfig shape;                           ///< the model of --config or of the folder's config.json
  std::vector<std::filesystem::path> weights;  ///< files of --model, and the index that names them if there is one
  std::filesystem::path source;        ///< the folder, or else the config.json, that describes the model; empty: a built-in one
  std::vector<std::uint32_t> lengths;  ///< of the documents of --documents
  std::uint64_t tokens = 0;            ///< number of tokens in all files of --data
  bool whole_epochs = false;           ///< training reads each window once an epoch; else windows begin anywhere
  std::optional<Token> document_end;   ///< the token of --eos, if a document ends with each
  IdsOfTexts texts;                    ///< the ids of those of them that a tokenizer reads
  std::filesystem::path tokenizer;     ///< that tokenizer's file; empty: none is used

  /// Adds the rows of the options that a command takes.
  void declare(OptionTable& table, const ModelOptionUse& use = {});
  /// Returns the files of --data.
  std::vector<std::filesystem::path> files() const { return {data.begin(), data.end()}; }
  /// Opens the files of --data as one stream, after validate_data().
  TokenStream stream() const { return TokenStream(files(), 2, texts); }
  /// Returns these options as Setting, from which memory and traffic are calculated.
  Setting setting() const;
};

/// Options of `train`'s model.
inline constexpr ModelOptionUse kTrainUse{.micro_batches = true, .only_trains = true};

/// Purpose for which ranks hold the model, for the check of memory: inference needs parameters alone.
enum class ModelUse : std::uint8_t { training, inference };

/// Turns the texts into values and reads the files' descriptions: the configuration, the headers of weights. Throws
/// Error(refused). Prints a warning for each field or tensor that is ignored.
void validate_model(ModelCommandOptions& options, const GlobalOptions& global, const ModelOptionUse& use = {});
/// Opens the data, makes tokens of texts and counts all. `sequence_needed`: it must hold at least one training sequence. Throws
/// Error(refused), also for token ids outside the vocabulary.
void validate_data(ModelCommandOptions& options, bool sequence_needed);
/// Throws Error(refused) if --recompute or --micro-batches is given for a forward pass.
void check_training_options(const ModelCommandOptions& options, bool forward);
/// Throws Error(refused) if what a rank holds in any case (parameters and, in training, gradients, optimizer states and saved
/// activations) exceeds --mem-per-rank, or if all ranks together exceed the machine's memory. The message says by how much and
/// for what.
void validate_memory(const ModelCommandOptions& options, const GlobalOptions& global, ModelUse use);

/// Returns the files that ranks will read for these options: the data, the configuration, a folder's weights. Call after
/// validate_model() and validate_data(). Throws Error(refused).
Inputs model_inputs(const ModelCommandOptions& options);

/// Sets dtype, batch, seq and recompute in the report.
void report_model(Report& report, const ModelCommandOptions& options);
/// Returns how progress is shown: a bar on a terminal, lines elsewhere, nothing with --quiet.
ProgressLine::Style progress_style(const GlobalOptions& global);

/// Throws Error(refused) if `path` is a FIFO: the file is written in pieces by several processes.
void refuse_fifo(const std::string& option, const std::string& path);
/// Throws Error(refused) unless the file can be created or written; a FIFO can't. A file that this check creates is removed
/// again.
void check_writable(const std::string& option, const std::string& path);

}  // namespace tsprun::detail::launcher
