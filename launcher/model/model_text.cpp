// Looks for the tokenizer's file, and reads texts with it.
#include "launcher/model/model_text.h"

#include "launcher/refuse.h"
#include "launcher/values.h"
#include "layers/io/digest.h"
#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "layers/io/kept_tokens.h"
#include "layers/io/read_ahead.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kByteIds = 256;
constexpr std::uint64_t kLargestText = std::uint64_t{1} << 36;
constexpr const char* kTokenizerFile = "tokenizer.json";

/// Files of tokenizers in other forms.
constexpr std::array<const char*, 9> kOtherTokenizers = {"tokenizer.model",  "vocab.json",
                                                         "merges.txt",       "vocab.txt",
                                                         "spiece.model",     "sentencepiece.bpe.model",
                                                         "tekken.json",      "tokenizer_config.json",
                                                         "added_tokens.json"};

/// Least bytes of a text whose tokens are kept: making them takes half a second.
constexpr std::size_t kLeastKept = std::size_t{8} << 20;
constexpr std::chrono::seconds kBetweenLines{2};

/// Returns the checksum of all that a text's tokens follow from: this program's version, the tokenizer, and the text.
Digest key_of(const std::filesystem::path& tokenizer, std::string_view text) {
  const posix::UniqueFd file = file::open_to_read(tokenizer);
  const std::string all = TSP_VERSION + hexadecimal(digest_file(file, tokenizer, file::size(file, tokenizer))) +
                          hexadecimal(digest(std::as_bytes(std::span(text))));
  return digest(std::as_bytes(std::span(all)));
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return !path.empty() && std::filesystem::is_directory(path, error);
}

bool there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

Token end_of_document(const std::optional<text::Tokenizer>& tokenizer, const std::string& typed, std::size_t ids) {
  if (typed.find_first_not_of("0123456789") == std::string::npos)
    return static_cast<Token>(parse_integer("--eos", typed, 0, static_cast<std::int64_t>(ids) - 1));
  if (!tokenizer)
    refuse(fmt::format("--eos {}: no {} of the model says which token that is; give its id", printable(typed), kTokenizerFile));
  const std::optional<Token> token = tokenizer->find(typed);
  if (!token) refuse(fmt::format("--eos {}: the tokenizer has no token of this text; give another, or its id", printable(typed)));
  return *token;
}

void end_document(std::vector<Token>& ids, Token end) {
  if (!ids.empty() && ids.back() != end) ids.push_back(end);
}

std::function<void(std::size_t bytes)> progress_of_tokens(std::string name, std::size_t bytes) {
  return [name = std::move(name), bytes, next = std::chrono::steady_clock::now() + kBetweenLines](std::size_t done) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (now < next) return;
    next = now + kBetweenLines;
    spdlog::info("{}: {} of {} MiB are tokens", name, done >> 20, bytes >> 20);
  };
}

ModelText ModelText::without_tokenizer(const ModelCommandOptions& model) {
  ModelText text;
  const bool folder = is_folder(model.source);
  for (const char* other : kOtherTokenizers) {
    if (!folder || !there(model.source / other)) continue;
    text.why_not_ =
        fmt::format("the model's tokenizer is {}, and only {} is read", (model.source / other).string(), kTokenizerFile);
    return text;
  }
  if (model.shape.vocabulary == kByteIds) return text;
  text.why_not_ = fmt::format("{} has no {}, and a vocabulary of {} isn't that of bytes",
                              folder ? model.source.string() : model.shape.name, kTokenizerFile, model.shape.vocabulary);
  return text;
}

ModelText ModelText::of(const ModelCommandOptions& model) {
  if (!is_folder(model.source) || !there(model.source / kTokenizerFile)) return without_tokenizer(model);
  ModelText text;
  // While the tokenizer is made, a disk would be idle: it reads the weights, but not before the tokenizer.
  std::vector<file::Range> next{{.path = model.source / kTokenizerFile}};
  for (const std::filesystem::path& weights : model.weights) next.push_back({.path = weights});
  const file::ReadAhead ahead(std::move(next), file::kMostAhead);
  text.tokenizer_ = text::Tokenizer::load(model.source);
  text.encoder_ = std::make_shared<text::Encoder>(*text.tokenizer_);
  text.file_ = model.source / kTokenizerFile;
  return text;
}

