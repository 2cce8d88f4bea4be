// Qwen3: Qwen2's form without its biases. Special: an RMSNorm over each head of q and of k before rotation, with one gain of
// head_dim for all heads of q and one for those of k; a head_dim of its own, 128 in files that don't have the field.
//
// Sources: huggingface/transformers, src/transformers/models/qwen3/{configuration,modular}_qwen3.py; ggml-org/llama.cpp,
// src/models/qwen3.cpp.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

ModelType qwen3() {
  ModelType type = qwen2();
  type.name = "qwen3";
  type.architectures = {"Qwen3ForCausalLM", "Qwen3Model"};
  type.model.specs = LayerSpec{.query_key_norm = QueryKeyNorm::heads};
  type.head_dim = 128;
  return type;
}

}  // namespace tsprun::detail::families
