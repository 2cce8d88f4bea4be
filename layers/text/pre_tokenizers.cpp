// A class for each type; most say only which places of a piece match.
#include "layers/text/pre_tokenizers.h"

#include "layers/text/byte_alphabet.h"
#include "layers/text/characters.h"
#include "layers/text/expression.h"
#include "layers/text/fields.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace tsprun::detail::text {

namespace {

/// What becomes of places that match.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(JsonObject& object, const char* usual = nullptr) {
  const std::string text = raw_text(object, "behavior", usual);
  if (text == "Removed") return Behavior::removed;
  if (text == "Isolated") return Behavior::isolated;
  if (text == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (text == "MergedWithNext") return Behavior::merged_with_next;
  if (text == "Contiguous") return Behavior::contiguous;
  object.refuse("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// Joins places as a behavior wants it, and passes on the pieces.
class Joiner {
 public:
  Joiner(Behavior behavior, std::string_view piece, bool from_start, TakePiece next)
      : behavior_(behavior), piece_(piece), from_start_(from_start), next_(next) {}

  void add(Place place, bool matched) {
    switch (behavior_) {
      case Behavior::isolated: return pass(place);
      case Behavior::removed:
        if (!matched) pass(place);
        return;
      default: break;
    }
    const bool joins = behavior_ == Behavior::contiguous             ? matched == held_matched_
                       : behavior_ == Behavior::merged_with_previous ? matched && !held_matched_
                                                                     : !matched && held_matched_;
    if (held_ && joins) held_->end = place.end;
    else finish(), held_ = place;
    held_matched_ = matched;
  }
  /// Passes on what is held.
  void finish() {
    if (held_) pass(*held_);
    held_.reset();
  }

 private:
  void pass(Place place) const {
    if (place.begin != place.end) next_(piece_.substr(place.begin, place.end - place.begin), from_start_ && place.begin == 0);
  }

  Behavior behavior_;
  std::string_view piece_;
  bool from_start_;
  TakePiece next_;
  std::optional<Place> held_;
  bool held_matched_ = false;
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert) : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void cut(std::string_view piece, bool from_start, TakePiece next) const override {
    Joiner joiner(behavior_, piece, from_start, next);
    pattern_.each_place(piece, [&](Place place, bool matched) { joiner.add(place, matched != invert_); });
    joiner.finish();
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

/// Cuts at characters of a kind, each of which matches by itself.
class AtCharacters : public PreTokenizer {
 public:
  AtCharacters(bool (*matches)(char32_t), Behavior behavior) : matches_(matches), behavior_(behavior) {}
  void cut(std::string_view piece, bool from_start, TakePiece next) const override {
    Joiner joiner(behavior_, piece, from_start, next);
    std::size_t begin = 0;
    for (std::size_t at = 0; at < piece.size();) {
      const auto [code, bytes] = character_at(piece, at);
      at += bytes;
      if (!matches_(code)) continue;
      if (begin != at - bytes) joiner.add({begin, at - bytes}, false);
      joiner.add({at - bytes, at}, true);
      begin = at;
    }
    if (begin != piece.size()) joiner.add({begin, piece.size()}, false);
    joiner.finish();
  }

 private:
  bool (*matches_)(char32_t);
  Behavior behavior_;
};

/// \w+|[^\w\s]+
class Whitespace : public PreTokenizer {
 public:
  void cut(std::string_view piece, bool from_start, TakePiece next) const override {
    const auto kind = [](char32_t code) { return is_word(code) ? 1 : is_white_space(code) ? 0 : 2; };
    for (std::size_t begin = 0; begin < piece.size();) {
      const auto [code, bytes] = character_at(piece, begin);
      std::size_t end = begin + bytes;
      while (end < piece.size() && kind(character_at(piece, end).code) == kind(code)) end += character_at(piece, end).bytes;
      if (kind(code) != 0) next(piece.substr(begin, end - begin), from_start && begin == 0);
      begin = end;
    }
  }
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(std::size_t characters) : characters_(characters) {}
  void cut(std::string_view piece, bool from_start, TakePiece next) const override {
    for (std::size_t begin = 0; begin < piece.size();) {
      std::size_t end = begin;
      for (std::size_t i = 0; i < characters_ && end < piece.size(); ++i) end += character_at(piece, end).bytes;
      next(piece.substr(begin, end - begin), from_start && begin == 0);
      begin = end;
    }
  }

 private:
  std::size_t characters_;
};

/// A visible character stands for blanks, and begins words.
class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(JsonObject& object) {
    append(replacement_, one_character(object, "replacement", "\xe2\x96\x81"));
    const std::string scheme = raw_text(object, "prepend_scheme", "always");
    if (scheme != "always" && scheme != "first" && scheme != "never") object.refuse("prepend_scheme", "always, first or never");
    always_ = scheme == "always";
    first_ = scheme == "first";
    if (!object.flag("add_prefix_space", true)) always_ = first_ = false;
    split_ = object.flag("split", true);
  }
  void cut(std::string_view piece, bool from_start, TakePiece next) const override {
    std::string text;
    text.reserve(piece.size() + piece.size() / 2);
    for (const char each : piece) {
      if (each == ' ') text += replacement_;
      else text += each;
    }
    if ((always_ || (first_ && from_start)) && !text.starts_with(replacement_)) text.insert(0, replacement_);
    if (!split_) return next(text, from_start);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find(replacement_, begin + 1), text.size());
      next(std::string_view(text).substr(begin, end - begin), from_start && begin == 0);
      begin = end;
    }
  }

 private:
  std::string replacement_;
  bool always_ = false;
  bool first_ = false;
  bool split_ = true;
};

/// GPT-2's way: words with the blank before them, whose bytes are then written as characters.
class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(JsonObject& object) : prefix_blank_(object.flag("add_prefix_space", true)) {
    if (object.flag("use_regex", true))
      words_ = Pattern::expression(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  }
  void leave_bytes() { leaves_bytes_ = true; }
  void cut(std::string_view piece, bool from_start, TakePiece next) const override {
    std::string prefixed;
    if (prefix_blank_ && piece.front() != ' ') piece = prefixed.append(" ").append(piece);
    const auto pass = [&](Place place, bool) {
      const std::string_view word = piece.substr(place.begin, place.end - place.begin);
      if (leaves_bytes_) return next(word, from_start && place.begin == 0);
      std::string characters;
      append_byte_characters(characters, word);
      next(characters, from_start && place.begin == 0);
    };
    if (words_) words_->each_place(piece, pass);
    else pass(Place{0, piece.size()}, false);
  }

