// BERT's model: the longest token with which a word begins, then the longest that goes on, and so on.
#pragma once

#include "layers/text/byte_trie.h"
#include "layers/text/model.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

class WordPiece : public Model {
 public:
  /// Borrows `vocabulary`, which is complete. `prefix`: before tokens that go on; `most`: characters of a word, above which it is
  /// unknown. Throws Error(refused): a token that is too long, no token for what is unknown. `where` names the file.
  WordPiece(const Vocabulary& vocabulary, const std::string& unknown, const std::string& prefix, std::size_t most,
            const std::string& where);

  void encode(std::string_view word, WordCache& cache, std::vector<Token>& ids) const override;

 private:
  ByteTrie beginning_;
  ByteTrie going_on_;
  Token unknown_;
  std::size_t most_;
};

}  // namespace tsprun::detail::text
