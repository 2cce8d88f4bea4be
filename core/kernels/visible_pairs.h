// Pairs of queries and keys that attention computes, which its FLOPs follow from.
#pragma once

#include "core/kernels/flash.h"

#include <cstddef>

namespace tsprun::detail::kernels {

/// Returns the number of query-key pairs that a mask leaves to one head, in sequences 0 to `batch` − 1 together. It takes time
/// for each document of theirs, not for each position.
double visible_pairs(const Mask& mask, std::size_t batch, std::size_t queries, std::size_t keys);

}  // namespace tsprun::detail::kernels
