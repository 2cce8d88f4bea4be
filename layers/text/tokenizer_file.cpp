// Reads tokenizer.json: vocabulary and merges by JsonCursor, since they are long, all else as a tree.
#include "layers/io/json_object.h"
#include "layers/text/bpe.h"
#include "layers/text/fields.h"
#include "layers/text/json_cursor.h"
#include "layers/text/tokenizer_parts.h"
#include "layers/text/unigram.h"
#include "layers/text/word_piece.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace tsprun::detail::text {

namespace {

/// Places of the long values, and the rest of the file with null in their stead.
struct Outline {
  std::string rest;
  std::optional<std::size_t> vocabulary;
  std::optional<std::size_t> merges;
};

Outline outline_of(std::string_view json, const std::string& where) {
  Outline outline;
  JsonCursor cursor(json, where);
  std::size_t done = 0;
  const auto cut = [&](std::optional<std::size_t>& place) {
    cursor.peek();
    place = cursor.at();
    outline.rest.append(json.substr(done, cursor.at() - done)).append("null");
    cursor.skip();
    done = cursor.at();
  };
  cursor.each_field("an object, as Hugging Face's tokenizers write it", [&](std::string_view name) {
    if (name != "model" || cursor.peek() != '{') return cursor.skip();
    cursor.each_field("the model", [&](std::string_view field) {
      if (field == "vocab") cut(outline.vocabulary);
      else if (field == "merges") cut(outline.merges);
      else cursor.skip();
    });
  });
  outline.rest.append(json.substr(done));
  return outline;
}

class Reader {
 public:
  Reader(std::string_view json, const std::string& where)
      : json_(json),
        where_(where),
        outline_(outline_of(json, where)),
        tree_(parse_json(outline_.rest, where)),
        root_(tree_, where) {}

  std::shared_ptr<const TokenizerParts> read() {
    read_model(root_.inside("model"));
    if (root_.find("normalizer") != nullptr) parts_->normalizer = read_normalizer(root_.inside("normalizer"));
    read_added();
    if (root_.find("post_processor") != nullptr) read_post_processor(root_.inside("post_processor"));
    if (root_.find("decoder") != nullptr) parts_->decoder = Decoder(root_.inside("decoder"));
    return parts_;
  }

 private:
  JsonCursor cursor_at(const std::optional<std::size_t>& place, const char* field) {
    if (!place) throw Error(Cause::refused, fmt::format("{}: field \"model.{}\" is missing", where_, field));
    return {json_, where_, *place};
  }

  void read_model(JsonObject model) {
    // Old files don't say which type it is.
    const char* usual = outline_.merges                                                                        ? "BPE"
                        : outline_.vocabulary && JsonCursor(json_, where_, *outline_.vocabulary).peek() == '[' ? "Unigram"
                                                                                                               : "WordPiece";
    const std::string type = raw_text(model, "type", usual);
    if (root_.find("pre_tokenizer") != nullptr) parts_->pre_tokenizers = PreTokenizers(root_.inside("pre_tokenizer"));
    JsonCursor vocabulary = cursor_at(outline_.vocabulary, "vocab");
    if (type == "BPE") {
      read_vocabulary(vocabulary);
      if (model.number("dropout", 0, 1, 0) != 0)
        model.refuse("dropout", "null or 0, since with dropout a text has other tokens each time");
      BpeOptions options{.unknown = raw_text(model, "unk_token", ""),
                         .continuing_prefix = raw_text(model, "continuing_subword_prefix", ""),
                         .end_suffix = raw_text(model, "end_of_word_suffix", ""),
                         .fuse_unknown = model.flag("fuse_unk", false),
                         .byte_fallback = model.flag("byte_fallback", false),
                         .ignore_merges = model.flag("ignore_merges", false),
                         .bytes_are_characters = parts_->pre_tokenizers.leave_bytes()};
      auto bpe = std::make_unique<Bpe>(parts_->vocabulary, std::move(options));
      JsonCursor merges = cursor_at(outline_.merges, "merges");
      bpe->read_merges(merges);
      parts_->model = std::move(bpe);
    } else if (type == "Unigram") {
      auto unigram = std::make_unique<Unigram>(parts_->vocabulary, vocabulary, model.flag("byte_fallback", false));
      if (model.find("unk_id") != nullptr)
        unigram->set_unknown(model.integer<Token>("unk_id", 0, static_cast<Token>(parts_->vocabulary.ids()) - 1));
      parts_->model = std::move(unigram);
    } else if (type == "WordPiece") {
      read_vocabulary(vocabulary);
      parts_->model = std::make_unique<WordPiece>(
          parts_->vocabulary, raw_text(model, "unk_token", "[UNK]"), raw_text(model, "continuing_subword_prefix", "##"),
          model.integer<std::size_t>("max_input_chars_per_word", 0, std::numeric_limits<std::uint32_t>::max(), 100), where_);
    } else {
      model.refuse("type", "BPE, Unigram or WordPiece");
    }
  }

