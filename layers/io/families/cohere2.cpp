// Cohere 2 (Command R7B, Command A): Cohere's form with a window (sliding_window, 4096 in files that don't have the field) in all
// layers but every fourth (sliding_window_pattern), unless layer_types says otherwise. Layers without a window don't rotate. A
// file whose sliding_window is null is refused.
//
// Sources: huggingface/transformers, src/transformers/models/cohere2/{configuration,modular}_cohere2.py; ggml-org/llama.cpp,
// src/models/cohere2.cpp.
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kCohere2Window = "sliding_window";
constexpr std::string_view kCohere2Ignored[] = {"layer_switch", "cache_implementation", "use_parallel_embedding",
                                                "use_embedding_sharing"};

// Fields of the hub's files that say what all such models are.
constexpr std::string_view kCohere2True[] = {"use_gated_activation", "use_parallel_block"};
constexpr std::string_view kCohere2Order[] = {"order_of_interleaved_layers"};
constexpr std::string_view kCohere2Positions[] = {"position_embedding_type"};
constexpr RestrictedFields kCohere2Restricted[] = {
    {"[true]", kCohere2True}, {"[\"local_attn_first\"]", kCohere2Order}, {"[\"rope_gptj\"]", kCohere2Positions}};

void read_cohere2(ConfigFields& fields, ModelConfig& config) {
  fields.refuse_restricted(kCohere2Restricted);
  read_attention_bias(fields, config);
  if (fields.has(kCohere2Window) && fields.find(kCohere2Window) == nullptr) fields.refuse(kCohere2Window, "a number of tokens");
}

}  // namespace

ModelType cohere2() {
  ModelType type = cohere();
  type.name = "cohere2";
  type.architectures = {"Cohere2ForCausalLM", "Cohere2Model"};
  type.ignored = kCohere2Ignored;
  type.read_layers = read_cohere2;
  type.window = WindowField::alternating;
  type.usual_window = 4096;
  type.pattern_field = "sliding_window_pattern";
  type.usual_pattern = 4;
  type.rotary_in_windows_alone = true;
  return type;
}

}  // namespace tsprun::detail::families
