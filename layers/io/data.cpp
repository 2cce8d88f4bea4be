// Maps offsets of the token stream to files, and draws the places of training sequences.
#include "layers/io/data.h"

#include "layers/io/file.h"
#include "layers/io/philox.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <string>
#include <string_view>

namespace tsprun::detail {

namespace {

constexpr std::size_t kScratchBytes = std::size_t{256} << 10;
constexpr std::uint64_t kLookedAt = std::uint64_t{64} << 10;  // bytes at the beginning that tell the format

// Separates the random numbers of data from those of weights, which use the seed itself as key.
constexpr std::uint64_t kDataKey = 0x6461746120736571ULL;

constexpr std::string_view kHowToWrite =
    "write ids below 65536 as little-endian uint16, with numpy: ids.astype('<u2').tofile('tokens.bin')";

/// Endings of files that hold numbers, of which none is read.
constexpr std::array<std::string_view, 24> kOtherNumbers = {
    ".u16", ".u32", ".u64", ".i16", ".i32", ".i64", ".uint16", ".uint32",  ".uint64",      ".int16", ".int32", ".int64",
    ".idx", ".npy", ".npz", ".pt",  ".pth", ".pkl", ".arrow",  ".parquet", ".safetensors", ".h5",    ".mds",   ".tfrecord"};

/// First bytes of files in which ids stand behind a header.
struct Header {
  std::string_view bytes;
  std::string_view what;
};
constexpr std::array<Header, 4> kHeaders = {{{"\x93NUMPY", "numpy's save() writes a header before the numbers"},
                                             {"PK\x03\x04", "it is an archive, as torch.save() and numpy's savez() write"},
                                             {"\x88\xd8\x34\x01", "llm.c writes a header of 1024 bytes before the ids"},
                                             {"\xa1\xd9\x34\x01", "llm.c writes a header of 1024 bytes before 32-bit ids"}}};

bool holds_ids(const std::filesystem::path& path) { return path.extension() == ".bin"; }

/// Returns whether the first ids of a .bin file, read as 16-bit numbers, look like the halves of wider ones: every second is 0
/// (or all ones: a negative number) or, in a vocabulary above 65536, small beside the others.
bool seem_wide(std::span<const std::byte> bytes) {
  constexpr std::size_t kFewest = 4;    // pairs; fewer may be so by chance
  constexpr std::size_t kMany = 64;     // enough to tell small numbers from upper halves
  constexpr unsigned kLargeLow = 1024;  // a lower half that no toy vocabulary has
  constexpr unsigned kSmallHigh = 16;
  unsigned low = 0;
  unsigned high = 0;
  const std::size_t pairs = bytes.size() / 4;
  const auto word = [&](std::size_t i) {
    return std::to_integer<unsigned>(bytes[2 * i]) | std::to_integer<unsigned>(bytes[2 * i + 1]) << 8U;
  };
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    low = std::max(low, word(2 * pair));
    const unsigned upper = word(2 * pair + 1);
    high = std::max(high, upper == 0xffffU ? 0 : upper);
  }
  return (pairs >= kFewest && low > 0 && high == 0) || (pairs >= kMany && low >= kLargeLow && high < kSmallHigh);
}

Token token_at(const std::byte* bytes, std::size_t width) {
  const int low = std::to_integer<int>(bytes[0]);
  return width == 1 ? low : low | std::to_integer<int>(bytes[1]) << 8;
}

}  // namespace

TokenStream::TokenStream(const std::vector<std::filesystem::path>& files, std::uint64_t fewest) {
  if (files.empty()) throw Error(Cause::refused, "--data: no files; expected text or .bin files");
  for (const std::filesystem::path& path : files) {
    posix::UniqueFd file = file::open_to_read(path);
    const std::uint64_t bytes = file::size(file, path);
    refuse_other_numbers(path);
    const std::size_t width = holds_ids(path) ? sizeof(std::uint16_t) : 1;
    if (bytes % width != 0) {
      throw Error(Cause::refused,
                  fmt::format("{}: {} bytes; expected an even number: a .bin file holds 16-bit token ids", path.string(), bytes));
    }
    parts_.push_back({path, std::move(file), size_, bytes / width, width});
    size_ += bytes / width;
  }
  if (size_ < fewest) {
    const std::string names = files.size() == 1 ? files.front().string() : fmt::format("--data: {} files", files.size());
    throw Error(Cause::refused,
                size_ == 0 ? fmt::format("{}: empty; expected at least {}", names, fewest == 1 ? "one token" : "two tokens")
                           : fmt::format("{}: one token; expected at least two (an input and its label)", names));
  }
}

