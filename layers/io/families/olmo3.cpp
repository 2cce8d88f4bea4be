// OLMo 3: OLMo 2's form. Special: a window (sliding_window, 4096 in files that don't have the field) in three of four layers,
// unless layer_types says otherwise; the file's rope scaling holds in layers without it alone. rope_parameters may say either
// kind of layers. A file whose sliding_window is null is refused, and so is one without a base of rotary positions.
//
// transformers 4.57 scales layers without a window alone, as vllm-project/vllm (model_executor/models/olmo2.py) and
// ggml-org/llama.cpp (src/models/olmo2.cpp) do and as the comment in its code says; transformers 5 scales all, unless
// rope_parameters tells kinds of layers apart. Sources: these, and huggingface/transformers,
// src/transformers/models/olmo3/{configuration,modular}_olmo3.py.
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

ModelType olmo3() {
  ModelType type = olmo2();
  type.name = "olmo3";
  type.architectures = {"Olmo3ForCausalLM", "Olmo3Model"};
  type.window = WindowField::alternating;
  type.usual_window = 4096;
  type.usual_pattern = 4;
  type.local_rotary_in_windows = true;
  type.names_rope_base = true;
  return type;
}

}  // namespace tsprun::detail::families
