// EXAONE 4: Llama's form with norms behind the sublayers, within the residual branch, and none before them; an RMSNorm over each
// head of q and of k before rotation. Special: a window (sliding_window, 4096 in files that don't have the field) in three of
// four layers, unless layer_types or sliding_window_pattern, a number or letters such as LLLG, says otherwise; layers without it
// don't rotate (the 32 B model). Where sliding_window is null all layers are full and rotate (1.2 B).
//
// transformers fails on letters without layer_types; they are read as its documentation says, by which the last layer is full.
//
// Sources: huggingface/transformers, src/transformers/models/exaone4/{configuration,modular}_exaone4.py; ggml-org/llama.cpp,
// src/models/exaone4.cpp; arXiv 2507.11407.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

ModelType exaone4() {
  ModelType type = llama();
  type.name = "exaone4";
  type.architectures = {"Exaone4ForCausalLM", "Exaone4Model"};
  type.model.specs = LayerSpec{.query_key_norm = QueryKeyNorm::heads, .norms = NormPlaces::after};
  type.weights = olmo2().weights;
  type.ignored = {};
  type.window = WindowField::alternating;
  type.usual_window = 4096;
  type.pattern_field = "sliding_window_pattern";
  type.pattern_of_letters = true;
  type.usual_pattern = 4;
  type.rotary_in_windows_alone = true;
  type.kv_heads = 32;
  type.norm_epsilon = 1e-5;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
