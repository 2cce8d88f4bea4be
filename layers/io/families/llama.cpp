// Llama 1 to 3.3, and models that take its form, such as SmolLM2 and TinyLlama: RMSNorm before each sublayer, rotary positions on
// halves, grouped query heads, a gated MLP with SiLU, no biases. The head may be the embedding. Special since 3.1: rotary
// positions of the scaling "llama3" (layers/io/rope_scaling.h). A head_dim of its own is honoured.
//
// Sources: huggingface/transformers, src/transformers/models/llama/{configuration,modeling}_llama.py.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr ConfigNames kLlamaFields = {.hidden = "hidden_size",
                                      .layers = "num_hidden_layers",
                                      .query_heads = "num_attention_heads",
                                      .intermediate = "intermediate_size",
                                      .vocabulary = "vocab_size",
                                      .max_positions = "max_position_embeddings",
                                      .activation = "hidden_act",
                                      .norm_epsilon = "rms_norm_eps",
                                      .kv_heads = "num_key_value_heads",
                                      .head_dim = "head_dim"};

constexpr ActivationName kLlamaActivations[] = {{"silu", Mlp::swiglu}, {"swish", Mlp::swiglu}};

constexpr std::string_view kLlamaFalse[] = {
    "attention_bias", "mlp_bias",        "bias",          "use_bias", "qkv_bias",
    "use_qk_norm",    "qk_norm",         "parallel_attn", "alibi",    "use_parallel_residual",
    "lm_head_bias",   "rope_interleaved"};
constexpr std::string_view kLlamaAbsent[] = {
    "attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier", "query_pre_attn_scalar", "clip_qkv",
    "attention_chunk_size"};
constexpr std::string_view kLlamaUnlikeLayers[] = {"no_rope_layers"};
constexpr std::string_view kLlamaZero[] = {
    "attention_dropout", "hidden_dropout",   "residual_dropout",    "num_local_experts",
    "num_experts",       "n_routed_experts", "hidden_dropout_prob", "attention_probs_dropout_prob"};
constexpr std::string_view kLlamaOne[] = {"partial_rotary_factor", "logits_scaling",      "logit_scale",
                                          "embedding_multiplier",  "residual_multiplier", "rotary_pct"};
constexpr RestrictedFields kLlamaRestricted[] = {
    {"[false]", kLlamaFalse}, {"[]", kLlamaAbsent}, {"[0]", kLlamaZero}, {"[1]", kLlamaOne}, {"[]", kLlamaUnlikeLayers}};

constexpr std::string_view kLlamaIgnored[] = {"pretraining_tp", "max_window_layers", "is_llama_config"};

// Names of other families' parameters, too: a model has the biases and norms of heads that its layers say.
constexpr WeightName kLlamaWeights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                        {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                        {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                        {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                        {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                        {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                        {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                        {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                        {ParameterRole::query_norm, "model.layers.{}.self_attn.q_norm.weight"},
                                        {ParameterRole::key_norm, "model.layers.{}.self_attn.k_norm.weight"},
                                        {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                        {ParameterRole::output_bias, "model.layers.{}.self_attn.o_proj.bias"},
                                        {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                        {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                        {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                        {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                        {ParameterRole::final_norm, "model.norm.weight"},
                                        {ParameterRole::head, "lm_head.weight"}};

constexpr std::string_view kLlamaHarmlessWeights[] = {"model.layers.{}.self_attn.rotary_emb.inv_freq"};

constexpr BuiltInModel kLlamaBuiltIn[] = {
    //            h    L  n_h n_kv  d     f      V       S
    {"nano", {64, 2, 8, 4, 8, 176, 256, 256}},
    {"micro", {256, 4, 8, 4, 32, 704, 256, 1024}},
    {"small", {1024, 12, 16, 8, 64, 2816, 256, 2048}},
    {"paper-7b", {4096, 32, 32, 32, 128, 16384, 32000, 131072}},
};

}  // namespace

ModelType llama() {
  return {.name = "llama",
          .architectures = {"LlamaForCausalLM", "LlamaModel"},
          .fields = kLlamaFields,
          .activations = kLlamaActivations,
          .restricted = kLlamaRestricted,
          .ignored = kLlamaIgnored,
          .max_positions = 2048,
          .norm_epsilon = 1e-6,
          .weights = kLlamaWeights,
          .harmless_weights = kLlamaHarmlessWeights,
          .prefix = "model.",
          .built_in = kLlamaBuiltIn};
}

}  // namespace tsprun::detail::families