  void read_vocabulary(JsonCursor& cursor) {
    const auto entries = static_cast<std::size_t>(std::count(json_.begin(), json_.end(), ':'));
    parts_->vocabulary.reserve(std::min<std::size_t>(entries, kLargestId + 1), json_.size() / 8);
    cursor.each_field("the vocabulary, {\"a\": 0, …}", [&](std::string_view token) {
      // The view goes with the next string, not with the next number.
      const auto id = static_cast<Token>(cursor.integer(kLargestId, "an id"));
      const std::size_t before = parts_->vocabulary.size();
      if (!parts_->vocabulary.add(token, id))
        cursor.refuse(parts_->vocabulary.find(token) == kNone ? "each id once before this" : "each token once before this");
      if (parts_->vocabulary.size() == before) cursor.refuse("each token once before this");
    });
  }

  void read_added() {
    const std::size_t count = root_.find("added_tokens") == nullptr ? 0 : root_.entries("added_tokens", 0, kLargestId);
    for (std::size_t i = 0; i < count; ++i) {
      JsonObject entry = root_.entry("added_tokens", i);
      AddedToken token;
      token.content = raw_text(entry, "content");
      token.special = entry.flag("special", false);
      token.single_word = entry.flag("single_word", false);
      token.strip_left = entry.flag("lstrip", false);
      token.strip_right = entry.flag("rstrip", false);
      token.normalized = entry.flag("normalized", !token.special);
      parts_->added.add(token, parts_->vocabulary);
      const Token id = parts_->added.find(token.content);
      if (id != kNone && entry.integer<Token>("id", 0, static_cast<Token>(kLargestId)) != id)
        entry.refuse("id", fmt::format("{}, which follows from vocabulary and order", id));
    }
    parts_->added.prepare(parts_->normalizer.get(), where_);
  }

  void read_post_processor(const JsonObject& object) {
    each_part(object, "processors", [&](JsonObject& part) {
      const std::string type = raw_text(part, "type");
      if (type == "ByteLevel") return;  // it changes offsets only
      if (type == "BertProcessing" || type == "RobertaProcessing")
        return put_around({pair_id(part, "cls")}, {pair_id(part, "sep")});
      if (type != "TemplateProcessing")
        part.refuse("type", "Sequence, ByteLevel, TemplateProcessing, BertProcessing or RobertaProcessing");
      std::vector<Token> before;
      std::vector<Token> behind;
      bool text = false;
      const std::size_t count = part.entries("single", 1, 1000);
      for (std::size_t i = 0; i < count; ++i) {
        JsonObject piece = part.entry("single", i);
        if (piece.find("Sequence") == nullptr) {
          JsonObject special = piece.inside("SpecialToken");
          const std::vector<Token> ids = special_ids(part, raw_text(special, "id"));
          std::vector<Token>& side = text ? behind : before;
          side.insert(side.end(), ids.begin(), ids.end());
          continue;
        }
        JsonObject sequence = piece.inside("Sequence");
        if (raw_text(sequence, "id") != "A" || std::exchange(text, true)) sequence.refuse("id", "the text \"A\", once");
      }
      if (!text) part.refuse("single", "an array with the text \"A\"");
      put_around(std::move(before), behind);
    });
  }

  void put_around(std::vector<Token> before, const std::vector<Token>& behind) {
    before.insert(before.end(), parts_->before.begin(), parts_->before.end());
    parts_->before = std::move(before);
    parts_->behind.insert(parts_->behind.end(), behind.begin(), behind.end());
  }

  static Token id_in(const nlohmann::json& value, JsonObject& object, std::string_view field) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargestId)
      object.refuse(field, fmt::format("ids from 0 to {}", kLargestId));
    return value.get<Token>();
  }

  /// Reads ["[SEP]", 102].
  static Token pair_id(JsonObject& object, std::string_view field) {
    const nlohmann::json* value = object.find(field);
    if (value == nullptr || !value->is_array() || value->size() != 2) object.refuse(field, "a token and its id");
    return id_in((*value)[1], object, field);
  }

  static std::vector<Token> special_ids(JsonObject& processor, const std::string& name) {
    JsonObject all = processor.inside("special_tokens");
    if (all.find(name) == nullptr) all.refuse(name, "an object with ids");
    JsonObject token = all.inside(name);
    const nlohmann::json* ids = token.find("ids");
    if (ids == nullptr || !ids->is_array()) token.refuse("ids", "an array");
    std::vector<Token> result;
    for (const nlohmann::json& id : *ids) result.push_back(id_in(id, token, "ids"));
    return result;
  }

  std::string_view json_;
  const std::string& where_;
  Outline outline_;
  nlohmann::json tree_;
  JsonObject root_;
  std::shared_ptr<TokenizerParts> parts_ = std::make_shared<TokenizerParts>();
};

}  // namespace

std::shared_ptr<const TokenizerParts> read_tokenizer(std::string_view json, const std::string& where) {
  return Reader(json, where).read();
}

}  // namespace tsprun::detail::text
