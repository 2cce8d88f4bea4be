// Maps offsets of the token stream to files, and draws the places of training sequences.
#include "layers/io/data.h"

#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "layers/io/npy.h"
#include "layers/io/philox.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace tsprun::detail {

namespace {

constexpr std::size_t kScratchBytes = std::size_t{256} << 10;
constexpr std::uint64_t kLookedAt = std::uint64_t{64} << 10;  // bytes at the beginning that tell the format

// Separate the random numbers of data from those of weights, which use the seed itself as key.
constexpr std::uint64_t kDataKey = 0x6461746120736571ULL;
constexpr std::uint64_t kEpochKey = 0x65706F6368207365ULL;

constexpr std::string_view kHowToWrite =
    "write ids as little-endian numbers of 32 bits, with numpy: ids.astype('<u4').tofile('tokens.u32')";

/// Endings of files that hold numbers, of which none is read.
constexpr std::array<std::string_view, 22> kOtherNumbers = {
    ".u16", ".u64", ".i16", ".i32", ".i64", ".uint16", ".uint32",  ".uint64",      ".int16", ".int32", ".int64",
    ".idx", ".npz", ".pt",  ".pth", ".pkl", ".arrow",  ".parquet", ".safetensors", ".h5",    ".mds",   ".tfrecord"};

/// First bytes of files in which ids stand behind a header.
struct Header {
  std::string_view bytes;
  std::string_view what;
};
constexpr std::array<Header, 4> kHeaders = {
    {{"\x93NUMPY", "numpy's save() wrote it, whose files are read if they are named .npy"},
     {"PK\x03\x04", "it is an archive, as torch.save() and numpy's savez() write"},
     {"\x88\xd8\x34\x01", "llm.c writes a header of 1024 bytes before the ids"},
     {"\xa1\xd9\x34\x01", "llm.c writes a header of 1024 bytes before 32-bit ids"}}};

std::string ending_of(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

/// Calls `function` with a number of the kind.
template <class Function>
auto with_kind(IdKind kind, const Function& function) {
  switch (kind) {
    case IdKind::u8: return function(std::uint8_t{});
    case IdKind::u16: return function(std::uint16_t{});
    case IdKind::u32: return function(std::uint32_t{});
    case IdKind::i32: return function(std::int32_t{});
    case IdKind::i64: break;
  }
  return function(std::int64_t{});
}

/// Returns the bytes of an id.
std::size_t width_of(IdKind kind) {
  return with_kind(kind, [](auto number) { return sizeof number; });
}

/// Returns number i of a file's bytes.
template <class Number>
Number number_at(const std::byte* bytes, std::size_t i) {
  static_assert(std::endian::native == std::endian::little, "files are little-endian and are read as they lie");
  Number number;
  std::memcpy(&number, bytes + i * sizeof number, sizeof number);
  return number;
}

template <class Number>
bool is_token(Number number) {
  return std::in_range<std::uint32_t>(number) && std::in_range<Token>(number);
}

/// Turns a file's bytes into tokens. Returns the index of the first that is none, or the number of tokens.
template <class Number>
std::size_t widen(const std::byte* bytes, std::span<Token> tokens) {
  constexpr bool kFits = sizeof(Number) < sizeof(Token);
  bool fits = true;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Number number = number_at<Number>(bytes, i);
    if constexpr (!kFits) fits &= is_token(number);
    tokens[i] = static_cast<Token>(number);
  }
  if (fits) return tokens.size();
  std::size_t i = 0;
  while (is_token(number_at<Number>(bytes, i))) ++i;
  return i;
}

/// Returns whether the first ids of a file, read as numbers of this kind, look like the halves of wider ones: every second is 0
/// (or all ones: a negative number) or, in a vocabulary above 65536, small beside the others.
template <class Number>
bool seem_wide(std::span<const std::byte> bytes) {
  constexpr std::size_t kFewest = 4;  // pairs; fewer may be so by chance
  constexpr std::size_t kMany = 64;   // enough to tell small numbers from upper halves
  constexpr Number kLargeLow = 1024;  // a lower half that no toy vocabulary has
  constexpr Number kSmallHigh = 16;
  Number low = 0;
  Number high = 0;
  const std::size_t pairs = bytes.size() / (2 * sizeof(Number));
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    low = std::max(low, number_at<Number>(bytes.data(), 2 * pair));
    const auto upper = number_at<Number>(bytes.data(), 2 * pair + 1);
    high = std::max(high, upper == std::numeric_limits<Number>::max() ? Number{0} : upper);
  }
  const bool split = sizeof(Number) == sizeof(std::uint16_t) && pairs >= kMany && low >= kLargeLow && high < kSmallHigh;
  // The id 0 may well be every second word of a short text, as GPT-2's and Llama 3's "!" is.
  const std::size_t fewest = sizeof(Number) == sizeof(std::uint16_t) ? kFewest : kMany;
  return (pairs >= fewest && low > 0 && high == 0) || split;
}

