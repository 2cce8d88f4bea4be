// Two tries: of all tokens, and of those that go on, without their prefix.
#include "layers/text/word_piece.h"

#include "layers/io/json_text.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::text {

namespace {
// A longer token would make the time grow with the square of the word.
constexpr std::size_t kLongestToken = 1024;
}  // namespace

WordPiece::WordPiece(const Vocabulary& vocabulary, const std::string& unknown, const std::string& prefix, std::size_t most,
                     const std::string& where)
    : unknown_(vocabulary.find(unknown)), most_(most) {
  if (unknown_ == kNone)
    throw Error(Cause::refused, fmt::format("{}: field \"model.unk_token\": expected a token of the vocabulary, found {}", where,
                                            shown(unknown)));
  if (vocabulary.longest() > kLongestToken)
    throw Error(Cause::refused, fmt::format("{}: field \"model.vocab\": expected tokens of at most {} bytes, found one of {}",
                                            where, kLongestToken, vocabulary.longest()));
  for (std::size_t i = 0; i < vocabulary.ids(); ++i) {
    const auto id = static_cast<Token>(i);
    const std::string_view text = vocabulary.text(id).value_or("");
    if (vocabulary.find(text) != id || text.empty()) continue;
    bool room = beginning_.add(text, id);
    if (text.starts_with(prefix) && text.size() > prefix.size()) room &= going_on_.add(text.substr(prefix.size()), id);
    if (!room)
      throw Error(Cause::refused,
                  fmt::format("{}: field \"model.vocab\": the tokens' tree has more than {} nodes", where, ByteTrie::kMostNodes));
  }
}

void WordPiece::encode(std::string_view word, WordCache& cache, std::vector<Token>& ids) const {
  if (const auto known = cache.find(word); !known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const std::size_t before = ids.size();
  const auto characters =
      std::ranges::count_if(word, [](char each) { return (static_cast<unsigned char>(each) & 0xc0U) != 0x80U; });
  std::size_t at = static_cast<std::size_t>(characters) > most_ ? word.size() + 1 : 0;
  while (at < word.size()) {
    std::size_t longest = 0;
    Token id = kNone;
    (at == 0 ? beginning_ : going_on_).each_from(word, at, [&](std::size_t bytes, Token found) {
      longest = bytes;
      id = found;
    });
    ids.push_back(id);
    at += longest == 0 ? word.size() + 1 : longest;
  }
  if (at > word.size()) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
  cache.keep(word, std::span(ids).subspan(before));
}

}  // namespace tsprun::detail::text
