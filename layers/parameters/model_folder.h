// The weights of a Hugging Face model folder: model.safetensors, or shards named by model.safetensors.index.json. Opening reads
// only the headers; each rank then reads the slices that it owns. Tensors are found under the names that the model has, whichever
// class of transformers wrote them (with or without "transformer." or "model." in front) and whatever wrapped it ("module.",
// "_orig_mod.").
#pragma once

#include "layers/io/safetensors.h"
#include "layers/parameters/parameters.h"

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// An open model folder.
class ModelFolder {
 public:
  /// Opens a folder, or one safetensors file. Throws Error(refused): no weights there, a shard that is missing or lacks a tensor
  /// that the index expects there, a malformed header.
  explicit ModelFolder(const std::filesystem::path& folder_or_file);

  /// Checks that every parameter is present, in its shape and with a readable element type, and that no other tensor would change
  /// the computation (biases; a head that isn't the embedding that a tied model has instead: both are read). Throws
  /// Error(refused). Returns a line that names tensors that are ignored, the first of them if they are many; empty: there are
  /// none. `sees_images`: tensors by which multi-modal models see images may be there. The caller prints it once.
  std::string check(std::span<const Parameter> parameters, bool sees_images = false) const;

  /// Reads a block of a tensor into contiguous memory, converted to into.dtype. Throws Error(refused).
  void read(std::string_view name, const safetensors::Rectangle& block, Buffer into) const;

  /// Returns which bytes of which file read() takes from the disk, as far as they lie side by side. Throws Error(refused).
  file::Range range_of(std::string_view name, const safetensors::Rectangle& block) const;

  /// Returns the tensor of that name; null if there is none.
  const safetensors::TensorInfo* find(std::string_view name) const;
  /// Returns the path of the file that holds the tensor. Throws Error(refused) if none does.
  const std::filesystem::path& path_of(std::string_view name) const { return file_of(place_of(name)).path(); }

  /// Returns the files that hold the tensors, and the index that names them if there is one.
  std::vector<std::filesystem::path> paths() const;

 private:
  struct Place {
    std::size_t file;    // index in files_
    std::string stored;  // the tensor's name in that file
  };
  void use_names_of_the_model();
  void check_tied(std::span<const Parameter> parameters) const;
  bool hold_the_same(std::string_view one, std::string_view other) const;
  const Place& place_of(std::string_view name) const;
  const safetensors::File& file_of(const Place& place) const { return files_[place.file]; }

  std::filesystem::path path_;
  std::filesystem::path index_;  // empty if there is none
  std::vector<safetensors::File> files_;
  std::map<std::string, Place, std::less<>> where_;  // by the tensor's name in the model
};

}  // namespace tsprun::detail
