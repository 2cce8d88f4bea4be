// A trie, walked where a token may begin; of those that begin at a place, the longest counts.
#include "layers/text/added_tokens.h"

#include "layers/io/json_text.h"
#include "layers/text/characters.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::text {

namespace {
// Longer ones would make the time grow with the square of the text.
constexpr std::size_t kLongestAdded = 1024;
}  // namespace

Token AddedTokens::add(const AddedToken& token, const Vocabulary& vocabulary) {
  if (token.content.empty()) return kNone;
  special_.try_emplace(token.content, token.special).first->second |= token.special;
  Token id = find(token.content);
  if (id != kNone && by_id_.at(id) == token) return kNone;
  if (id == kNone) id = vocabulary.find(token.content);
  if (id == kNone) id = static_cast<Token>(vocabulary.size() + beyond_++);
  if (!by_content_.contains(token.content)) searched_.push_back(token);
  by_content_[token.content] = id;
  by_id_[id] = token;
  ids_ = std::max(ids_, static_cast<std::size_t>(id) + 1);
  return id;
}

void AddedTokens::prepare(const Normalizer* normalizer, const std::string& where) {
  for (const AddedToken& token : searched_) {
    std::string content = token.content;
    bool from_start = true;
    if (token.normalized && normalizer != nullptr) normalizer->apply(content, from_start);
    texts_[find(token.content)] = content;
    if (content.empty()) continue;
    if (content.size() > kLongestAdded || !(token.normalized ? normalized_ : as_they_are_).add(content, find(token.content))) {
      throw Error(Cause::refused,
                  fmt::format("{}: field \"added_tokens\": expected tokens of at most {} bytes, and 16777216 in all, found {}",
                              where, kLongestAdded, shown(content)));
    }
  }
  searched_.clear();
}

void AddedTokens::cut(std::string_view text, bool normalized, FunctionRef<void(std::string_view, Token)> part) const {
  const ByteTrie& trie = normalized ? normalized_ : as_they_are_;
  std::size_t done = 0;
  for (std::size_t at = 0; !trie.empty() && at < text.size();) {
    if (!trie.begins_with(text[at])) {
      ++at;
      continue;
    }
    std::size_t length = 0;
    Token id = kNone;
    trie.each_from(text, at, [&](std::size_t bytes, Token found) {
      length = bytes;
      id = found;
    });
    if (length == 0) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + length;
    at = end;
    const AddedToken& token = by_id_.at(id);
    if (token.single_word && ((begin > 0 && is_word(character_before(text, begin).code)) ||
                              (end < text.size() && is_word(character_at(text, end).code))))
      continue;
    while (token.strip_left && begin > done && is_white_space(character_before(text, begin).code))
      begin -= character_before(text, begin).bytes;
    while (token.strip_right && end < text.size() && is_white_space(character_at(text, end).code))
      end += character_at(text, end).bytes;
    if (done < begin) part(text.substr(done, begin - done), kNone);
    part(text.substr(begin, end - begin), id);
    done = end;
  }
  if (done < text.size()) part(text.substr(done), kNone);
}

const std::string* AddedTokens::text(Token id) const {
  const auto at = texts_.find(id);
  return at == texts_.end() ? nullptr : &at->second;
}

Token AddedTokens::find(const std::string& content) const {
  const auto at = by_content_.find(content);
  return at == by_content_.end() ? kNone : at->second;
}

}  // namespace tsprun::detail::text
