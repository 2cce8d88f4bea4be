// What layers of one model compute that are unlike: a mix that no family has.
#pragma once

#include "layers/io/model_type.h"

#include <cstddef>
#include <vector>

namespace tsprun::detail::test {

/// Returns three layers: the first normalises heads, adds a bias to keys and has a window, the second rotates nothing and adds
/// biases to queries and values, the third rotates by the local base and has a shorter window and a soft cap of scores. (Without
/// rotation a bias of keys changes no probability.) The second and the third have sizes of their own, too; 2 must divide the
/// query heads.
inline LayerSpecs unlike_layers() {
  return LayerSpecs(std::vector<LayerSpec>{
      {.biases = {.key = true}, .query_key_norm = QueryKeyNorm::heads, .window = 6},
      {.rotary_positions = false, .biases = {.query = true, .value = true}, .head_dim = 6, .kv_heads = 1, .intermediate = 9},
      {.local_rotary = true, .window = 3, .score_cap = 1.5, .kv_heads = 2, .intermediate = 16}});
}

/// Returns seven layers: the fourth and the seventh take k and v of the first, the fifth and the sixth those of the third; the
/// second keeps its own to itself. Of the two lenders one norms heads, one norms all heads together, and has heads of its own
/// size.
inline LayerSpecs lending_layers() {
  const LayerSpec windowed{.query_key_norm = QueryKeyNorm::heads, .window = 5};
  const LayerSpec whole{.query_key_norm = QueryKeyNorm::rows, .head_dim = 6, .kv_heads = 2};
  const auto taking = [](LayerSpec layer, std::size_t back, std::size_t intermediate) {
    layer.layers_to_lender = back;
    layer.intermediate = intermediate;
    return layer;
  };
  return LayerSpecs(std::vector<LayerSpec>{windowed,
                                           {.biases = {.key = true}},
                                           whole,
                                           taking(windowed, 3, 0),
                                           taking(whole, 2, 9),
                                           taking(whole, 3, 0),
                                           taking(windowed, 6, 16)});
}

/// Returns layers that are alike but for their sizes: the first has the model's.
inline LayerSpecs sizes(const std::vector<LayerSpec>& others) {
  std::vector<LayerSpec> layers(1);
  layers.insert(layers.end(), others.begin(), others.end());
  return LayerSpecs(layers);
}

/// Returns layers that are alike but for these windows, 0: none.
inline LayerSpecs windows(const std::vector<std::size_t>& of) {
  std::vector<LayerSpec> layers;
  for (const std::size_t window : of) layers.push_back({.window = window});
  return LayerSpecs(layers);
}

}  // namespace tsprun::detail::test