 private:
  bool prefix_blank_;
  bool leaves_bytes_ = false;
  std::optional<Pattern> words_;
};

std::vector<std::unique_ptr<PreTokenizer>> read_pre_tokenizers(JsonObject& object) {
  std::vector<std::unique_ptr<PreTokenizer>> all;
  const std::string type = raw_text(object, "type");
  if (type == "Split") {
    const Behavior behavior = behavior_of(object);
    all.push_back(std::make_unique<Split>(pattern(object, "pattern"), behavior, object.flag("invert", false)));
  } else if (type == "ByteLevel") {
    all.push_back(std::make_unique<ByteLevel>(object));
  } else if (type == "Metaspace") {
    all.push_back(std::make_unique<Metaspace>(object));
  } else if (type == "Whitespace") {
    all.push_back(std::make_unique<Whitespace>());
  } else if (type == "WhitespaceSplit") {
    all.push_back(std::make_unique<AtCharacters>(is_white_space, Behavior::removed));
  } else if (type == "BertPreTokenizer") {
    all.push_back(std::make_unique<AtCharacters>(is_white_space, Behavior::removed));
    all.push_back(std::make_unique<AtCharacters>(is_punctuation, Behavior::isolated));
  } else if (type == "Punctuation") {
    all.push_back(std::make_unique<AtCharacters>(is_punctuation, behavior_of(object, "Isolated")));
  } else if (type == "Digits") {
    all.push_back(std::make_unique<AtCharacters>(
        is_numeric, object.flag("individual_digits", false) ? Behavior::isolated : Behavior::contiguous));
  } else if (type == "CharDelimiterSplit") {
    std::string delimiter;
    append(delimiter, one_character(object, "delimiter"));
    all.push_back(std::make_unique<Split>(Pattern::literal(delimiter), Behavior::removed, false));
  } else if (type == "FixedLength") {
    all.push_back(
        std::make_unique<FixedLength>(object.integer<std::size_t>("length", 1, std::numeric_limits<std::uint32_t>::max(), 5)));
  } else {
    object.refuse("type",
                  "Sequence, Split, ByteLevel, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, Digits, "
                  "CharDelimiterSplit or FixedLength");
  }
  return all;
}

}  // namespace

PreTokenizers::PreTokenizers(const JsonObject& object) {
  each_part(object, "pretokenizers", [&](JsonObject& part) {
    for (auto& each : read_pre_tokenizers(part)) all_.push_back(std::move(each));
  });
}

void PreTokenizers::cut_from(std::size_t index, std::string_view piece, bool from_start, TakePiece next) const {
  if (piece.empty()) return;
  if (index == all_.size()) return next(piece, from_start);
  all_[index]->cut(piece, from_start, [&](std::string_view part, bool starts) { cut_from(index + 1, part, starts, next); });
}

bool PreTokenizers::leave_bytes() {
  auto* last = all_.empty() ? nullptr : dynamic_cast<ByteLevel*>(all_.back().get());
  if (last != nullptr) last->leave_bytes();
  return last != nullptr;
}

}  // namespace tsprun::detail::text
