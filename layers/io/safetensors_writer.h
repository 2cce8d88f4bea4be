// Writing of safetensors files by any number of processes together: all make the same plan, one creates the file at its exact
// size, each writes its blocks where the plan says, and after a barrier the creator publishes the file.
//
//   process 0: create ── meet ── write … ── meet ── publish (fsync, rename)
//   others:              meet ── join, write … ── meet
//
// Until publish() the bytes are in `path` + ".partial", or in a file without a name, so a reader sees either the old file or the
// whole new one.
#pragma once

#include "layers/io/safetensors.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::safetensors {

/// A tensor to be written.
struct PlannedTensor {
  std::string name;
  DType dtype;  ///< f64, f32, bf16
  std::vector<std::size_t> shape;
};

/// The place of every byte of a file. It depends on the tensors alone, so that all processes agree without communication.
class Plan {
 public:
  /// Plans a file with these tensors. The metadata `format: pt` is what Hugging Face's loaders expect. Throws Error(refused) for
  /// a duplicate name or sizes that overflow.
  explicit Plan(const std::vector<PlannedTensor>& tensors,
                const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  std::uint64_t file_bytes() const { return file_bytes_; }
  /// Returns the length word and the JSON, padded so that the data begins at a multiple of 8.
  const std::string& head() const { return head_; }
  /// Returns the tensor of that name; null if it isn't planned.
  const TensorInfo* find(std::string_view name) const;

 private:
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  std::string head_;
  std::uint64_t file_bytes_ = 0;
};

/// Deletes the unfinished file of `path` that a killed process has left. Returns false if a process still writes it, after a
/// second.
bool discard_unfinished(const std::filesystem::path& path);

/// Opens a file without a name in the folder of `path`, for processes that inherit the descriptor: it is gone with the last of
/// them, however they end, unless Writer::publish() has given it the name. Empty where there are no such files.
posix::UniqueFd unnamed_file(const std::filesystem::path& path);

/// One process's handle on a file that is being written. The plan is borrowed and must outlive it.
class Writer {
 public:
  /// Creates the file at its full size, locked against other creators, and writes the header. Calls `tick` every 16 MiB, for
  /// where the space is reserved by writing. `unnamed`: the file of unnamed_file(), which needs no lock; empty: the file gets the
  /// name `path` + ".partial". Throws Error(refused), also if the disk is full or another process writes the file.
  static Writer create(std::filesystem::path path, const Plan& plan, const std::function<void()>& tick = {},
                       posix::UniqueFd unnamed = {});
  /// Opens the file that another process created; `unnamed`: this process's descriptor of it. Throws Error(refused).
  static Writer join(std::filesystem::path path, const Plan& plan, posix::UniqueFd unnamed = {});
  Writer(Writer&&) noexcept = default;
  Writer& operator=(Writer&&) = delete;
  /// Deletes the file if this is the creator and the file wasn't published.
  ~Writer();

  /// Writes a block of a tensor from contiguous memory, converted to the planned type. Uses up to 256 KiB of scratch. Throws
  /// Error(refused).
  void write(std::string_view name, const Rectangle& block, ConstBuffer from);
  /// Writes a whole tensor.
  void write(std::string_view name, ConstBuffer from);
  /// Syncs the file (fsync). Necessary in processes on other machines; publish() syncs what was written on its own.
  void sync();
  /// Syncs the file and gives it its name. Precondition: every process has written its part.
  void publish();

 private:
  enum class Named : bool { no, yes };
  Writer(std::filesystem::path path, const Plan& plan, posix::UniqueFd file, bool creator, Named named);
  void give_name();
  const TensorInfo& planned(std::string_view name) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;  // the file's name until it is published; `path_` if it has none
  const Plan* plan_;
  posix::UniqueFd file_;
  bool creator_;
  Named named_;
  bool published_ = false;
};

}  // namespace tsprun::detail::safetensors
