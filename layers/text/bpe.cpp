// Short words by looking for the best pair again and again, long ones with a heap and a linked list.
#include "layers/text/bpe.h"

#include "layers/io/json_text.h"
#include "layers/text/byte_alphabet.h"
#include "layers/text/characters.h"
#include "layers/text/json_cursor.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <future>
#include <limits>
#include <queue>
#include <utility>

namespace tsprun::detail::text {

namespace {

constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
// Above this many symbols a heap is faster.
constexpr std::size_t kFew = 48;
constexpr std::uint32_t kMergesAhead = 32;
constexpr std::size_t kSeamBits = std::size_t{1} << 22;

std::size_t seam_of(Token left, Token right) {
  const std::uint64_t mixed =
      (std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right)) * 0x9e3779b97f4a7c15U;
  return mixed >> 32 & (kSeamBits - 1);
}

}  // namespace

void Merges::resize(std::size_t slots) {
  const std::vector<Merge> old = std::exchange(slots_, std::vector<Merge>(slots, Merge{kFree, 0, 0}));
  count_ = 0;
  for (const Merge& each : old)
    if (each.pair != kFree)
      add(static_cast<Token>(each.pair >> 32), static_cast<Token>(each.pair & 0xffffffff), each.rank, each.result);
}

void Merges::reserve(std::size_t merges) { resize(std::bit_ceil(std::max<std::size_t>(merges + merges / 2, 16))); }

