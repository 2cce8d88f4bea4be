// Where a model drops elements, and what each draw follows from: (seed, step, layer, site, the token's number b·S + s in the
// whole batch, channel); attention probabilities (seed, step, layer, site, sequence b, query head, query position, key position).
// So the same elements fall under every layout, whatever a pass keeps, and in its backward pass.
#pragma once

#include "core/kernels/dropout.h"
#include "core/kernels/flash.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tsprun {

enum class DropoutSite : std::uint8_t {
  embedding,  ///< layer 0: the first residual
  attention,  ///< a sublayer's result, its bias included, before it is added to the residual
  mlp,
  probabilities  ///< of attention, inside of it
};

/// Of one training step, on one rank.
class DropoutDraws {
 public:
  /// `tokens`: the numbers of the rank's residual rows; `first_sequence`: of its sequences' first.
  DropoutDraws(std::uint64_t seed, std::uint64_t step, std::vector<std::uint64_t> tokens, std::size_t first_sequence)
      : key_(kernels::split_mix(seed, step)), tokens_(std::move(tokens)), first_sequence_(first_sequence) {}

  const std::vector<std::uint64_t>& tokens() const { return tokens_; }
  kernels::Dropout at(std::size_t layer, DropoutSite site, double probability) const {
    return {.probability = probability,
            .key = kernels::split_mix(kernels::split_mix(key_, layer), static_cast<std::uint64_t>(site))};
  }
  /// Of attention probabilities.
  kernels::AttentionDropout of_attention(std::size_t layer, double probability) const {
    return {.draw = at(layer, DropoutSite::probabilities, probability), .first_sequence = first_sequence_};
  }

 private:
  std::uint64_t key_;
  std::vector<std::uint64_t> tokens_;
  std::size_t first_sequence_;
};

}  // namespace tsprun
