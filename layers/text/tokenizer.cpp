// The way of a text: added tokens, normalizer, added tokens again, pre-tokenizers, model.
#include "layers/text/tokenizer.h"

#include "layers/io/file.h"
#include "layers/text/characters.h"
#include "layers/text/expression.h"
#include "layers/text/tokenizer_parts.h"
#include "layers/text/word_cache.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::text {

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 29;
  const std::filesystem::path path = folder / "tokenizer.json";
  if (std::error_code error; !std::filesystem::exists(path, error))
    throw Error(Cause::refused,
                fmt::format("{}: there is no such file, from which text becomes tokens; take the one that the hub has beside the "
                            "model (tokenizer.model, vocab.json and tekken.json aren't read)",
                            path.string()));
  return parse(file::read_text(path, kMost, "a tokenizer.json"), path.string());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) { return Tokenizer(read_tokenizer(json, where)); }

std::size_t Tokenizer::ids() const { return std::max(parts_->vocabulary.ids(), parts_->added.ids()); }

std::optional<Token> Tokenizer::find(const std::string& token) const {
  Token id = parts_->added.find(token);
  if (id == kNone) id = parts_->vocabulary.find(token);
  return id == kNone ? std::nullopt : std::optional(id);
}

std::string Tokenizer::decode(std::span<const Token> ids, bool skip_special) const {
  TextStream stream(*this, skip_special);
  std::string text;
  for (const Token id : ids) text += stream.add(id);
  return text += stream.finish();
}

namespace {
constexpr std::size_t kBytesBetweenTelling = std::size_t{1} << 20;
}  // namespace

struct Encoder::Scratch {
  WordCache cache;
  std::string normalized;
};

Encoder::Encoder(const Tokenizer& tokenizer) : parts_(tokenizer.parts_), scratch_(std::make_unique<Scratch>()) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, bool add_special, std::vector<Token>& ids,
                     const std::function<void(std::size_t bytes)>& progress) {
  std::size_t wrong = 0;
  if (const std::size_t good = utf8_prefix(text, wrong); good != text.size()) {
    throw Error(Cause::refused,
                fmt::format("byte {} of {} isn't UTF-8; give text in UTF-8, which `iconv -f latin1 -t utf-8` makes of older "
                            "texts",
                            good, text.size()));
  }
  Pattern::begin_text(text.size());
  const TokenizerParts& parts = *parts_;
  if (add_special) ids.insert(ids.end(), parts.before.begin(), parts.before.end());
  std::size_t done = 0;
  std::size_t told = 0;
  const auto word = [&](std::string_view piece, bool) {
    parts.model->encode(piece, scratch_->cache, ids);
    done += piece.size();
    if (done - told < kBytesBetweenTelling) return;
    told = done;
    if (progress) progress(std::min(done, text.size()));
  };
  parts.added.cut(text, false, [&](std::string_view piece, Token added) {
    if (added != kNone) return ids.push_back(added);
    bool from_start = piece.data() == text.data();
    std::string_view changed = piece;
    if (parts.normalizer) {
      scratch_->normalized = piece;
      parts.normalizer->apply(scratch_->normalized, from_start);
      changed = scratch_->normalized;
    }
    parts.added.cut(changed, true, [&](std::string_view part, Token token) {
      if (token != kNone) ids.push_back(token);
      else parts.pre_tokenizers.cut(part, from_start && part.data() == changed.data(), word);
    });
  });
  if (add_special) ids.insert(ids.end(), parts.behind.begin(), parts.behind.end());
}

struct TextStream::Stages {
  std::string text;
  std::vector<std::unique_ptr<DecodeStage>> all;
};

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special)
    : parts_(tokenizer.parts_), stages_(std::make_unique<Stages>()), skip_special_(skip_special) {
  stages_->all = parts_->decoder.stages(stages_->text);
}
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

std::string TextStream::add(Token id) {
  const std::string* added = parts_->added.text(id);
  const auto text = added != nullptr ? std::optional<std::string_view>(*added) : parts_->vocabulary.text(id);
  if (!text || (skip_special_ && parts_->added.is_special(std::string(*text)))) return {};
  Pattern::begin_text(text->size());
  stages_->all.back()->take(*text);
  stages_->all.back()->end_token();
  return std::exchange(stages_->text, {});
}

std::string TextStream::finish() {
  Pattern::begin_text(0);
  stages_->all.back()->finish();
  return std::exchange(stages_->text, {});
}

}  // namespace tsprun::detail::text