void Merges::add(Token left, Token right, std::uint32_t rank, Token result) {
  if (4 * (count_ + 1) > 3 * slots_.size()) resize(2 * slots_.size());
  const std::uint64_t pair = pair_of(left, right);
  std::size_t at = place(pair);
  while (slots_[at].pair != kFree && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  if (slots_[at].pair == kFree) ++count_;
  slots_[at] = {pair, rank, result};
}

Bpe::Bpe(const Vocabulary& vocabulary, BpeOptions options)
    : vocabulary_(vocabulary), options_(std::move(options)), unknown_(vocabulary.find(options_.unknown)) {
  if (options_.unknown.empty()) unknown_ = kNone;
  for (unsigned byte = 0; byte < 256; ++byte) bytes_[byte] = vocabulary.find(fmt::format("<0x{:02X}>", byte));
  if (!options_.continuing_prefix.empty() || !options_.end_suffix.empty()) return;
  for (char32_t code = 0; code < kByteAlphabetEnd; ++code) {
    std::string character;
    append(character, code);
    characters_.push_back(vocabulary.find(character));
  }
  const bool has_bytes = std::ranges::find(bytes_, kNone) == bytes_.end();
  if (!options_.bytes_are_characters && (has_bytes || !options_.byte_fallback)) seams_.resize(kSeamBits / 64);
}

void Bpe::read_merges(JsonCursor& cursor) {
  merges_.reserve(vocabulary_.size());
  // A merge is looked up half a ring after it was read; what that reads of the vocabulary is fetched meanwhile: most of the time
  // would go into waiting for it. Of what was looked up, a thread of its own adds one batch while the next is read.
  constexpr std::uint32_t kHalf = kMergesAhead / 2;
  constexpr std::size_t kBatch = 8192;
  std::array<ReadMerge, kMergesAhead> ring;
  std::uint32_t read = 0;
  std::uint32_t added = 0;
  std::vector<KnownMerge> batch;
  std::future<void> adding;
  const auto at = [&](std::uint32_t rank) -> ReadMerge& { return ring[rank % kMergesAhead]; };
  const auto fetch_texts = [&](std::uint32_t rank) {
    vocabulary_.fetch_text(at(rank).left_hash);
    vocabulary_.fetch_text(at(rank).right_hash);
  };
  const auto add_batch = [&] {
    if (adding.valid()) adding.get();
    const std::uint32_t first = std::exchange(added, added + static_cast<std::uint32_t>(batch.size()));
    adding = std::async([this, first, merges = std::exchange(batch, {})] { add(merges, first); });
  };
  const auto look_up = [&](std::uint32_t rank) {
    if (batch.empty()) batch.reserve(kBatch);
    batch.push_back(this->look_up(at(rank), cursor));
    if (batch.size() == kBatch) add_batch();
  };
  const auto finish = [&](std::string_view right) {
    ReadMerge& merge = at(read);
    merge.right = right;
    merge.left_hash = hash_of(merge.left);
    merge.right_hash = hash_of(merge.right);
    merge.end = cursor.at();
    vocabulary_.fetch_place(merge.left_hash);
    vocabulary_.fetch_place(merge.right_hash);
    if (read >= kHalf / 2) fetch_texts(read - kHalf / 2);
    if (read >= kHalf) look_up(read - kHalf);
    ++read;
  };
  cursor.each_entry("the list of merges", [&] {
    if (cursor.peek() == '[') {
      cursor.take('[', "a pair of tokens");
      at(read).left = cursor.string("a token");
      cursor.take(',', "a comma");
      finish(cursor.string("a token"));
      cursor.take(']', "the end of a pair of tokens");
      return;
    }
    const std::string_view both = cursor.string("a merge: \"a b\" or [\"a\", \"b\"]");
    if (both.starts_with("#version")) return;
    const std::size_t blank = both.find(' ');
    if (blank == std::string_view::npos || both.find(' ', blank + 1) != std::string_view::npos)
      cursor.refuse("a merge of two tokens with a blank between them before this");
    at(read).left = both.substr(0, blank);
    finish(both.substr(blank + 1));
  });
  for (std::uint32_t rank = read - std::min(read, kHalf); rank < read; ++rank) look_up(rank);
  add_batch();
  adding.get();
}

Bpe::KnownMerge Bpe::look_up(const ReadMerge& merge, const JsonCursor& cursor) {
  const std::size_t prefix = options_.continuing_prefix.size();
  const std::string& left = merge.left;
  const std::string& right = merge.right;
  const auto id = [&](std::string_view token, std::uint64_t hash) {
    const Token found = token.empty() ? kNone : vocabulary_.find(token, hash);
    if (found == kNone) {
      cursor.refuse(fmt::format("a merge of tokens that the vocabulary has, whose result it has, too, before this: it lacks {}",
                                shown(token)),
                    merge.end);
    }
    return found;
  };
  const Token left_id = id(left, merge.left_hash);
  const Token right_id = id(right, merge.right_hash);
  if (right.size() < prefix) cursor.refuse("a second token that begins with continuing_subword_prefix before this", merge.end);
  // Most vocabularies have the results in the order of the merges, of which several may have one result.
  const std::string_view end = std::string_view(right).substr(prefix);
  const auto is_result = [&](Token token) {
    const std::string_view text = vocabulary_.text(token).value_or("");
    return text.size() == left.size() + end.size() && text.starts_with(left) && text.ends_with(end);
  };
  if (!is_result(last_result_) && !is_result(++last_result_)) {
    const std::string result = left + std::string(end);
    last_result_ = id(result, hash_of(result));
  }
  return {left_id, right_id, last_result_};
}

void Bpe::add(std::span<const KnownMerge> merges, std::uint32_t rank) {
  for (std::size_t i = 0; i < merges.size(); ++i) {
    if (i + kMergesAhead < merges.size()) merges_.fetch(merges[i + kMergesAhead].left, merges[i + kMergesAhead].right);
    merges_.add(merges[i].left, merges[i].right, rank++, merges[i].result);
    note_seam(merges[i]);
  }
}

/// Notes between which characters a merge's seam lies.
void Bpe::note_seam(const KnownMerge& merge) {
  if (seams_.empty()) return;
  const std::string_view left = *vocabulary_.text(merge.left);
  const std::string_view right = *vocabulary_.text(merge.right);
  // Merges of tokens that aren't characters of the text, or made of some, would make seams unknown.
  const auto is_made = [&](Token token) { return token == unknown_ || std::ranges::find(bytes_, token) != bytes_.end(); };
  const auto may_be_made = [&](std::string_view token) { return token.starts_with('<') || token == options_.unknown; };
  if ((may_be_made(left) && is_made(merge.left)) || (may_be_made(right) && is_made(merge.right))) return seams_.clear();
  std::string character;
  append(character, character_before(left, left.size()).code);
  const Token before = vocabulary_.find(character);
  const Token after = vocabulary_.find(right.substr(0, character_at(right, 0).bytes));
  if (before == kNone || after == kNone) return;
  const std::size_t seam = seam_of(before, after);
  seams_[seam / 64] |= std::uint64_t{1} << seam % 64;
}

Token Bpe::unknown() const {
  if (unknown_ == kNone)
    throw Error(Cause::refused, fmt::format("the tokenizer's unk_token {} isn't in its vocabulary, but the text needs it",
                                            shown(options_.unknown)));
  return unknown_;
}

/// Returns the token of one character, kNone if it has none, and how it is spelled in the vocabulary.
Token Bpe::symbol(std::string_view character, bool first, bool last, std::string& spelled) const {
  spelled.clear();
  if (!first) spelled += options_.continuing_prefix;
  spelled += character;
  if (last) spelled += options_.end_suffix;
  return vocabulary_.find(spelled);
}

template <class Put>
void Bpe::each_symbol(std::string_view text, const Put& put) const {
  std::string spelled;
  bool pending = false;  // a token for what is unknown, not yet put
  std::size_t pending_at = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = character_at(text, at);
    const Token id = code < characters_.size() ? characters_[code]
                                               : symbol(text.substr(at, bytes), at == 0, at + bytes == text.size(), spelled);
    if (id != kNone) {
      if (std::exchange(pending, false)) put(unknown(), pending_at);
      put(id, at);
      at += bytes;
      continue;
    }
    if (code < characters_.size()) spelled = text.substr(at, bytes);
    const auto byte = [&](char each) { return bytes_[static_cast<unsigned char>(each)]; };
    if (options_.byte_fallback && std::ranges::none_of(spelled, [&](char each) { return byte(each) == kNone; })) {
      for (std::size_t i = 0; i < spelled.size(); ++i) put(byte(spelled[i]), at + std::min(i, bytes - 1));
    } else if (!options_.unknown.empty()) {
      if (pending && !options_.fuse_unknown) put(unknown(), pending_at);
      if (!pending || !options_.fuse_unknown) pending_at = at;
      pending = true;
    }
    at += bytes;
  }
  if (pending) put(unknown(), pending_at);
}

