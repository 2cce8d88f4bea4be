// A tokenizer's model: cuts words, as the pre-tokenizers make them, into tokens of the vocabulary.
#pragma once

#include "layers/io/data.h"
#include "layers/text/vocabulary.h"
#include "layers/text/word_cache.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

class JsonCursor;

/// A model. Threads may share it, each with a cache of its own.
class Model {
 public:
  virtual ~Model() = default;
  /// Appends a word's ids. Precondition: the word isn't empty, and is UTF-8. Throws Error(refused) if it needs a token for what
  /// is unknown, and there is none.
  virtual void encode(std::string_view word, WordCache& cache, std::vector<Token>& ids) const = 0;
};

}  // namespace tsprun::detail::text
