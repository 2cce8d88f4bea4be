// Text to token ids and back, as the tokenizer.json of a model's folder says.
#pragma once

#include "layers/io/data.h"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

struct TokenizerParts;

/// A tokenizer. It doesn't change, so that copies share it and threads may use it at once.
class Tokenizer {
 public:
  /// Reads the tokenizer.json of a model's folder. Throws Error(refused): missing, damaged, or of a kind that isn't known.
  static Tokenizer load(const std::filesystem::path& folder);
  /// Reads the text of a tokenizer.json; `where` names it in messages. Throws Error(refused).
  static Tokenizer parse(std::string_view json, const std::string& where);

  /// Returns the highest id plus one.
  std::size_t ids() const;
  /// Returns the id of the token with exactly this text, "<|im_end|>", if there is one.
  std::optional<Token> find(const std::string& token) const;
  /// Returns the text of tokens, without special ones if `skip_special`; ids that no token has are left out. Throws
  /// Error(refused) if an expression of the decoder gives up.
  std::string decode(std::span<const Token> ids, bool skip_special) const;

 private:
  friend class Encoder;
  friend class TextStream;
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const TokenizerParts> parts_;
};

/// Makes tokens of texts, for one thread: it remembers words (2 MiB).
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  Encoder(Encoder&&) noexcept;
  ~Encoder();

  /// Appends a text's ids. `add_special`: also those that the file puts around each text, such as the one that begins it.
  /// `progress`, if there is one, is called every MiB or so with how many bytes have become tokens, about. Throws Error(refused):
  /// the text isn't UTF-8 (with the byte), an expression gives up, or a character has no token.
  void encode(std::string_view text, bool add_special, std::vector<Token>& ids,
              const std::function<void(std::size_t bytes)>& progress = {});

 private:
  struct Scratch;
  std::shared_ptr<const TokenizerParts> parts_;
  std::unique_ptr<Scratch> scratch_;
};

/// Makes a text of tokens that come one by one. All that it returns together is what Tokenizer::decode() returns.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, bool skip_special);
  TextStream(TextStream&&) noexcept;
  ~TextStream();

  /// Takes a token, and returns the text that is certain now: never half a character, often none.
  std::string add(Token id);
  /// Returns what is left at the end.
  std::string finish();

 private:
  struct Stages;
  std::shared_ptr<const TokenizerParts> parts_;
  std::unique_ptr<Stages> stages_;
  bool skip_special_;
};

}  // namespace tsprun::detail::text