ModelText ModelText::if_readable(const ModelCommandOptions& model) {
  try {
    return of(model);
  } catch (const Error& error) {
    if (error.cause() != Cause::refused) throw;
    spdlog::warn("{}; tokens are shown as numbers", error.what());
    ModelText text;
    text.why_not_ = error.what();
    return text;
  }
}

std::vector<Token> ModelText::ids(std::string_view text, std::string_view name) const { return encoded(text, name, true); }

std::vector<Token> ModelText::ids_within(std::string_view text, std::string_view name) const {
  return encoded(text, name, false);
}

std::vector<Token> ModelText::encoded(std::string_view text, std::string_view name, bool add_special,
                                      const std::function<void(std::size_t bytes)>& progress) const {
  if (!why_not_.empty()) {
    refuse(
        fmt::format("{}: text, but {}. Without a tokenizer train and eval take token ids (--data tokens.u32), and so does "
                    "generate (--prompt ids.u32); plan, simulate and block need neither",
                    name, why_not_));
  }
  std::vector<Token> ids;
  if (!tokenizer_) {
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  try {
    encoder_->encode(text, add_special, ids, progress);
  } catch (const Error& error) {
    if (error.cause() != Cause::refused) throw;
    refuse(fmt::format("{}: {}", name, error.what()));
  }
  return ids;
}

/// Returns the ids of a file's text.
std::vector<Token> ModelText::of_file(const std::filesystem::path& path, std::string_view text) const {
  if (!tokenizer_ || text.size() < kLeastKept) return ids(text, path.string());
  const KeptTokens kept(path, key_of(file_, text));
  if (std::optional<std::vector<Token>> found = kept.read()) {
    spdlog::info("{}: its tokens are those of an earlier run, {}", path.string(), kept.path().string());
    return *std::move(found);
  }
  std::vector<Token> made = encoded(text, path.string(), true, progress_of_tokens(path.string(), text.size()));
  try {
    kept.write(made);
  } catch (const Error& error) {
    spdlog::info("tokens aren't kept for other runs: {}", error.what());
  }
  return made;
}

IdsOfTexts ModelText::ids_of(const std::vector<std::filesystem::path>& files, std::optional<Token> end) const {
  IdsOfTexts texts;
  if (!tokenizer_ && why_not_.empty()) return texts;
  for (const std::filesystem::path& path : files) {
    if (names_ids(path) || texts.contains(path)) continue;
    refuse_other_numbers(path);
    const std::string text = why_not_.empty() ? file::read_text(path, kLargestText, "a text") : std::string();
    std::vector<Token> ids = of_file(path, text);
    if (end) end_document(ids, *end);
    spdlog::info("{}: {} bytes of text are {} tokens", path.string(), text.size(), ids.size());
    texts.emplace(path, std::make_shared<const std::vector<Token>>(std::move(ids)));
  }
  return texts;
}

TokenText::TokenText(const ModelText& text, const std::vector<std::string>& stops)
    : tokenizer_(text.tokenizer()), ids_are_bytes_(text.ids_are_bytes()), stops_(stops) {
  if (tokenizer_) stream_.emplace(*tokenizer_, true);
}

std::string TokenText::prompt(std::span<const Token> ids) {
  std::string text = made(ids);
  const std::size_t whole = tokenizer_ ? tokenizer_->decode(ids, true).size() : ids_are_bytes_ ? ids.size() : text.size();
  of_prompt_ = whole - std::min(whole, text.size());
  return text;
}

/// Looks for stop texts behind the prompt.
std::string TokenText::before_stops(const std::string& text) {
  const std::size_t passing = std::min(std::exchange(of_prompt_, of_prompt_ - std::min(of_prompt_, text.size())), text.size());
  return text.substr(0, passing) + stops_.add(std::string_view(text).substr(passing));
}

std::string TokenText::made(std::span<const Token> ids) {
  std::string text;
  for (const Token id : ids) {
    if (stream_) text += stream_->add(id);
    else if (ids_are_bytes_ && static_cast<std::size_t>(id) < kByteIds) text += static_cast<char>(id);
    else text += fmt::format("<{}>", id);
  }
  return stream_ ? text : bytes_.add(text);
}

std::string TokenText::finish() {
  const std::string last = before_stops(stream_ ? stream_->finish() : bytes_.rest());
  return last + stops_.rest();
}

}  // namespace tsprun::detail::launcher
