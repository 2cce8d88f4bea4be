// Qwen2 and Qwen2.5: Llama's form with biases of W_Q, W_K and W_V, and none of W_O. Small ones have the embedding as head. A
// window (sliding_window, 4096 in files that don't have the field) counts only where use_sliding_window is true: in the layers
// that layer_types names, or from number max_window_layers on (28 in files without it). A file without num_key_value_heads
// has 32.
//
// Sources: huggingface/transformers, src/transformers/models/qwen2/{configuration,modeling}_qwen2.py.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

ModelType qwen2() {
  ModelType type = llama();
  type.name = "qwen2";
  type.architectures = {"Qwen2ForCausalLM", "Qwen2Model"};
  type.model.specs = LayerSpec{.biases = {.query = true, .key = true, .value = true}};
  type.window = WindowField::later_layers;
  type.usual_window = 4096;
  type.usual_first_window = 28;
  type.kv_heads = 32;
  type.max_positions = 32768;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
