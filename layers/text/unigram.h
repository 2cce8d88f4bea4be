// The unigram model of SentencePiece: the cut of a word whose pieces' scores have the largest sum.
#pragma once

#include "layers/text/byte_trie.h"
#include "layers/text/model.h"

#include <array>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

class Unigram : public Model {
 public:
  /// Reads the list of pieces with their scores, [["a", -1.5], …], into `vocabulary`, which it borrows. Throws Error(refused).
  Unigram(Vocabulary& vocabulary, JsonCursor& cursor, bool byte_fallback);
  /// Sets the piece for characters that no piece has.
  void set_unknown(Token id) { unknown_ = id; }

  void encode(std::string_view word, WordCache& cache, std::vector<Token>& ids) const override;

 private:
  Token unknown() const;
  void append_unknown(std::string_view part, std::vector<Token>& reversed) const;

  const Vocabulary& vocabulary_;
  ByteTrie trie_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  Token unknown_ = kNone;
  bool byte_fallback_;
  std::array<Token, 256> bytes_{};
};

}  // namespace tsprun::detail::text
