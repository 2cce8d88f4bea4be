// Gemma 3, text: Gemma 2's form without a cap of scores, and without one of logits unless the file has it. Special: an RMSNorm
// over each head of q and of k before rotation, with gains of 1 + w; a window (sliding_window, 4096 in files that don't have the
// field) in all layers but every sixth (sliding_window_pattern), unless layer_types says otherwise; layers with a window rotate
// by rope_local_base_freq (10,000), the others by rope_theta (1,000,000) with the file's scaling. transformers 5 writes both as
// rope_parameters, an object for each kind of layers. A file whose sliding_window is null is refused. From 4 B on it is the text
// model of one that sees images.
//
// Sources: huggingface/transformers, src/transformers/models/gemma3/{configuration,modular}_gemma3.py; arXiv 2503.19786.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kGemma3Usual =
    R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8})";
constexpr std::string_view kGemma3Honoured[] = {"attention_bias", "final_logit_softcapping", "query_pre_attn_scalar"};
constexpr std::string_view kGemma3Ignored[] = {"pretraining_tp", "max_window_layers", "cache_implementation",
                                               "_sliding_window_pattern"};

}  // namespace

ModelType gemma3() {
  ModelType type = gemma2();
  type.name = "gemma3_text";
  type.architectures = {"Gemma3ForCausalLM", "Gemma3TextModel"};
  type.model.specs = LayerSpec{.query_key_norm = QueryKeyNorm::heads, .norms = NormPlaces::around};
  type.model.logit_cap = 0;
  type.model.rope_theta = 1'000'000;
  type.fields.local_rope_theta = "rope_local_base_freq";
  type.honoured = kGemma3Honoured;
  type.ignored = kGemma3Ignored;
  type.pattern_field = "sliding_window_pattern";
  type.usual_pattern = 6;
  type.local_rotary_in_windows = true;
  type.max_positions = 131072;
  type.within = {"gemma3", "Gemma3ForConditionalGeneration", kGemma3Usual};
  return type;
}

}  // namespace tsprun::detail::families
