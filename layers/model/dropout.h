// Places at which a model drops elements, and the key of each draw: (seed, step, layer, site, the token's number b·S + s in the
// whole batch, channel); for attention probabilities (seed, step, layer, site, sequence b, query head, query position, key
// position). The same elements are dropped under every layout, with every recomputation mode, and in the backward pass.
#pragma once

#include "core/kernels/dropout.h"
#include "core/kernels/flash.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tsprun::detail {

/// Places in a model at which elements are dropped.
enum class DropoutSite : std::uint8_t {
  embedding,  ///< the embedded tokens; its layer is 0
  attention,  ///< attention's result with its bias, before it is added to the residual
  mlp,
  probabilities  ///< attention probabilities
};

/// Random draws for dropout in one training step on one rank.
class DropoutDraws {
 public:
  /// Takes the numbers in the whole batch of the rank's residual rows (`tokens`) and of the first of its sequences
  /// (`first_sequence`).
  DropoutDraws(std::uint64_t seed, std::uint64_t step, std::vector<std::uint64_t> tokens, std::size_t first_sequence)
      : key_(kernels::split_mix(seed, step)), tokens_(std::move(tokens)), first_sequence_(first_sequence) {}

  const std::vector<std::uint64_t>& tokens() const { return tokens_; }
  /// Returns the draws for one site of a layer.
  kernels::Dropout at(std::size_t layer, DropoutSite site, double probability) const {
    return {.probability = probability,
            .key = kernels::split_mix(kernels::split_mix(key_, layer), static_cast<std::uint64_t>(site))};
  }
  /// Returns the draws for attention probabilities of a layer.
  kernels::AttentionDropout of_attention(std::size_t layer, double probability) const {
    return {.draw = at(layer, DropoutSite::probabilities, probability), .first_sequence = first_sequence_};
  }

 private:
  std::uint64_t key_;
  std::vector<std::uint64_t> tokens_;
  std::size_t first_sequence_;
};

}  // namespace tsprun::detail
