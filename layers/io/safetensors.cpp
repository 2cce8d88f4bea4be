// Opens safetensors files, and reads blocks of their tensors with conversion.
#include "layers/io/safetensors.h"

#include "core/tensor/tensor.h"
#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "layers/io/safetensors_pieces.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::safetensors {

namespace {

constexpr std::size_t kScratchBytes = std::size_t{1} << 20;
/// Bytes between two rows of a block that are read along with them: copying so many from the page cache takes about as long as
/// one more call.
constexpr std::size_t kGapBytes = std::size_t{16} << 10;

/// Reads the length word and returns the JSON after it.
std::string read_json(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t file_bytes) {
  std::uint64_t json_bytes = 0;
  if (file_bytes < sizeof(json_bytes)) {
    throw Error(Cause::refused,
                fmt::format("{}: {} bytes; a safetensors file has at least {}", path.string(), file_bytes, sizeof(json_bytes)));
  }
  file::read(file, path, 0, std::as_writable_bytes(std::span(&json_bytes, 1)));
  const std::uint64_t largest = std::min(kMaxHeaderBytes, file_bytes - sizeof(json_bytes));
  if (json_bytes > largest) {
    throw Error(Cause::refused,
                fmt::format("{}: header length: {} bytes; expected at most {} ({})", path.string(), json_bytes, largest,
                            largest == kMaxHeaderBytes ? "the format's limit" : "what the file holds behind it"));
  }
  std::string text(json_bytes, '\0');
  file::read(file, path, sizeof(json_bytes), std::as_writable_bytes(std::span(text)));
  if (!text.starts_with('{')) {
    throw Error(Cause::refused,
                fmt::format("{}: header: expected it to begin with '{{' (is this a safetensors file?)", path.string()));
  }
  return text;
}

}  // namespace

std::size_t TensorInfo::rows() const {
  std::size_t product = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

Rectangle whole(const TensorInfo& tensor) { return {0, tensor.rows(), 0, tensor.columns()}; }

void check_block(const TensorInfo& tensor, const Rectangle& block, std::size_t count, const std::string& where) {
  const std::size_t rows = tensor.rows();
  const std::size_t columns = tensor.columns();
  if (block.first_row > rows || block.rows > rows - block.first_row || block.first_column > columns ||
      block.columns > columns - block.first_column) {
    throw Error(Cause::refused,
                fmt::format("{}: tensor \"{}\" {}: {} rows from {} and {} columns from {} don't lie in its {} × {}", where,
                            shown(tensor.name), describe(tensor.shape), block.rows, block.first_row, block.columns,
                            block.first_column, rows, columns));
  }
  if (count != block.rows * block.columns) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\": a block of {} × {} elements for memory of {}", where,
                                            shown(tensor.name), block.rows, block.columns, count));
  }
}

File::File(std::filesystem::path path) : path_(std::move(path)), file_(file::open_to_read(path_)) {
  const std::uint64_t bytes = file::size(file_, path_);
  header_ = parse_header(read_json(file_, path_, bytes), bytes, path_.string());
  by_name_.reserve(header_.tensors.size());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

const TensorInfo* File::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &header_.tensors[at->second];
}

const TensorInfo& File::require(std::string_view name, std::span<const std::size_t> shape) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\" is missing; expected {}", path_.string(), name, describe(shape)));
  }
  if (!is_readable(tensor->type)) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\": dtype: expected F64, F32, F16 or BF16, found {}", path_.string(),
                                            name, detail::name(tensor->type)));
  }
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\": shape: expected {}, found {}", path_.string(), name,
                                            describe(shape), describe(tensor->shape)));
  }
  return *tensor;
}

file::Range File::range_of(const TensorInfo& tensor, const Rectangle& block) const {
  const std::size_t element = size_of(tensor.type);
  const bool is_read = block.columns > 0 && (tensor.columns() - block.columns) * element <= kGapBytes;
  return {.path = path_,
          .offset = tensor.offset + (block.first_row * tensor.columns() + block.first_column) * element,
          .bytes = is_read ? block.rows * tensor.columns() * element : 0};
}

/// Reads a block that isn't all columns of its rows: several rows at a time, with the gaps between them, from which the block's
/// columns are cut out.
void File::read_with_gaps(const TensorInfo& tensor, const Rectangle& block, Buffer into) const {
  const std::size_t element = size_of(tensor.type);
  const std::size_t row_bytes = tensor.columns() * element;
  const std::size_t most = std::min(std::max<std::size_t>(1, kScratchBytes / row_bytes), block.rows);
  std::vector<std::byte> scratch((most - 1) * row_bytes + block.columns * element);
  for (std::size_t row = 0; row < block.rows; row += most) {
    const std::size_t rows = std::min(most, block.rows - row);
    const std::uint64_t first = (block.first_row + row) * tensor.columns() + block.first_column;
    file::read(file_, path_, tensor.offset + first * element,
               std::span(scratch).first((rows - 1) * row_bytes + block.columns * element));
    for (std::size_t r = 0; r < rows; ++r) {
      convert_from_stored(tensor.type, scratch.data() + r * row_bytes, into.dtype,
                          into.slice((row + r) * block.columns, block.columns).data, block.columns);
    }
  }
}

void File::read(const TensorInfo& tensor, const Rectangle& block, Buffer into) const {
  check_block(tensor, block, into.count, path_.string());
  if (!is_readable(tensor.type) || !computes(into.dtype)) {
    throw Error(Cause::refused, fmt::format("{}: tensor \"{}\": {} can't be read as {}", path_.string(), shown(tensor.name),
                                            detail::name(tensor.type), tsprun::name(into.dtype)));
  }
  if (into.count == 0) return;

  const std::size_t gap = (tensor.columns() - block.columns) * size_of(tensor.type);
  if (gap > 0 && gap <= kGapBytes) return read_with_gaps(tensor, block, into);
  if (tensor.type == stored_type_of(into.dtype)) {
    for_pieces(tensor, block, into.count, [&](std::uint64_t offset, std::size_t first, std::size_t count) {
      file::read(file_, path_, offset, into.slice(first, count).as_bytes());
    });
    return;
  }
  std::vector<std::byte> scratch(std::min(into.count * size_of(tensor.type), kScratchBytes));
  const std::size_t most = scratch.size() / size_of(tensor.type);
  for_pieces(tensor, block, most, [&](std::uint64_t offset, std::size_t first, std::size_t count) {
    file::read(file_, path_, offset, std::span(scratch).first(count * size_of(tensor.type)));
    convert_from_stored(tensor.type, scratch.data(), into.dtype, into.slice(first, count).data, count);
  });
}

}  // namespace tsprun::detail::safetensors
