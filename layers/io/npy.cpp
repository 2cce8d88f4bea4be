// Reads the dictionary as numpy writes it: its three keys in any order, and nothing else that Python could say.
#include "layers/io/npy.h"

#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "transport/cause.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tsprun::detail {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kLargestHeader = std::uint64_t{64} << 10;

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view why) {
  throw Error(Cause::refused, fmt::format("{}: {}", path.string(), why));
}

std::string read_bytes(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t at, std::uint64_t bytes) {
  if (at + bytes > file::size(file, path)) refuse(path, "ends within numpy's header");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file::read(file, path, at, std::as_writable_bytes(std::span(text)));
  return text;
}

/// Returns what stands behind a key, up to `end`, without spaces before it.
std::optional<std::string_view> value_of(std::string_view dictionary, std::string_view key, char begin, char end) {
  const std::string quoted = fmt::format("'{}':", key);
  std::size_t at = dictionary.find(quoted);
  if (at == std::string_view::npos) return {};
  at = dictionary.find_first_not_of(' ', at + quoted.size());
  if (at == std::string_view::npos || dictionary[at] != begin) return {};
  const std::size_t last = dictionary.find(end, at + 1);
  if (last == std::string_view::npos) return {};
  return dictionary.substr(at + 1, last - at - 1);
}

}  // namespace

NpyArray read_npy(const posix::UniqueFd& file, const std::filesystem::path& path) {
  constexpr std::uint64_t kVersionEnd = 8;
  const std::string start = read_bytes(file, path, 0, std::min(kVersionEnd, file::size(file, path)));
  if (!start.starts_with(kMagic) || start.size() < kVersionEnd) refuse(path, "expected numpy's save() to have written it");
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3) refuse(path, fmt::format("version {} of numpy's format; 1 to 3 are read", version));
  const std::uint64_t width = version == 1 ? 2 : 4;
  std::uint64_t length = 0;
  const std::string counted = read_bytes(file, path, kVersionEnd, width);
  for (std::size_t i = 0; i < counted.size(); ++i) length |= std::uint64_t{static_cast<unsigned char>(counted[i])} << (8 * i);
  if (length > kLargestHeader)
    refuse(path, fmt::format("numpy's header has {} bytes; at most {} are read", length, kLargestHeader));
  const std::string dictionary = read_bytes(file, path, kVersionEnd + width, length);

  NpyArray array{.type = {}, .first = kVersionEnd + width + length};
  const std::optional<std::string_view> type = value_of(dictionary, "descr", '\'', '\'');
  if (!type) refuse(path, "numpy's header names no type of plain numbers ('descr')");
  array.type = *type;
  std::optional<std::string_view> shape = value_of(dictionary, "shape", '(', ')');
  if (!shape) refuse(path, "numpy's header has no shape");
  std::string numbers(*shape);
  std::erase(numbers, ' ');
  if (!numbers.ends_with(',') || std::ranges::count(numbers, ',') != 1)
    refuse(path, fmt::format("an array of shape ({}); expected one dimension, as ids.reshape(-1) has", printable(*shape)));
  numbers.pop_back();
  const std::optional<std::uint64_t> count = number_from<std::uint64_t>(numbers);
  if (!count) refuse(path, fmt::format("numpy's header has the shape ({})", printable(*shape)));
  array.count = *count;
  return array;
}

}  // namespace tsprun::detail
