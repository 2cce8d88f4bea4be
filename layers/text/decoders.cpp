// A class for each type.
#include "layers/text/decoders.h"

#include "layers/text/byte_alphabet.h"
#include "layers/text/characters.h"
#include "layers/text/fields.h"

#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace tsprun::detail::text {

namespace {

/// The end of the chain.
class ToText : public DecodeStage {
 public:
  explicit ToText(std::string& text) : text_(text) {}
  void take(std::string_view part) override { text_ += part; }
  void end_token() override {}
  void finish() override {}

 private:
  std::string& text_;
};

/// A stage that needs whole tokens.
class OfTokens : public DecodeStage {
 public:
  explicit OfTokens(DecodeStage& next) : next_(next) {}
  void take(std::string_view part) override { token_ += part; }
  void end_token() override {
    decode(token_);
    token_.clear();
  }
  void finish() override {
    end();
    next_.finish();
  }

 protected:
  virtual void decode(const std::string& token) = 0;
  virtual void end() {}
  void pass(std::string_view token) {
    next_.take(token);
    next_.end_token();
  }
  DecodeStage& next() { return next_; }

 private:
  DecodeStage& next_;
  std::string token_;
};

class WithBlanks : public OfTokens {
 public:
  using OfTokens::OfTokens;

 private:
  void decode(const std::string& token) override { pass(std::exchange(first_, false) ? token : " " + token); }
  bool first_ = true;
};

/// Characters of byte_alphabet.h become their bytes; what is no UTF-8 becomes U+FFFD.
class FromByteLevel : public OfTokens {
 public:
  using OfTokens::OfTokens;

 private:
  void decode(const std::string& token) override {
    const std::size_t before = bytes_.size();
    for (std::size_t at = 0; at < token.size();) {
      const auto [code, bytes] = character_at(token, at);
      const auto byte = byte_of_character(code);
      if (!byte) {  // a token that isn't written in this alphabet
        bytes_.resize(before);
        bytes_ += token;
        break;
      }
      bytes_ += static_cast<char>(*byte);
      at += bytes;
    }
    std::size_t wrong = 1;
    while (wrong != 0) {
      const std::size_t good = utf8_prefix(bytes_, wrong);
      next().take(std::string_view(bytes_).substr(0, good));
      if (wrong != 0) next().take(kReplacement);
      bytes_.erase(0, good + wrong);
    }
  }
  void end() override {
    if (!bytes_.empty()) next().take(kReplacement);  // the beginning of a character
    next().end_token();
  }
  std::string bytes_;
};

/// Runs of tokens <0xE2> become their bytes, or as many U+FFFD if they are no UTF-8.
class FromByteFallback : public OfTokens {
 public:
  using OfTokens::OfTokens;

 private:
  void decode(const std::string& token) override {
    unsigned byte = 0;
    const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.back() == '>' &&
                         std::isxdigit(static_cast<unsigned char>(token[3])) != 0 &&
                         std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5;
    if (is_byte) {
      bytes_ += static_cast<char>(static_cast<unsigned char>(byte));
      return;
    }
    end();
    pass(token);
  }
  void end() override {
    if (bytes_.empty()) return;
    std::size_t wrong = 0;
    if (utf8_prefix(bytes_, wrong) == bytes_.size()) pass(bytes_);
    else
      for (std::size_t i = 0; i < bytes_.size(); ++i) pass(kReplacement);
    bytes_.clear();
  }
  std::string bytes_;
};

/// All tokens become one.
class Fuse : public DecodeStage {
 public:
  explicit Fuse(DecodeStage& next) : next_(next) {}
  void take(std::string_view part) override { next_.take(part); }
  void end_token() override {}
  void finish() override {
    next_.end_token();
    next_.finish();
  }

 private:
  DecodeStage& next_;
};

/// Takes at most so many of a character away from both ends of each token.
class StripEnds : public DecodeStage {
 public:
  StripEnds(DecodeStage& next, char32_t content, std::size_t start, std::size_t stop) : next_(next), start_(start), stop_(stop) {
    append(content_, content);
  }
  void take(std::string_view part) override {
    while (!part.empty() && part.starts_with(content_)) {
      if (cut_ < start_) ++cut_;
      else ++held_;
      part.remove_prefix(content_.size());
    }
    if (part.empty()) return;
    cut_ = start_;
    release(held_);
    std::size_t end = part.size();
    while (part.substr(0, end).ends_with(content_)) {
      end -= content_.size();
      ++held_;
    }
    next_.take(part.substr(0, end));
  }
  void end_token() override {
    release(held_ - std::min(held_, stop_));
    held_ = cut_ = 0;
    next_.end_token();
  }
  void finish() override { next_.finish(); }

 private:
  void release(std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) next_.take(content_);
    held_ -= times;
  }

  DecodeStage& next_;
  std::string content_;
  std::size_t start_;
  std::size_t stop_;
  std::size_t cut_ = 0;   // taken away at the start of this token
  std::size_t held_ = 0;  // which may be its end
};

class ReplaceIn : public OfTokens {
 public:
  ReplaceIn(DecodeStage& next, const Pattern& pattern, const std::string& content)
      : OfTokens(next), pattern_(pattern), content_(content) {}

 private:
  void decode(const std::string& token) override {
    pattern_.each_place(token, [&](Place place, bool matched) {
      next().take(matched ? std::string_view(content_) : std::string_view(token).substr(place.begin, place.end - place.begin));
    });
    next().end_token();
  }
  Pattern pattern_;
  std::string content_;
};

