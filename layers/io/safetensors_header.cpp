// Parses the JSON of a safetensors header and checks every field.
#include "layers/io/json_object.h"
#include "layers/io/safetensors.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tsprun::detail::safetensors {

namespace {

using nlohmann::json;

TensorInfo read_entry(const std::string& where, const std::string& name, const json& object, std::uint64_t data_begin,
                      std::uint64_t data_bytes) {
  JsonObject entry(object, fmt::format("{}: tensor \"{}\"", where, shown(name)));
  const auto refuse = [&](std::string_view field, const std::string& why) {
    throw Error(Cause::refused, fmt::format("{}: {}: {}", entry.where(), field, why));
  };
  const auto numbers = [&](std::string_view field) {
    const json* value = entry.find(field);
    const auto is_size = [](const json& each) { return each.is_number_unsigned(); };
    if (value == nullptr || !value->is_array() || !std::ranges::all_of(*value, is_size))
      entry.refuse(field, "an array of integers that aren't negative");
    return value->get<std::vector<std::uint64_t>>();
  };
  const json* dtype = entry.find("dtype");
  const auto type =
      dtype != nullptr && dtype->is_string() ? stored_type_from_name(dtype->get_ref<const std::string&>()) : std::nullopt;
  if (!type) entry.refuse("dtype", "F64, F32, F16, BF16 or an integer type");
  TensorInfo tensor{name, *type, {}, 0, 0};

  std::uint64_t expected = size_of(tensor.type);
  const std::vector<std::uint64_t> shape = numbers("shape");
  tensor.shape.assign(shape.begin(), shape.end());
  // A zero makes the tensor empty, but the other sizes must still be valid.
  bool overflow = false;
  bool empty = false;
  for (const std::uint64_t size : shape) {
    empty = empty || size == 0;
    overflow = __builtin_mul_overflow(expected, std::max<std::uint64_t>(size, 1), &expected) || overflow;
  }
  if (overflow) refuse("shape", fmt::format("{} has more bytes than 64 bits can count", describe(tensor.shape)));
  if (empty) expected = 0;

  const std::vector<std::uint64_t> offsets = numbers("data_offsets");
  if (offsets.size() != 2) refuse("data_offsets", fmt::format("expected [begin, end], found {} numbers", offsets.size()));
  const auto [begin, end] = std::pair(offsets[0], offsets[1]);
  if (begin > end || end > data_bytes) {
    refuse("data_offsets", fmt::format("[{}, {}]: expected begin ≤ end ≤ {}, the bytes of data in the file{}", begin, end,
                                       data_bytes, begin <= end ? " (is it cut off?)" : ""));
  }
  if (end - begin != expected) {
    refuse("data_offsets", fmt::format("[{}, {}] are {} bytes; expected {} for {} {}", begin, end, end - begin, expected,
                                       detail::name(tensor.type), describe(tensor.shape)));
  }
  tensor.offset = data_begin + begin;
  tensor.bytes = expected;
  return tensor;
}

/// Checks that the tensors cover the data from its first byte to its last, each byte once.
void check_cover(const std::vector<TensorInfo>& tensors, std::uint64_t data_begin, std::uint64_t file_bytes,
                 const std::string& where) {
  std::uint64_t covered = data_begin;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != covered) {
      throw Error(Cause::refused,
                  fmt::format("{}: tensor \"{}\": data_offsets: begins at {}, {}; expected {}", where, shown(tensor.name),
                              tensor.offset - data_begin, tensor.offset < covered ? "inside another tensor" : "after a hole",
                              covered - data_begin));
    }
    covered += tensor.bytes;
  }
  if (covered != file_bytes) {
    throw Error(Cause::refused, fmt::format("{}: the header describes {} bytes of data, the file holds {}", where,
                                            covered - data_begin, file_bytes - data_begin));
  }
}

}  // namespace

std::string describe(std::span<const std::size_t> shape) {
  constexpr std::size_t kMaxShown = 8;
  if (shape.size() > kMaxShown) return fmt::format("[{}, … {} dims]", fmt::join(shape.first(kMaxShown), ", "), shape.size());
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Header parse_header(std::string_view text, std::uint64_t file_bytes, const std::string& where) {
  const std::uint64_t data_begin = sizeof(std::uint64_t) + text.size();
  if (data_begin > file_bytes) {
    throw Error(Cause::refused, fmt::format("{}: header of {} bytes; the file has {}", where, text.size(), file_bytes));
  }
  const json object = parse_json(text, where);
  if (!object.is_object()) throw Error(Cause::refused, fmt::format("{}: header: expected a JSON object", where));

  Header header;
  for (const auto& [key, value] : object.items()) {
    if (key == "__metadata__") {
      for (const auto& [name, text_value] : value.items()) {
        if (!value.is_object() || !text_value.is_string()) {
          throw Error(Cause::refused, fmt::format("{}: __metadata__: expected an object of strings", where));
        }
        header.metadata.emplace(name, text_value.get<std::string>());
      }
      continue;
    }
    header.tensors.push_back(read_entry(where, key, value, data_begin, file_bytes - data_begin));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes != b.bytes ? a.bytes < b.bytes : a.name < b.name;
  });
  check_cover(header.tensors, data_begin, file_bytes, where);
  return header;
}

}  // namespace tsprun::detail::safetensors
