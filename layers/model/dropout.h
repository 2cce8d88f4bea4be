// Where a model drops elements, and what each draw follows from: (seed, step, layer, site, the token's number b·S + s in the
// whole batch, channel). So the same elements fall under every layout, whatever a pass keeps, and in its backward pass.
#pragma once

#include "core/kernels/dropout.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tsp {

enum class DropoutSite : std::uint8_t {
  embedding,  ///< layer 0: the first residual
  attention,  ///< a sublayer's result, its bias included, before it is added to the residual
  mlp
};

/// Of one training step, on one rank.
class DropoutDraws {
 public:
  /// `tokens`: the numbers of the rank's residual rows.
  DropoutDraws(std::uint64_t seed, std::uint64_t step, std::vector<std::uint64_t> tokens)
      : key_(kernels::split_mix(seed, step)), tokens_(std::move(tokens)) {}

  const std::vector<std::uint64_t>& tokens() const { return tokens_; }
  kernels::Dropout at(std::size_t layer, DropoutSite site, double probability) const {
    return {.probability = probability,
            .key = kernels::split_mix(kernels::split_mix(key_, layer), static_cast<std::uint64_t>(site))};
  }

 private:
  std::uint64_t key_;
  std::vector<std::uint64_t> tokens_;
};

}  // namespace tsp
