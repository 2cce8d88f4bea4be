// What layers of one model compute that are unlike: a mix that no family has.
#pragma once

#include "layers/io/model_type.h"

#include <vector>

namespace tsprun::detail::test {

/// Returns three layers: the first normalises heads and adds a bias to keys, the second rotates nothing and adds biases to
/// queries and values, the third rotates by the local base. (Without rotation a bias of keys changes no probability.)
inline LayerSpecs unlike_layers() {
  return LayerSpecs(std::vector<LayerSpec>{{.biases = {.key = true}, .query_key_norm = true},
                                           {.rotary_positions = false, .biases = {.query = true, .value = true}},
                                           {.local_rotary = true}});
}

}  // namespace tsprun::detail::test
