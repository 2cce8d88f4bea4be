// Derives the shapes of saved tensors from the tokens and the heads of a rank.
#include "layers/schedules/strategy.h"

namespace tsprun::detail {

SavedSizes SavedSizes::of(const TokenLayout& tokens, std::size_t query_heads, std::size_t kv_heads, std::size_t head_dim,
                          std::size_t intermediate) {
  const std::size_t B = tokens.batch();
  const std::size_t S = tokens.local();
  const std::size_t d = head_dim;
  return {.q = {B, S, query_heads, d},
          .kv = {B, S, kv_heads, d},
          .o = {B, S, query_heads, d},
          .lse = {B, query_heads, S},
          .query_product = {B, S, query_heads, d},
          .key_product = {B, S, kv_heads, d},
          .gate = {B, S, intermediate}};
}

}  // namespace tsprun::detail
