// How a model's commands make tokens of texts and texts of tokens: by the tokenizer.json of the model's folder, or, where there
// is none and the vocabulary has 256 ids, as bytes.
#pragma once

#include "launcher/model/model_options.h"
#include "launcher/utf8_pieces.h"
#include "layers/io/data.h"
#include "layers/text/stop_texts.h"
#include "layers/text/tokenizer.h"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the token of --eos: a number below `ids`, or the text of a token that the tokenizer has, "<|endoftext|>". Throws
/// Error(refused).
Token end_of_document(const std::optional<text::Tokenizer>& tokenizer, const std::string& typed, std::size_t ids);
/// Puts the end of a document behind its ids, unless they end with it or there are none.
void end_document(std::vector<Token>& ids, Token end);

/// Returns what says on the log, every two seconds, how much of a text of so many bytes has become tokens. `name` is the text in
/// messages.
std::function<void(std::size_t bytes)> progress_of_tokens(std::string name, std::size_t bytes);

/// The tokens of a model's texts. Copies share the tokenizer; texts are read by one thread at a time.
class ModelText {
 public:
  /// Finds out how the model that validate_model() found makes tokens of texts, and loads its tokenizer. Throws Error(refused)
  /// for a tokenizer.json that can't be read.
  static ModelText of(const ModelCommandOptions& model);
  /// Does as of(), but a tokenizer.json that can't be read only costs a warning, and later the refusal of text.
  static ModelText if_readable(const ModelCommandOptions& model);

  /// Returns the ids of a text, with those that the tokenizer puts around each. `name` is the text in messages: "--prompt".
  /// Throws Error(refused): the model has no tokenizer that can be read and its ids aren't bytes, or the text isn't UTF-8.
  std::vector<Token> ids(std::string_view text, std::string_view name) const;
  /// Does as ids(), for a text that has its special tokens in it already: none is put around it.
  std::vector<Token> ids_within(std::string_view text, std::string_view name) const;
  /// Returns the ids of the files that are text, unless their bytes are the ids; behind those of each file `end`, if it is given
  /// and they don't end with it. Those of a long text are kept beside it (kept_tokens.h), and taken from there as long as text,
  /// tokenizer and version of this program are the same. Says on the log how many, and of long texts how far it is. Throws
  /// Error(refused) as ids() does, and for files that TokenStream would refuse by their names or first bytes.
  IdsOfTexts ids_of(const std::vector<std::filesystem::path>& files, std::optional<Token> end = {}) const;

  const std::optional<text::Tokenizer>& tokenizer() const { return tokenizer_; }
  /// Returns whether ids are bytes: there is no tokenizer, and the vocabulary is that of bytes.
  bool ids_are_bytes() const { return !tokenizer_ && why_not_.empty(); }
  /// Returns tokenizer.json, if it is read; else an empty path.
  const std::filesystem::path& file() const { return file_; }

 private:
  std::vector<Token> encoded(std::string_view text, std::string_view name, bool add_special,
                             const std::function<void(std::size_t bytes)>& progress = {}) const;
  std::vector<Token> of_file(const std::filesystem::path& path, std::string_view text) const;
  static ModelText without_tokenizer(const ModelCommandOptions& model);

  std::optional<text::Tokenizer> tokenizer_;
  std::shared_ptr<text::Encoder> encoder_;  ///< of the tokenizer; it remembers words
  std::filesystem::path file_;
  std::string why_not_;  ///< why text can't become tokens; empty: it can
};

/// Makes the text of tokens that come one by one, in whole characters. Special tokens are left out.
class TokenText {
 public:
  /// Begins a text that ends before the first of `stops` in it.
  explicit TokenText(const ModelText& text, const std::vector<std::string>& stops = {});

  /// Takes a prompt's tokens, in which no stop text is looked for, and returns the text that is certain now.
  std::string prompt(std::span<const Token> ids);
  /// Takes tokens, and returns the text that is certain now: nothing that may yet belong to a stop text.
  std::string add(std::span<const Token> ids) { return before_stops(made(ids)); }
  /// Returns what is left at the end.
  std::string finish();
  /// Returns whether a stop text was found; all that came from it on is left out.
  bool stopped() const { return stops_.found(); }

 private:
  std::string made(std::span<const Token> ids);
  std::string before_stops(const std::string& text);

  std::optional<text::Tokenizer> tokenizer_;
  std::optional<text::TextStream> stream_;
  bool ids_are_bytes_;
  Utf8Pieces bytes_;  ///< without a tokenizer
  text::StopTexts stops_;
  std::size_t of_prompt_ = 0;  ///< bytes of the prompt that are to come, since its last tokens alone don't tell them
};

}  // namespace tsprun::detail::launcher
