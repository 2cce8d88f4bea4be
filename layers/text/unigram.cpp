// The best path to each byte, from left to right; then back along it.
#include "layers/text/unigram.h"

#include "layers/text/characters.h"
#include "layers/text/json_cursor.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace tsprun::detail::text {

namespace {

constexpr double kUnknownPenalty = 10;
// A longer piece would make the time grow with the square of the text.
constexpr std::size_t kLongestPiece = 1024;

}  // namespace

Unigram::Unigram(Vocabulary& vocabulary, JsonCursor& cursor, bool byte_fallback)
    : vocabulary_(vocabulary), byte_fallback_(byte_fallback) {
  double lowest = std::numeric_limits<double>::infinity();
  cursor.each_entry("the list of pieces", [&] {
    cursor.take('[', "a piece with its score");
    const std::string_view piece = cursor.string("a piece");
    if (scores_.size() > kLargestId) cursor.refuse(fmt::format("at most {} pieces", kLargestId));
    const auto id = static_cast<Token>(scores_.size());
    if (piece.size() > kLongestPiece) cursor.refuse(fmt::format("a piece of at most {} bytes before this", kLongestPiece));
    vocabulary.add(piece, id);
    if (!piece.empty() && !trie_.add(piece, id))
      cursor.refuse("fewer and shorter pieces: their tree has more than 16777216 nodes");
    cursor.take(',', "a comma");
    scores_.push_back(cursor.number("a score"));
    lowest = std::min(lowest, scores_.back());
    cursor.take(']', "the end of a piece");
  });
  unknown_score_ = lowest - kUnknownPenalty;
  for (unsigned byte = 0; byte < 256; ++byte) bytes_[byte] = vocabulary.find(fmt::format("<0x{:02X}>", byte));
}

Token Unigram::unknown() const {
  if (unknown_ == kNone)
    throw Error(Cause::refused, "the tokenizer has no unk_id, but the text has a character that no piece has");
  return unknown_;
}

void Unigram::encode(std::string_view word, WordCache& cache, std::vector<Token>& ids) const {
  if (const auto known = cache.find(word); !known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  constexpr std::size_t kNowhere = ~std::size_t{0};
  struct Best {
    double score = 0;
    std::size_t begin = kNowhere;  // of the last piece
    Token id = kNone;
  };
  std::vector<Best> best(word.size() + 1);
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t bytes = character_at(word, at).bytes;
    const double score = best[at].score;
    bool is_known = false;
    const auto offer = [&](std::size_t length, double piece_score, Token id) {
      Best& end = best[at + length];
      if (end.begin == kNowhere || piece_score + score > end.score) end = {piece_score + score, at, id};
    };
    trie_.each_from(word, at, [&](std::size_t length, Token id) {
      offer(length, scores_[static_cast<std::size_t>(id)], id);
      is_known |= length == bytes;
    });
    if (!is_known) offer(bytes, unknown_score_, unknown());
    at += bytes;
  }
  // Unknown characters that follow each other are one token.
  std::vector<Token> reversed;
  std::size_t unknown_end = kNowhere;
  for (std::size_t end = word.size(); end > 0; end = best[end].begin) {
    const bool is_unknown = best[end].id == unknown_;
    if (is_unknown && unknown_end == kNowhere) unknown_end = end;
    if (is_unknown) continue;
    if (unknown_end != kNowhere) append_unknown(word.substr(end, unknown_end - end), reversed);
    unknown_end = kNowhere;
    reversed.push_back(best[end].id);
  }
  if (unknown_end != kNowhere) append_unknown(word.substr(0, unknown_end), reversed);
  const std::size_t before = ids.size();
  ids.insert(ids.end(), reversed.rbegin(), reversed.rend());
  cache.keep(word, std::span(ids).subspan(before));
}

void Unigram::append_unknown(std::string_view part, std::vector<Token>& reversed) const {
  if (const Token whole = vocabulary_.find(part); whole != kNone) return reversed.push_back(whole);
  const auto byte = [&](char each) { return bytes_[static_cast<unsigned char>(each)]; };
  if (byte_fallback_ && std::ranges::none_of(part, [&](char each) { return byte(each) == kNone; })) {
    for (auto each = part.rbegin(); each != part.rend(); ++each) reversed.push_back(byte(*each));
    return;
  }
  reversed.push_back(unknown());
}

}  // namespace tsprun::detail::text