void TokenStream::check_vocabulary(std::size_t vocabulary) const {
  std::vector<std::byte> scratch(kScratchBytes);
  for (const Part& part : parts_) {
    const std::size_t ids = std::size_t{1} << (8 * part.width);
    if (part.width > 1 && vocabulary > ids) {
      throw Error(Cause::refused,
                  fmt::format("{}: a .bin file holds 16-bit ids, and the model's vocabulary has {}: those from {} on can't be in "
                              "it. Wider ids aren't read yet; a model with a vocabulary of at most {} works",
                              part.path.string(), vocabulary, ids, ids));
    }
    if (vocabulary >= ids) continue;
    const std::uint64_t bytes = part.count * part.width;
    for (std::uint64_t done = 0; done < bytes;) {
      const auto piece =
          std::span(scratch).first(static_cast<std::size_t>(std::min<std::uint64_t>(scratch.size(), bytes - done)));
      file::read(part.file, part.path, done, piece);
      for (std::size_t at = 0; at < piece.size(); at += part.width) {
        const Token token = token_at(piece.data() + at, part.width);
        if (static_cast<std::size_t>(token) >= vocabulary) {
          throw Error(Cause::refused, fmt::format("{}: token id {} at byte {}; expected ids below the vocabulary's {}",
                                                  part.path.string(), token, done + at, vocabulary));
        }
      }
      done += piece.size();
    }
  }
}

void TokenStream::read(std::uint64_t first, std::span<Token> tokens) const {
  if (first > size_ || tokens.size() > size_ - first) {
    throw Error(Cause::refused, fmt::format("--data: tokens {} to {} of {}", first, first + tokens.size(), size_));
  }
  std::vector<std::byte> scratch(std::min(kScratchBytes, tokens.size() * sizeof(std::uint16_t)));
  // The last part that begins at or before `first`.
  auto part = std::prev(std::upper_bound(parts_.begin(), parts_.end(), first,
                                         [](std::uint64_t place, const Part& each) { return place < each.first; }));
  while (!tokens.empty()) {
    const std::uint64_t inside = first - part->first;
    const auto count = static_cast<std::size_t>(std::min({part->count - inside, static_cast<std::uint64_t>(tokens.size()),
                                                          static_cast<std::uint64_t>(scratch.size() / part->width)}));
    if (count == 0) {
      ++part;
      continue;
    }
    file::read(part->file, part->path, inside * part->width, std::span(scratch).first(count * part->width));
    for (std::size_t i = 0; i < count; ++i) tokens[i] = token_at(scratch.data() + i * part->width, part->width);
    tokens = tokens.subspan(count);
    first += count;
  }
}

bool names_other_numbers(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(kOtherNumbers, ending) != kOtherNumbers.end();
}

void refuse_other_numbers(const std::filesystem::path& path) {
  if (names_other_numbers(path)) {
    throw Error(Cause::refused,
                fmt::format("{}: by its name it holds numbers, which would be read as text; {}", path.string(), kHowToWrite));
  }
  const posix::UniqueFd file = file::open_to_read(path);
  std::vector<std::byte> first(
      static_cast<std::size_t>(std::min<std::uint64_t>(kLookedAt, file::size(file, path) & ~std::uint64_t{3})));
  file::read(file, path, 0, first);
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  for (const Header& header : kHeaders) {
    if (text.starts_with(header.bytes))
      throw Error(Cause::refused, fmt::format("{}: holds more than ids: {}; {}", path.string(), header.what, kHowToWrite));
  }
  if (holds_ids(path) && seem_wide(first)) {
    throw Error(Cause::refused, fmt::format("{}: every second 16-bit number is 0 or small, as in a file of 32-bit or 64-bit ids, "
                                            "which aren't read yet; {}",
                                            path.string(), kHowToWrite));
  }
}

void refuse_text_beside_tokenizer(const std::vector<std::filesystem::path>& files, const std::filesystem::path& model_folder) {
  constexpr std::array<const char*, 10> kTokenizers = {
      "tokenizer.json", "tokenizer.model", "vocab.json",  "tokenizer_config.json", "merges.txt",
      "vocab.txt",      "spiece.model",    "tekken.json", "added_tokens.json",     "sentencepiece.bpe.model"};
  const auto text = std::find_if_not(files.begin(), files.end(), holds_ids);
  if (text == files.end()) return;
  for (const char* tokenizer : kTokenizers) {
    std::error_code error;
    if (!std::filesystem::exists(model_folder / tokenizer, error)) continue;
    throw Error(Cause::refused, fmt::format("{}: text, but the model has a tokenizer ({}), which isn't supported; give .bin ids",
                                            text->string(), (model_folder / tokenizer).string()));
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

void check_training_data(std::uint64_t tokens, std::size_t sequence) {
  if (tokens <= sequence) {
    throw Error(Cause::refused, fmt::format("--data: {} tokens; --seq {} needs at least {} (inputs and labels); try --seq {}",
                                            tokens, sequence, sequence + 1, tokens - 1));
  }
}

}  // namespace tsprun::detail
