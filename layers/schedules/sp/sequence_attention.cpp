// Selects the exchange.
#include "layers/schedules/sp/sequence_attention.h"

#include "core/kernels/check.h"
#include "layers/layout/heads.h"
#include "transport/cause.h"

#include <stdexcept>

namespace tsprun::detail {

void SequenceAttention::exchange(const TokenLayout&, const AttentionHeads&, const ConstTensor&, const ConstTensor&,
                                 const ConstTensor&) {
  throw std::logic_error("this attention takes q, k, v as the tokens have them");
}

void SequenceAttention::exchange_queries(const TokenLayout&, const AttentionHeads&, const ConstTensor&) {
  throw std::logic_error("this attention takes q as the tokens have it");
}

namespace {

/// Returns whether the K/V heads are exactly those that the query heads read.
bool reads_all(const SequenceHeads& heads) {
  const auto& [group, first_query, first_kv] = heads.map;
  return heads.queries > 0 && group > 0 && first_query / group == first_kv &&
         (first_query + heads.queries - 1) / group + 1 == first_kv + heads.kv;
}

}  // namespace

std::unique_ptr<SequenceAttention> make_sequence_attention(SequenceExchange exchange, Rank& rank, Communicator& axis, DType dtype,
                                                           const SequenceHeads& heads) {
  if (!reads_all(heads)) throw std::invalid_argument("sequence attention: the K/V heads must be those that the query heads read");
  const SequenceAxis on{rank, axis, dtype, kernels::summed_in(dtype)};
  // On one rank all tokens are its own: the first step of ring attention is all there is to do.
  if (axis.size() == 1 || exchange == SequenceExchange::ring) return make_ring_attention(on, heads);
  if (exchange == SequenceExchange::gather) return make_gather_attention(on, heads);
  try {
    HeadCut(heads.queries, heads.queries, axis.size());
  } catch (const Error& error) {
    throw Error(Cause::refused, std::string("ulysses: ") + error.what());
  }
  return make_ulysses_attention(on, heads);
}

}  // namespace tsprun::detail