/// How the ids of one file lie in it.
struct Ids {
  IdKind kind = IdKind::u8;
  std::uint64_t begin = 0;  ///< byte of the first
  std::uint64_t count = 0;
};

Ids npy_ids(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t bytes) {
  constexpr std::array<std::pair<std::string_view, IdKind>, 4> kKinds = {
      {{"<u2", IdKind::u16}, {"<u4", IdKind::u32}, {"<i4", IdKind::i32}, {"<i8", IdKind::i64}}};
  const NpyArray array = read_npy(file, path);
  const auto* const kind = std::ranges::find(kKinds, std::string_view(array.type), &std::pair<std::string_view, IdKind>::first);
  if (kind == kKinds.end()) {
    throw Error(Cause::refused,
                fmt::format("{}: an array of type {}; ids of <u2, <u4, <i4 and <i8 are read: save ids.astype('<u4')",
                            path.string(), printable(array.type)));
  }
  const std::uint64_t behind = bytes - array.first;
  const std::size_t width = width_of(kind->second);
  if (behind % width != 0 || behind / width != array.count) {
    throw Error(Cause::refused, fmt::format("{}: its header says {} numbers of {} bytes, and {} bytes follow; it is damaged",
                                            path.string(), array.count, width, behind));
  }
  return {kind->second, array.first, array.count};
}

Ids ids_of(const posix::UniqueFd& file, const std::filesystem::path& path) {
  const std::uint64_t bytes = file::size(file, path);
  const std::string ending = ending_of(path);
  if (ending == ".npy") return npy_ids(file, path, bytes);
  const IdKind kind = ending == ".bin" ? IdKind::u16 : ending == ".u32" ? IdKind::u32 : IdKind::u8;
  const std::size_t width = width_of(kind);
  if (bytes % width != 0) {
    throw Error(Cause::refused, fmt::format("{}: {} bytes; expected a multiple of {}: a {} file holds {}-bit token ids",
                                            path.string(), bytes, width, ending, 8 * width));
  }
  return {kind, 0, bytes / width};
}

}  // namespace

TokenStream::TokenStream(const std::vector<std::filesystem::path>& files, std::uint64_t fewest, const IdsOfTexts& texts) {
  if (files.empty()) throw Error(Cause::refused, "--data: no files; expected text, .bin, .u32 or .npy files");
  for (const std::filesystem::path& path : files) {
    if (const auto text = texts.find(path); text != texts.end()) {
      parts_.push_back({.path = path,
                        .file = {},
                        .first = size_,
                        .count = text->second->size(),
                        .kind = IdKind::i32,
                        .begin = 0,
                        .made = text->second});
      size_ += text->second->size();
      continue;
    }
    posix::UniqueFd file = file::open_to_read(path);
    refuse_other_numbers(path);
    const Ids ids = ids_of(file, path);
    parts_.push_back({.path = path,
                      .file = std::move(file),
                      .first = size_,
                      .count = ids.count,
                      .kind = ids.kind,
                      .begin = ids.begin,
                      .made = {}});
    size_ += ids.count;
  }
  if (size_ < fewest) {
    const std::string names = files.size() == 1 ? files.front().string() : fmt::format("--data: {} files", files.size());
    throw Error(Cause::refused,
                size_ == 0 ? fmt::format("{}: empty; expected at least {}", names, fewest == 1 ? "one token" : "two tokens")
                           : fmt::format("{}: one token; expected at least two (an input and its label)", names));
  }
}