/// The visible character becomes a blank again; in the first token it goes away.
class FromMetaspace : public OfTokens {
 public:
  FromMetaspace(DecodeStage& next, char32_t replacement, bool prepended)
      : OfTokens(next), replacement_(replacement), drop_(prepended) {}

 private:
  void decode(const std::string& token) override {
    std::string text;
    for (std::size_t at = 0; at < token.size();) {
      const auto [code, bytes] = character_at(token, at);
      if (code != replacement_) text += token.substr(at, bytes);
      else if (!drop_) text += ' ';
      at += bytes;
    }
    drop_ = false;
    pass(text);
  }
  char32_t replacement_;
  bool drop_;
};

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  if (what.empty()) return text;
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, done)) {
    result.append(text, done, at - done).append(by);
    done = at + what.size();
  }
  return result.append(text, done);
}

std::string cleaned_up(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kChanges = {{{" .", "."},
                                                                                       {" ?", "?"},
                                                                                       {" !", "!"},
                                                                                       {" ,", ","},
                                                                                       {" ' ", "'"},
                                                                                       {" n't", "n't"},
                                                                                       {" 'm", "'m"},
                                                                                       {" do not", " don't"},
                                                                                       {" 's", "'s"},
                                                                                       {" 've", "'ve"},
                                                                                       {" 're", "'re"}}};
  for (const auto& [what, by] : kChanges) text = replaced(std::move(text), what, by);
  return text;
}

class FromWordPiece : public OfTokens {
 public:
  FromWordPiece(DecodeStage& next, const std::string& prefix, bool cleanup)
      : OfTokens(next), prefix_(prefix), cleanup_(cleanup) {}

 private:
  void decode(const std::string& token) override {
    std::string text = token;
    if (!std::exchange(first_, false)) text = token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token;
    pass(cleanup_ ? cleaned_up(text) : text);
  }
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

/// The suffix that ends a word becomes a blank; in the last token it goes away.
class FromSuffixes : public OfTokens {
 public:
  FromSuffixes(DecodeStage& next, const std::string& suffix) : OfTokens(next), suffix_(suffix) {}

 private:
  void decode(const std::string& token) override {
    if (held_) pass(replaced(std::move(*held_), suffix_, " "));
    held_ = token;
  }
  void end() override {
    if (held_) pass(replaced(std::move(*held_), suffix_, ""));
  }
  std::string suffix_;
  std::optional<std::string> held_;
};

/// What speech models write: repeated tokens count once.
class FromSpeech : public OfTokens {
 public:
  FromSpeech(DecodeStage& next, const std::string& pad, const std::string& delimiter, bool cleanup)
      : OfTokens(next), pad_(pad), delimiter_(delimiter), cleanup_(cleanup) {}

 private:
  void decode(const std::string& token) override {
    if (last_ == token) return;
    last_ = token;
    std::string text = replaced(token, pad_, "");
    if (cleanup_) text = replaced(cleaned_up(std::move(text)), delimiter_, " ");
    if (!text.empty()) pass(text);
  }
  std::string pad_;
  std::string delimiter_;
  bool cleanup_;
  std::optional<std::string> last_;
};

}  // namespace

Decoder::Decoder() {
  makes_.emplace_back([](DecodeStage& next) { return std::make_unique<WithBlanks>(next); });
}

Decoder::Decoder(const JsonObject& object) {
  each_part(object, "decoders", [&](JsonObject& part) { add(part); });
}

void Decoder::add(JsonObject& object) {
  const auto make = [this]<class Stage, class... Arguments>(std::type_identity<Stage>, Arguments... arguments) {
    makes_.emplace_back([=](DecodeStage& next) { return std::make_unique<Stage>(next, arguments...); });
  };
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  const std::string type = raw_text(object, "type");
  if (type == "ByteLevel") return make(std::type_identity<FromByteLevel>());
  if (type == "ByteFallback") return make(std::type_identity<FromByteFallback>());
  if (type == "Fuse") return make(std::type_identity<Fuse>());
  if (type == "Replace") return make(std::type_identity<ReplaceIn>(), pattern(object, "pattern"), raw_text(object, "content"));
  if (type == "Strip")
    return make(std::type_identity<StripEnds>(), one_character(object, "content"),
                object.integer<std::size_t>("start", 0, kMost, 0), object.integer<std::size_t>("stop", 0, kMost, 0));
  if (type == "Metaspace") {
    const bool prepended = object.flag("add_prefix_space", true) && raw_text(object, "prepend_scheme", "always") != "never";
    return make(std::type_identity<FromMetaspace>(), one_character(object, "replacement", "\xe2\x96\x81"), prepended);
  }
  if (type == "WordPiece")
    return make(std::type_identity<FromWordPiece>(), raw_text(object, "prefix", "##"), object.flag("cleanup", true));
  if (type == "BPEDecoder") return make(std::type_identity<FromSuffixes>(), raw_text(object, "suffix", "</w>"));
  if (type == "CTC")
    return make(std::type_identity<FromSpeech>(), raw_text(object, "pad_token", "<pad>"),
                raw_text(object, "word_delimiter_token", "|"), object.flag("cleanup", true));
  object.refuse("type", "Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece, BPEDecoder or CTC");
}

std::vector<std::unique_ptr<DecodeStage>> Decoder::stages(std::string& text) const {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  stages.push_back(std::make_unique<ToText>(text));
  for (auto make = makes_.rbegin(); make != makes_.rend(); ++make) stages.push_back((*make)(*stages.back()));
  return stages;
}

}  // namespace tsprun::detail::text
