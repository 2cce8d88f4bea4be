// What a checkpoint takes over from the model folder that its run began with: the fields of config.json that aren't tsprun's, and
// the files beside the weights, such as tokenizer.json and generation_config.json. So a checkpoint is as complete a folder as the
// one that the training began with.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// A file that checkpoints carry along, unchanged.
struct CarriedFile {
  std::string name;
  std::string bytes;
};

/// Contents of a model folder besides the weights. Held in memory, because the folder may be deleted while the run goes on.
struct ModelSource {
  std::string config;                 ///< text of config.json; empty: the model came from no file
  std::vector<CarriedFile> files;     ///< in the order of their names
  std::vector<std::string> warnings;  ///< a line for each file that should be carried along and can't be
};

/// Returns whether a file of this name may be carried: a plain name in UTF-8, without control characters, of at most 200 bytes,
/// that no file of a checkpoint has.
bool may_be_carried(std::string_view name);

/// Reads what checkpoints take over. `from`: a model folder, another checkpoint, or a config.json alone, which has fields but no
/// files. Leaves out subfolders, hidden files, weights in any format, and the states of optimizers: training makes them untrue.
/// Throws Error(refused) if config.json or the folder can't be read.
ModelSource read_model_source(const std::filesystem::path& from);

}  // namespace tsprun::detail
