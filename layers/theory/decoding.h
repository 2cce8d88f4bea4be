// Exact traffic of generating text (layers/decode.h): payload bytes received by all ranks together, by purpose. The prompt's pass
// moves what a forward pass over its tokens moves, and K/V to the ranks that cache them; a token after it moves activations
// alone.
#pragma once

#include "layers/theory/layouts.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::theory {

/// How the sums of a sublayer's result, h elements, reach all ranks.
enum class TokenSum : std::uint8_t {
  in_chunks,  ///< each rank sums a part, which the others get: 2Nρ
  one_shot    ///< each rank gets everything and sums it itself: (W−1)·N on each of W ranks
};

/// For the token at `position`, from 0. Depends on the position only in which rank caches it, `position` modulo the sequence
/// axis, and on the parameters not at all: per layer q, partial attention and its log-sum-exp, two sums of h elements
/// (`activations`), new K and V (`kv`); the token's row (`embedding`) and its logits (`head`). Batch and sequence of the setting
/// are of no account.
PurposeBytes token_traffic(const MeshSetting& of, std::size_t position, TokenSum sum);
/// For a prompt: all of its tokens but the last by the forward pass without a head, the last as a token. At least one.
PurposeBytes prompt_traffic(const MeshSetting& of, std::span<const std::int32_t> ids, TokenSum sum);
/// For `count` tokens from `first` on.
PurposeBytes tokens_traffic(const MeshSetting& of, std::size_t first, std::size_t count, TokenSum sum);

}  // namespace tsprun::theory
