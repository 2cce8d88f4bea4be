// The weights of a Hugging Face model folder: model.safetensors, or shards named by model.safetensors.index.json. Opening reads
// the headers alone; each rank then reads the slices that it owns. Tensors of GPT-2 may bear the prefix "transformer.", as newer
// programs write them: they are found without it.
#pragma once

#include "layers/model/parameters.h"
#include "layers/model/safetensors.h"

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun {

class Weights {
 public:
  /// A folder, or one safetensors file. Throws Error(refused): no weights there, a shard that is missing or doesn't hold what the
  /// index says, a header that lies.
  explicit Weights(const std::filesystem::path& folder_or_file);

  /// Checks that every parameter is there, as numbers, in its shape, and that nothing else is that would change the computation
  /// (biases). Throws Error(refused). Returns a line for each tensor that is ignored; the caller prints them once.
  std::vector<std::string> check(std::span<const Parameter> parameters) const;

  /// Reads a block of a tensor into contiguous memory, converted to into.dtype. Throws Error(refused).
  void read(std::string_view name, const safetensors::Block& block, Buffer into) const;
  /// All of a tensor.
  void read(std::string_view name, Buffer into) const;

  const safetensors::TensorInfo* find(std::string_view name) const;
  /// Of the file that holds the tensor. Throws Error(refused) if none does.
  const std::filesystem::path& path_of(std::string_view name) const { return file_of(place_of(name)).path(); }

  /// The files that hold the tensors, and the index that names them, if there is one.
  std::vector<std::filesystem::path> paths() const;

 private:
  struct Place {
    std::size_t file;    // index in files_
    std::string stored;  // the tensor's name there
  };
  void drop_prefix();
  const Place& place_of(std::string_view name) const;
  const safetensors::File& file_of(const Place& place) const { return files_[place.file]; }

  std::filesystem::path path_;
  std::filesystem::path index_;  // empty: there is none
  std::vector<safetensors::File> files_;
  std::map<std::string, Place, std::less<>> where_;  // by the name that a model gives the tensor
};

}  // namespace tsprun
