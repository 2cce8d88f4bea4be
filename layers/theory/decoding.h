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

/// Returns the traffic of the token at `position`, counted from 0. Per layer: q, partial attention and its log-sum-exp, and two
/// sums of h elements (`activations`), and new K and V (`kv`); once: the token's row (`embedding`) and its logits (`head`). It
/// depends on the position only through the rank that caches it (`position` modulo the sequence axis), and not at all on the
/// number of parameters. Ignores batch and sequence of the setting. `summed`: the bytes of one such sum, which depend on its
/// algorithm: all_reduced() of other.h, of all ranks together.
PurposeBytes token_traffic(const MeshSetting& of, std::size_t position, std::uint64_t summed);
/// Returns the traffic of a prompt: all tokens but the last by a forward pass without a head, the last as a token of its own.
/// `ids` holds at least one token.
PurposeBytes prompt_traffic(const MeshSetting& of, std::span<const std::int32_t> ids, std::uint64_t summed);
/// Returns the traffic of `count` tokens at positions `first`, `first` + 1, ….
PurposeBytes tokens_traffic(const MeshSetting& of, std::size_t first, std::size_t count, std::uint64_t summed);

}  // namespace tsprun::detail::theory
