// What a tokenizer.json holds.
#pragma once

#include "layers/text/added_tokens.h"
#include "layers/text/decoders.h"
#include "layers/text/model.h"
#include "layers/text/normalizers.h"
#include "layers/text/pre_tokenizers.h"
#include "layers/text/vocabulary.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::text {

struct TokenizerParts {
  Vocabulary vocabulary;
  std::unique_ptr<Model> model;  // borrows the vocabulary
  AddedTokens added;
  std::unique_ptr<Normalizer> normalizer;  // null: none
  PreTokenizers pre_tokenizers;
  std::vector<Token> before;  // the special tokens around a text
  std::vector<Token> behind;
  Decoder decoder;
};

/// Reads the text of a tokenizer.json; `where` names it in messages. Throws Error(refused).
std::shared_ptr<const TokenizerParts> read_tokenizer(std::string_view json, const std::string& where);

}  // namespace tsprun::detail::text