void Bpe::encode(std::string_view word, WordCache& cache, std::vector<Token>& ids) const {
  if (!seams_.empty()) {
    const Token whole = options_.ignore_merges && word.size() <= vocabulary_.longest() ? vocabulary_.find(word) : kNone;
    if (whole != kNone) ids.push_back(whole);
    else encode_by_seams(word, cache, ids);
    return;
  }
  if (const auto known = cache.find(word); !known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  std::string characters;
  std::string_view text = word;
  if (options_.bytes_are_characters) {
    append_byte_characters(characters, word);
    text = characters;
  }
  const std::size_t before = ids.size();
  const Token whole = options_.ignore_merges && text.size() <= vocabulary_.longest() ? vocabulary_.find(text) : kNone;
  if (whole != kNone) {
    ids.push_back(whole);
  } else {
    std::vector<Token> symbols;
    symbols.reserve(word.size());
    each_symbol(text, [&](Token id, std::size_t) { symbols.push_back(id); });
    merge(symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }
  cache.keep(word, std::span(ids).subspan(before));
}

void Bpe::encode_by_seams(std::string_view word, WordCache& cache, std::vector<Token>& ids) const {
  std::vector<Token> part;
  std::size_t begin = 0;
  const auto finish = [&](std::size_t end) {
    if (part.size() > 1) {
      const std::string_view text = word.substr(begin, end - begin);
      if (const auto known = cache.find(text); !known.empty()) {
        part.assign(known.begin(), known.end());
      } else {
        merge(part);
        cache.keep(text, part);
      }
    }
    ids.insert(ids.end(), part.begin(), part.end());
    part.clear();
  };
  each_symbol(word, [&](Token id, std::size_t at) {
    if (!part.empty()) {
      const std::size_t seam = seam_of(part.back(), id);
      if ((seams_[seam / 64] >> seam % 64 & 1) == 0) finish(at);
    }
    if (part.empty()) begin = at;
    part.push_back(id);
  });
  finish(word.size());
}

void Bpe::merge(std::vector<Token>& symbols) const {
  if (symbols.size() <= kFew) merge_few(symbols);
  else merge_many(symbols);
}

void Bpe::merge_few(std::vector<Token>& symbols) const {
  std::array<std::uint32_t, kFew> ranks{};
  std::array<Token, kFew> results{};
  std::size_t count = symbols.size();
  const auto look = [&](std::size_t at) {
    const Merges::Merge* merge = at + 1 < count ? merges_.find(symbols[at], symbols[at + 1]) : nullptr;
    ranks[at] = merge == nullptr ? kNoRank : merge->rank;
    results[at] = merge == nullptr ? kNone : merge->result;
  };
  for (std::size_t at = 0; at < count; ++at) look(at);
  while (count > 1) {
    const std::size_t best = static_cast<std::size_t>(
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count)) - ranks.begin());
    if (ranks[best] == kNoRank) break;
    symbols[best] = results[best];
    for (std::size_t at = best + 1; at + 1 < count; ++at) {
      symbols[at] = symbols[at + 1];
      ranks[at] = ranks[at + 1];
      results[at] = results[at + 1];
    }
    --count;
    look(best);
    if (best > 0) look(best - 1);
  }
  symbols.resize(count);
}

