// Fresh weights: N(0, 0.02²), with W_O and W_2 divided by √(2L); gains 1, biases 0 (Fresh in place.h). A weight is a pure
// function of seed, parameter name and the element's index in the whole tensor, so every rank draws only its slice and the model
// doesn't depend on the layout.
#pragma once

#include "layers/io/safetensors.h"
#include "layers/parameters/parameters.h"
#include "tsprun/types.h"

#include <cstdint>
#include <string_view>
#include <utility>

namespace tsprun::detail {

/// Returns the standard deviation of a matrix' fresh elements.
double fresh_deviation(ParameterRole role, std::size_t layers);

/// Returns two independent draws of N(0, 1): those of elements 2·pair and 2·pair + 1 of the tensor with that name. Uses only
/// basic IEEE operations, so it gives the same bits on every machine.
std::pair<double, double> normal_pair(std::uint64_t seed, std::uint64_t name_hash, std::uint64_t pair);

/// Returns the number that stands for a tensor's name in the counter of normal_pair().
std::uint64_t name_hash(std::string_view name);

/// Fills contiguous memory of block.rows × block.columns elements (f64, f32, bf16) with a block of a fresh parameter. Values are
/// drawn in f64 and rounded once. `layers`: of the whole model. Throws Error(refused) if the block doesn't lie in the parameter
/// or fit the memory.
void fill_fresh(const Parameter& parameter, std::size_t layers, std::uint64_t seed, const safetensors::Rectangle& block,
                Buffer into);

}  // namespace tsprun::detail
