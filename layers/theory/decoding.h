// Exact traffic of text generation (layers/model/decode.h): payload bytes received by all ranks together, by purpose.
//
// The pass over the prompt moves what a forward pass over its tokens moves, plus K and V to the ranks that cache them. Each later
// token moves only activations, never weights.
#pragma once

#include "layers/theory/layouts.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail::theory {

/// Algorithm of the all-reduce of a sublayer's result, h elements on each of W ranks. N is the bytes of h elements in the type of
/// sums, ρ = (W − 1)/W.
enum class TokenSum : std::uint8_t {
  in_chunks,  ///< each rank sums one chunk, which the others then receive: 2Nρ bytes a rank
  one_shot    ///< each rank receives all partial sums and adds them itself: (W − 1)·N bytes a rank
};

/// Returns the traffic of the token at `position`, counted from 0. Per layer: q, partial attention and its log-sum-exp, and two
/// sums of h elements (`activations`), and new K and V (`kv`); once: the token's row (`embedding`) and its logits (`head`). It
/// depends on the position only through the rank that caches it (`position` modulo the sequence axis), and not at all on the
/// number of parameters. Ignores batch and sequence of the setting.
PurposeBytes token_traffic(const MeshSetting& of, std::size_t position, TokenSum sum);
/// Returns the traffic of a prompt: all tokens but the last by a forward pass without a head, the last as a token of its own.
/// `ids` holds at least one token.
PurposeBytes prompt_traffic(const MeshSetting& of, std::span<const std::int32_t> ids, TokenSum sum);
/// Returns the traffic of `count` tokens at positions `first`, `first` + 1, ….
PurposeBytes tokens_traffic(const MeshSetting& of, std::size_t first, std::size_t count, TokenSum sum);

}  // namespace tsprun::detail::theory
