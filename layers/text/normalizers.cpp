// A class for each type.
#include "layers/text/normalizers.h"

#include "layers/text/byte_alphabet.h"
#include "layers/text/characters.h"
#include "layers/text/charsmap.h"
#include "layers/text/fields.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace tsprun::detail::text {

namespace {

/// Returns a text of which each character was replaced by what `change` appends.
template <class Change>
std::string changed(const std::string& text, const Change& change) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    change(result, character.code);
    at += character.bytes;
  }
  return result;
}

class InNormalForm : public Normalizer {
 public:
  explicit InNormalForm(NormalForm form) : form_(form) {}
  void apply(std::string& text, bool&) const override { text = normalized(text, form_); }

 private:
  NormalForm form_;
};

/// A change of each character by itself.
class ByCharacter : public Normalizer {
 public:
  using Change = std::function<void(std::string&, char32_t)>;
  explicit ByCharacter(Change change) : change_(std::move(change)) {}
  void apply(std::string& text, bool& from_start) const override {
    std::string first;
    if (!text.empty()) change_(first, character_at(text, 0).code);
    from_start &= !first.empty();
    text = changed(text, change_);
  }

 private:
  Change change_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, bool& from_start) const override {
    std::size_t end = text.size();
    while (right_ && end > 0 && is_white_space(character_before(text, end).code)) end -= character_before(text, end).bytes;
    std::size_t begin = 0;
    while (left_ && begin < end && is_white_space(character_at(text, begin).code)) begin += character_at(text, begin).bytes;
    from_start &= begin == 0;
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text, bool& from_start) const override {
    std::string result;
    result.reserve(text.size());
    pattern_.each_place(text, [&](Place place, bool matched) {
      if (matched && place.begin == 0 && place.end > 0 && content_.empty()) from_start = false;
      if (matched) result += content_;
      else result.append(text, place.begin, place.end - place.begin);
    });
    text = std::move(result);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, bool&) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ByteCharacters : public Normalizer {
 public:
  void apply(std::string& text, bool&) const override {
    std::string result;
    append_byte_characters(result, text);
    text = std::move(result);
  }
};

class ByCharsmap : public Normalizer {
 public:
  explicit ByCharsmap(Charsmap map) : map_(std::move(map)) {}
  void apply(std::string& text, bool&) const override { text = map_.apply(text); }

 private:
  Charsmap map_;
};

class OneAfterTheOther : public Normalizer {
 public:
  void add(std::unique_ptr<Normalizer> normalizer) { all_.push_back(std::move(normalizer)); }
  void apply(std::string& text, bool& from_start) const override {
    for (const auto& each : all_) each->apply(text, from_start);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> all_;
};

bool is_chinese(char32_t code) {
  return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) || (code >= 0x20000 && code <= 0x2a6df) ||
         (code >= 0x2a700 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) || (code >= 0xf900 && code <= 0xfaff) ||
         (code >= 0x2f800 && code <= 0x2fa1f);
}

void clean(std::string& text, char32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') text += ' ';
  else if (code != 0xfffd && !is_other(code)) append(text, is_white_space(code) ? U' ' : code);
}

void space_chinese(std::string& text, char32_t code) {
  const bool spaced = is_chinese(code);
  if (spaced) text += ' ';
  append(text, code);
  if (spaced) text += ' ';
}

void without_accents(std::string& text, char32_t code) {
  if (!is_nonspacing_mark(code)) append(text, code);
}

/// What SentencePiece's "nmt" rules take away and make blanks.
void clean_for_translation(std::string& text, char32_t code) {
  if ((code >= 1 && code <= 8) || code == 0xb || (code >= 0xe && code <= 0x1f) || code == 0x7f || code == 0x8f || code == 0x9f)
    return;
  const bool blank = code == 9 || code == 0xa || code == 0xc || code == 0xd || code == 0x1680 ||
                     (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 || code == 0xfeff ||
                     code == 0xfffd;
  append(text, blank ? U' ' : code);
}

void add_normalizer(JsonObject& object, OneAfterTheOther& all) {
  const std::string type = raw_text(object, "type");
  const auto by_character = [&](void (*change)(std::string&, char32_t)) { all.add(std::make_unique<ByCharacter>(change)); };
  if (type == "NFC") return all.add(std::make_unique<InNormalForm>(NormalForm::nfc));
  if (type == "NFD") return all.add(std::make_unique<InNormalForm>(NormalForm::nfd));
  if (type == "NFKC") return all.add(std::make_unique<InNormalForm>(NormalForm::nfkc));
  if (type == "NFKD") return all.add(std::make_unique<InNormalForm>(NormalForm::nfkd));
  if (type == "Lowercase") return by_character(append_lower);
  if (type == "StripAccents")
    return by_character([](std::string& text, char32_t code) {
      if (!is_mark(code)) append(text, code);
    });
  if (type == "Nmt") return by_character(clean_for_translation);
  if (type == "Strip") return all.add(std::make_unique<Strip>(object.flag("strip_left", true), object.flag("strip_right", true)));
  if (type == "Replace") return all.add(std::make_unique<Replace>(pattern(object, "pattern"), raw_text(object, "content")));
  if (type == "Prepend") return all.add(std::make_unique<Prepend>(raw_text(object, "prepend")));
  if (type == "ByteLevel") return all.add(std::make_unique<ByteCharacters>());
  if (type == "Precompiled") return all.add(std::make_unique<ByCharsmap>(Charsmap(object)));
  if (type == "BertNormalizer") {
    const bool lowercase = object.flag("lowercase", true);
    if (object.flag("clean_text", true)) by_character(clean);
    if (object.flag("handle_chinese_chars", true)) by_character(space_chinese);
    if (object.flag("strip_accents", lowercase)) {
      all.add(std::make_unique<InNormalForm>(NormalForm::nfd));
      by_character(without_accents);
    }
    if (lowercase) by_character(append_lower);
    return;
  }
  object.refuse("type",
                "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, Precompiled, BertNormalizer, "
                "ByteLevel or Nmt");
}

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonObject& object) {
  auto all = std::make_unique<OneAfterTheOther>();
  each_part(object, "normalizers", [&](JsonObject& part) { add_normalizer(part, *all); });
  return all;
}

}  // namespace tsprun::detail::text
