// Mistral: Llama's form. Special: a window (sliding_window) in every layer, 4096 tokens in files that don't have the field, none
// where it is null, as since 0.2. A file without num_key_value_heads has 8. Mistral Small 3.1's is the text model of one that
// sees images.
//
// Sources: huggingface/transformers, src/transformers/models/mistral/{configuration,modeling}_mistral.py; arXiv 2310.06825.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kMistralUsual =
    R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32})";

}  // namespace

ModelType mistral() {
  ModelType type = llama();
  type.name = "mistral";
  type.architectures = {"MistralForCausalLM", "MistralModel"};
  type.window = WindowField::every_layer;
  type.usual_window = 4096;
  type.kv_heads = 8;
  type.max_positions = 131072;
  type.within = {"mistral3", "Mistral3ForConditionalGeneration", kMistralUsual};
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