void Bpe::merge_many(std::vector<Token>& symbols) const {
  constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();
  if (symbols.size() >= kEnd) throw Error(Cause::refused, "a word of more than 4,294,967,294 characters can't be tokenized");
  const auto count = static_cast<std::uint32_t>(symbols.size());
  std::vector<std::uint32_t> next(count);
  std::vector<std::uint32_t> previous(count);
  // Rank in the upper half, place in the lower: the best merge first, of equals the leftmost.
  std::vector<std::uint64_t> candidates;
  const auto candidate = [&](std::uint32_t at) {
    const Merges::Merge* merge = merges_.find(symbols[at], symbols[next[at]]);
    if (merge != nullptr) candidates.push_back(std::uint64_t{merge->rank} << 32 | at);
    return merge != nullptr;
  };
  for (std::uint32_t at = 0; at < count; ++at) {
    next[at] = at + 1 < count ? at + 1 : kEnd;
    previous[at] = at > 0 ? at - 1 : kEnd;
    if (next[at] != kEnd) candidate(at);
  }
  const std::greater<> later;
  std::ranges::make_heap(candidates, later);
  while (!candidates.empty()) {
    std::ranges::pop_heap(candidates, later);
    const std::uint64_t best = candidates.back();
    candidates.pop_back();
    const auto at = static_cast<std::uint32_t>(best);
    if (symbols[at] == kNone || next[at] == kEnd) continue;
    const std::uint32_t right = next[at];
    const Merges::Merge* merge = merges_.find(symbols[at], symbols[right]);
    if (merge == nullptr || merge->rank != best >> 32) continue;  // the pair isn't what it was
    symbols[at] = merge->result;
    symbols[right] = kNone;
    next[at] = next[right];
    if (next[at] != kEnd) {
      previous[next[at]] = at;
      if (candidate(at)) std::ranges::push_heap(candidates, later);
    }
    if (previous[at] != kEnd && candidate(previous[at])) std::ranges::push_heap(candidates, later);
  }
  std::erase(symbols, kNone);
}

}  // namespace tsprun::detail::text
