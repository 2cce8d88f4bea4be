// Reading of safetensors files. The format (github.com/huggingface/safetensors):
//
//   0 ┌──────────────┬───────────────────────────────────────────┬──────────────────────────────────────┐
//     │ N, u64 LE    │ N bytes of JSON: name → dtype, shape,      │ the tensors' bytes, back to back,    │
//     │              │ data_offsets [begin, end)                  │ no holes, to the end of the file     │
//     └──────────────┴───────────────────────────────────────────┴──────────────────────────────────────┘
//     0              8                                           8 + N
//
// Files aren't trusted: every length is compared with the file's size before it is used, and the tensors must cover the data
// exactly. Then any block of any tensor can be read into the caller's memory, in the caller's element type.
#pragma once

#include "layers/io/convert.h"
#include "layers/io/read_ahead.h"
#include "transport/posix.h"
#include "tsprun/types.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tsprun::detail::safetensors {

/// Largest N that the format allows.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// A tensor of a file. Seen as a matrix, its columns are the last dim and its rows all others: [B, S, h] has B·S rows, [h] has
/// one.
struct TensorInfo {
  std::string name;
  StoredType type;
  std::vector<std::size_t> shape;
  std::uint64_t offset;  ///< offset of its first byte from the start of the file
  std::uint64_t bytes;

  std::size_t elements() const { return static_cast<std::size_t>(bytes) / size_of(type); }
  std::size_t columns() const { return shape.empty() ? 1 : shape.back(); }
  std::size_t rows() const;
};

/// Returns a shape as text: "[2, 3]". Shows at most eight sizes.
std::string describe(std::span<const std::size_t> shape);

/// A rectangle of a tensor seen as a matrix.
struct Rectangle {
  std::size_t first_row;
  std::size_t rows;
  std::size_t first_column;
  std::size_t columns;
};
/// Returns all of a tensor as a block; the next two return some of its rows or some of its columns.
Rectangle whole(const TensorInfo& tensor);
/// Throws Error(refused) unless the block lies within the tensor and has `count` elements. `where` names the file in the message.
void check_block(const TensorInfo& tensor, const Rectangle& block, std::size_t count, const std::string& where);

/// Contents of the N bytes of JSON.
struct Header {
  std::vector<TensorInfo> tensors;              ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< __metadata__
};

/// Parses and checks the JSON of a file of `file_bytes` bytes in all. Throws Error(refused): `where`, tensor, field, what was
/// expected.
Header parse_header(std::string_view json, std::uint64_t file_bytes, const std::string& where);

/// An open file. Reads don't share a file position, so ranks and threads may share the object.
class File {
 public:
  /// Opens a file and reads its header. Throws Error(refused).
  explicit File(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const TensorInfo> tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Returns the tensor of that name; null if there is none.
  const TensorInfo* find(std::string_view name) const;
  /// Returns the tensor of that name. Throws Error(refused) if there is none, if its elements aren't F64, F32, F16 or BF16, or if
  /// its shape isn't `shape`.
  const TensorInfo& require(std::string_view name, std::span<const std::size_t> shape) const;

  /// Returns the bytes of a block's rows in the file, from its first element on, with what lies between rows as far as read()
  /// reads it; none if read() leaves it out. Pieces of a block have as many together as the block.
  file::Range range_of(const TensorInfo& tensor, const Rectangle& block) const;

  /// Reads a block, row by row, into contiguous memory of block.rows × block.columns elements and converts each element to
  /// into.dtype (f64, f32, bf16). Uses up to 1 MiB of scratch, or that of one row if it is longer. Throws Error(refused).
  void read(const TensorInfo& tensor, const Rectangle& block, Buffer into) const;
  void read(const TensorInfo& tensor, Buffer into) const { read(tensor, whole(tensor), into); }

 private:
  void read_with_gaps(const TensorInfo& tensor, const Rectangle& block, Buffer into) const;

  std::filesystem::path path_;
  posix::UniqueFd file_;
  Header header_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views of the names in header_
};

}  // namespace tsprun::detail::safetensors