void TokenStream::check_vocabulary(std::size_t vocabulary) const {
  for (const Part& part : parts_) check_vocabulary(part, vocabulary);
}

void TokenStream::check_vocabulary(const Part& part, std::size_t vocabulary) {
  if (part.made) {
    const auto beyond = std::ranges::find_if(*part.made, [&](Token id) { return static_cast<std::size_t>(id) >= vocabulary; });
    if (beyond == part.made->end()) return;
    throw Error(Cause::refused,
                fmt::format("{}: token id {} at position {}; expected ids below the vocabulary's {}: the tokenizer has more "
                            "tokens than the model",
                            part.path.string(), *beyond, beyond - part.made->begin(), vocabulary));
  }
  const std::size_t width = width_of(part.kind);
  if (width <= sizeof(std::uint16_t)) {
    const std::size_t ids = std::size_t{1} << (8 * width);
    if (vocabulary > ids && ending_of(part.path) == ".bin") {
      throw Error(Cause::refused,
                  fmt::format("{}: a .bin file holds 16-bit ids, and the model's vocabulary has {}: those from {} on can't be in "
                              "it; {}",
                              part.path.string(), vocabulary, ids, kHowToWrite));
    }
    if (vocabulary >= ids) return;
  }
  std::vector<std::byte> scratch(kScratchBytes);
  const std::uint64_t bytes = part.count * width;
  for (std::uint64_t done = 0; done < bytes;) {
    const auto piece = std::span(scratch).first(static_cast<std::size_t>(std::min<std::uint64_t>(scratch.size(), bytes - done)));
    file::read(part.file, part.path, part.begin + done, piece);
    with_kind(part.kind, [&]<class Number>(Number) {
      for (std::size_t i = 0; i < piece.size() / sizeof(Number); ++i) {
        const auto id = number_at<Number>(piece.data(), i);
        if (std::cmp_less(id, vocabulary) && std::cmp_greater_equal(id, 0)) continue;
        const std::uint64_t byte = done + i * sizeof(Number);
        throw Error(Cause::refused,
                    fmt::format("{}: token id {} at position {} (byte {}); expected ids below the vocabulary's {}",
                                part.path.string(), id, byte / sizeof(Number), part.begin + byte, vocabulary));
      }
    });
    done += piece.size();
  }
}

void TokenStream::read(std::uint64_t first, std::span<Token> tokens) const {
  if (first > size_ || tokens.size() > size_ - first) {
    throw Error(Cause::refused, fmt::format("--data: tokens {} to {} of {}", first, first + tokens.size(), size_));
  }
  std::vector<std::byte> scratch(std::min(kScratchBytes, tokens.size() * sizeof(std::uint64_t)));
  // The last part that begins at or before `first`.
  auto part = std::prev(std::upper_bound(parts_.begin(), parts_.end(), first,
                                         [](std::uint64_t place, const Part& each) { return place < each.first; }));
  while (!tokens.empty()) {
    const std::uint64_t inside = first - part->first;
    const std::size_t width = width_of(part->kind);
    const auto count = static_cast<std::size_t>(std::min(
        {part->count - inside, static_cast<std::uint64_t>(tokens.size()), static_cast<std::uint64_t>(scratch.size() / width)}));
    if (count == 0) {
      ++part;
      continue;
    }
    if (part->made) {
      std::ranges::copy(std::span(*part->made).subspan(static_cast<std::size_t>(inside), count), tokens.begin());
      tokens = tokens.subspan(count);
      first += count;
      continue;
    }
    file::read(part->file, part->path, part->begin + inside * width, std::span(scratch).first(count * width));
    const std::size_t good =
        with_kind(part->kind, [&]<class Number>(Number) { return widen<Number>(scratch.data(), tokens.first(count)); });
    if (good < count) {
      throw Error(Cause::refused,
                  fmt::format("{}: the number at position {} is no token id", part->path.string(), inside + good));
    }
    tokens = tokens.subspan(count);
    first += count;
  }
}

bool names_ids(const std::filesystem::path& path) {
  const std::string ending = ending_of(path);
  return ending == ".bin" || ending == ".u32" || ending == ".npy";
}

