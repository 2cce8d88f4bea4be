// Phi-3, Phi-3.5 and Phi-4 (mini, 14B, reasoning), which all have this model_type: Llama's form in two fused matrices a layer.
// Special: rows of W_Q, W_K and W_V lie in one qkv_proj, gate and up in one gate_up_proj; three quarters of a head turn in
// Phi-4-mini (partial_rotary_factor); the rope scaling is longrope or none, and the original context
// (original_max_position_embeddings, 4096 in files without it) gives its factor, whatever the object says; every layer
// has the window sliding_window, unless it is null.
//
// Sources: huggingface/transformers, src/transformers/models/phi3/{configuration,modular}_phi3.py, modeling_rope_utils.py;
// ggml-org/llama.cpp, src/models/phi3.cpp.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kPhi3False[] = {"attention_bias", "mlp_bias", "lm_head_bias"};
constexpr std::string_view kPhi3Zero[] = {"embd_pdrop"};
constexpr std::string_view kPhi3One[] = {"full_attn_mod", "interpolate_factor"};
constexpr RestrictedFields kPhi3Restricted[] = {{"[false]", kPhi3False}, {"[0]", kPhi3Zero}, {"[1]", kPhi3One}};

constexpr WeightName kPhi3Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                       {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                       {ParameterRole::query_key_value, "model.layers.{}.self_attn.qkv_proj.weight"},
                                       {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                       {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                       {ParameterRole::gate_up, "model.layers.{}.mlp.gate_up_proj.weight"},
                                       {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                       {ParameterRole::final_norm, "model.norm.weight"},
                                       {ParameterRole::head, "lm_head.weight"}};

}  // namespace

ModelType phi3() {
  ModelType type = llama();
  type.name = "phi3";
  type.architectures = {"Phi3ForCausalLM", "Phi3Model"};
  type.fields.residual_dropout = "resid_pdrop";
  type.fields.attention_dropout = "attention_dropout";
  type.fields.rotary_fraction = "partial_rotary_factor";
  type.restricted = kPhi3Restricted;
  type.ignored = {};
  type.window = WindowField::every_layer;
  type.max_positions = 4096;
  type.norm_epsilon = 1e-5;
  type.original_positions = 4096;
  type.weights = kPhi3Weights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
