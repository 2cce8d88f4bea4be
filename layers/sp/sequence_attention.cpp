// What the exchanges have in common: those that take q, k, v as the tokens have them.
#include "layers/sp/sequence_attention.h"

#include <stdexcept>

namespace tsp {

SequenceAttention::Form SequenceAttention::form(const TokenLayout& tokens) const {
  const std::size_t d = tokens.rope_table().size(1);
  return {.q = {tokens.batch(), tokens.local(), heads_.queries, d},
          .kv = {tokens.batch(), tokens.local(), heads_.kv, d},
          .lse = {tokens.batch(), heads_.queries, tokens.local()}};
}

void SequenceAttention::exchange(const TokenLayout&, const Tensor&, const Tensor&, const Tensor&, const ConstTensor&,
                                 const ConstTensor&, const ConstTensor&) {
  throw std::logic_error("this attention takes q, k, v as the tokens have them");
}

void SequenceAttention::begin(const TokenLayout&, const ConstTensor&, const ConstTensor&) {}

}  // namespace tsp
