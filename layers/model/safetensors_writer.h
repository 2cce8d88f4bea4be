// safetensors files, writing, by any number of processes together: all make the same plan, one creates the file at its exact
// size, each writes its blocks where the plan says, and after they have met one of them publishes it.
//
//   process 0: create ── meet ── write … ── meet ── publish (fsync, rename)
//   others:              meet ── join, write … ── meet
//
// Until publish() the bytes lie in `path` + ".partial", so a reader sees the old file or the new one, whole.
#pragma once

#include "layers/model/safetensors.h"

#include <map>
#include <string>
#include <vector>

namespace tsprun::safetensors {

struct PlannedTensor {
  std::string name;
  DType dtype;  ///< f64, f32, bf16
  std::vector<std::size_t> shape;
};

/// Where every byte of a file will lie: a function of the tensors alone, so that all processes agree without talking.
class Plan {
 public:
  /// `format: pt` is what Hugging Face's loaders ask for. Throws Error(refused) for a name that comes twice or sizes that
  /// overflow.
  explicit Plan(const std::vector<PlannedTensor>& tensors,
                const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  std::uint64_t file_bytes() const { return file_bytes_; }
  /// The length word and the JSON, padded so that the data begins at a multiple of 8.
  const std::string& head() const { return head_; }
  const TensorInfo* find(std::string_view name) const;

 private:
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  std::string head_;
  std::uint64_t file_bytes_ = 0;
};

/// One process's handle on a file that is being written. The plan must outlive it.
class Writer {
 public:
  /// Makes the file at its full size and writes the header. Throws Error(refused), a full disk included.
  static Writer create(std::filesystem::path path, const Plan& plan);
  /// Opens what another process created. Throws Error(refused).
  static Writer join(std::filesystem::path path, const Plan& plan);
  Writer(Writer&&) noexcept = default;
  Writer& operator=(Writer&&) = delete;
  /// The creator takes an unpublished file away again.
  ~Writer();

  /// Writes a block of a tensor from contiguous memory, converted to the planned type. Uses up to 256 KiB of scratch.
  void write(std::string_view name, const Block& block, ConstBuffer from);
  /// The whole tensor.
  void write(std::string_view name, ConstBuffer from);
  /// fsync. Needed by a process that writes on another machine; publish() syncs what was written on its own.
  void sync();
  /// Gives the file its name. Precondition: every process has written its part.
  void publish();

 private:
  Writer(std::filesystem::path path, const Plan& plan, posix::UniqueFd file, bool creator);
  const TensorInfo& planned(std::string_view name) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  const Plan* plan_;
  posix::UniqueFd file_;
  bool creator_;
  bool published_ = false;
};

}  // namespace tsprun::safetensors