bool names_other_numbers(const std::filesystem::path& path) {
  return std::ranges::find(kOtherNumbers, ending_of(path)) != kOtherNumbers.end();
}

void refuse_other_numbers(const std::filesystem::path& path) {
  if (names_other_numbers(path)) {
    throw Error(Cause::refused,
                fmt::format("{}: by its name it holds numbers, which would be read as text; {}", path.string(), kHowToWrite));
  }
  const std::string ending = ending_of(path);
  std::error_code none;
  if (const auto index = std::filesystem::path(path).replace_extension(".idx");
      ending == ".bin" && std::filesystem::exists(index, none)) {
    throw Error(Cause::refused, fmt::format("{}: {} beside it says that Megatron wrote both, and that index isn't read; {}",
                                            path.string(), index.string(), kHowToWrite));
  }
  if (ending == ".npy") return;
  const posix::UniqueFd file = file::open_to_read(path);
  std::vector<std::byte> first(
      static_cast<std::size_t>(std::min<std::uint64_t>(kLookedAt, file::size(file, path) & ~std::uint64_t{3})));
  file::read(file, path, 0, first);
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  for (const Header& header : kHeaders) {
    if (text.starts_with(header.bytes))
      throw Error(Cause::refused, fmt::format("{}: holds more than ids: {}; {}", path.string(), header.what, kHowToWrite));
  }
  if (ending == ".bin" && seem_wide<std::uint16_t>(first)) {
    throw Error(Cause::refused,
                fmt::format("{}: every second 16-bit number is 0 or small, as in a file of 32-bit or 64-bit ids, which .bin "
                            "doesn't mean; if they have 32 bits, name it .u32; or {}",
                            path.string(), kHowToWrite));
  }
  if (ending == ".u32" && seem_wide<std::uint32_t>(first)) {
    throw Error(Cause::refused,
                fmt::format("{}: every second 32-bit number is 0, as in a file of 64-bit ids; {}", path.string(), kHowToWrite));
  }
}

std::uint64_t window_count(std::uint64_t tokens, std::size_t sequence) { return (tokens - 1 + sequence - 1) / sequence; }

Window window(std::uint64_t tokens, std::size_t sequence, std::uint64_t index) {
  const std::uint64_t first = index * sequence;
  return {first, static_cast<std::size_t>(std::min<std::uint64_t>(sequence, tokens - 1 - first))};
}

std::uint64_t training_offset(std::uint64_t tokens, std::size_t sequence, std::uint64_t seed, std::uint64_t step,
                              std::uint64_t index) {
  const std::uint64_t places = tokens - sequence;
  const std::uint64_t bits = philox(seed ^ kDataKey, index, step)[0];
  // The high half of the product maps 64 random bits evenly onto [0, places).
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(bits) * places >> 64);
}

namespace {

/// Returns the image of `place` under a permutation of [0, count) that the key and the number of the epoch choose: a balanced
/// Feistel network over the next power of four, walked until it comes back into the range (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", 2002). It needs no memory, and any rank can ask for any place.
std::uint64_t permuted(std::uint64_t count, std::uint64_t place, std::uint64_t key, std::uint64_t epoch) {
  constexpr std::uint64_t kRounds = 6;
  const auto half = std::max<std::uint64_t>(1, (static_cast<std::uint64_t>(std::bit_width(count - 1)) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t left = place >> half;
      const std::uint64_t right = place & mask;
      place = right << half | (left ^ (philox(key, right, epoch * kRounds + round)[0] & mask));
    }
  } while (place >= count);
  return place;
}

}  // namespace

std::uint64_t epoch_offset(std::uint64_t tokens, std::size_t sequence, std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t windows = (tokens - 1) / sequence;
  return permuted(windows, index % windows, seed ^ kEpochKey, index / windows) * sequence;
}

void check_training_data(std::uint64_t tokens, std::size_t sequence) {
  if (tokens <= sequence) {
    throw Error(Cause::refused, fmt::format("--data: {} tokens; --seq {} needs at least {} (inputs and labels); try --seq {}",
                                            tokens, sequence, sequence + 1, tokens - 1));
  }
}

}  // namespace tsprun::detail
