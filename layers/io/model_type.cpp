// The rows of the table: Llama's and GPT-2's fields, weights and restrictions.
#include "layers/io/model_type.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tsprun::detail {

namespace {

// --- llama -------------------------------------------------------------------------------------------------------------------

constexpr ConfigNames kLlamaFields = {.hidden = "hidden_size",
                                      .layers = "num_hidden_layers",
                                      .query_heads = "num_attention_heads",
                                      .intermediate = "intermediate_size",
                                      .vocabulary = "vocab_size",
                                      .max_positions = "max_position_embeddings",
                                      .activation = "hidden_act",
                                      .norm_epsilon = "rms_norm_eps",
                                      .kv_heads = "num_key_value_heads",
                                      .head_dim = "head_dim",
                                      .rope_theta = "rope_theta"};

constexpr ActivationName kLlamaActivations[] = {{"silu", Mlp::swiglu}, {"swish", Mlp::swiglu}};

constexpr std::string_view kLlamaFalse[] = {"attention_bias", "mlp_bias", "bias",          "use_bias", "qkv_bias",
                                            "use_qk_norm",    "qk_norm",  "parallel_attn", "alibi",    "use_parallel_residual",
                                            "lm_head_bias"};
constexpr std::string_view kLlamaAbsent[] = {
    "attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier", "query_pre_attn_scalar", "clip_qkv",
    "no_rope_layers",         "attention_chunk_size"};
constexpr std::string_view kLlamaZero[] = {
    "attention_dropout", "hidden_dropout",   "residual_dropout",    "num_local_experts",
    "num_experts",       "n_routed_experts", "hidden_dropout_prob", "attention_probs_dropout_prob"};
constexpr std::string_view kLlamaOne[] = {"partial_rotary_factor", "logits_scaling",      "logit_scale",
                                          "embedding_multiplier",  "residual_multiplier", "rotary_pct"};
constexpr RestrictedFields kLlamaRestricted[] = {
    {"[false]", kLlamaFalse}, {"[]", kLlamaAbsent}, {"[0]", kLlamaZero}, {"[1]", kLlamaOne}};

constexpr std::string_view kLlamaIgnored[] = {"pretraining_tp", "max_window_layers"};

constexpr WeightName kLlamaWeights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                        {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                        {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                        {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                        {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                        {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                        {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                        {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                        {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                        {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                        {ParameterRole::final_norm, "model.norm.weight"},
                                        {ParameterRole::head, "lm_head.weight"}};

// --- gpt2 --------------------------------------------------------------------------------------------------------------------

constexpr ConfigNames kGpt2Fields = {.hidden = "n_embd",
                                     .layers = "n_layer",
                                     .query_heads = "n_head",
                                     .intermediate = "n_inner",
                                     .vocabulary = "vocab_size",
                                     .max_positions = "n_positions",
                                     .activation = "activation_function",
                                     .norm_epsilon = "layer_norm_epsilon",
                                     .residual_dropout = "resid_pdrop",
                                     .embedding_dropout = "embd_pdrop",
                                     .attention_dropout = "attn_pdrop"};

constexpr ActivationName kGpt2Activations[] = {
    {"gelu_new", Mlp::gelu_tanh}, {"gelu_pytorch_tanh", Mlp::gelu_tanh}, {"gelu_fast", Mlp::gelu_tanh}, {"gelu", Mlp::gelu}};

constexpr std::string_view kGpt2True[] = {"scale_attn_weights"};
constexpr std::string_view kGpt2False[] = {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"};
constexpr RestrictedFields kGpt2Restricted[] = {{"[true]", kGpt2True}, {"[false]", kGpt2False}};

constexpr std::string_view kGpt2Ignored[] = {"n_ctx",
                                             "output_past",
                                             "task_specific_params",
                                             "gradient_checkpointing",
                                             "summary_type",
                                             "summary_use_proj",
                                             "summary_proj_to_labels",
                                             "summary_activation",
                                             "summary_first_dropout"};

constexpr WeightName kGpt2Weights[] = {{ParameterRole::embedding, "wte.weight"},
                                       {ParameterRole::positions, "wpe.weight"},
                                       {ParameterRole::attention_norm, "h.{}.ln_1.weight"},
                                       {ParameterRole::attention_norm_bias, "h.{}.ln_1.bias"},
                                       {ParameterRole::query_key_value, "h.{}.attn.c_attn.weight"},
                                       {ParameterRole::query_key_value_bias, "h.{}.attn.c_attn.bias"},
                                       {ParameterRole::output, "h.{}.attn.c_proj.weight"},
                                       {ParameterRole::output_bias, "h.{}.attn.c_proj.bias"},
                                       {ParameterRole::mlp_norm, "h.{}.ln_2.weight"},
                                       {ParameterRole::mlp_norm_bias, "h.{}.ln_2.bias"},
                                       {ParameterRole::up, "h.{}.mlp.c_fc.weight"},
                                       {ParameterRole::up_bias, "h.{}.mlp.c_fc.bias"},
                                       {ParameterRole::down, "h.{}.mlp.c_proj.weight"},
                                       {ParameterRole::down_bias, "h.{}.mlp.c_proj.bias"},
                                       {ParameterRole::final_norm, "ln_f.weight"},
                                       {ParameterRole::final_norm_bias, "ln_f.bias"},
                                       {ParameterRole::head, "lm_head.weight"}};

// --- the table ---------------------------------------------------------------------------------------------------------------

constexpr ModelType kModelTypes[] = {{.name = "llama",
                                      .architectures = {"LlamaForCausalLM", "LlamaModel"},
                                      .fields = kLlamaFields,
                                      .activations = kLlamaActivations,
                                      .restricted = kLlamaRestricted,
                                      .ignored = kLlamaIgnored,
                                      .max_positions = 2048,
                                      .norm_epsilon = 1e-6,
                                      .weights = kLlamaWeights},
                                     {.name = "gpt2",
                                      .architectures = {"GPT2LMHeadModel", "GPT2Model"},
                                      .features = {.norm = Norm::layer,
                                                   .positions = PositionEncoding::learned,
                                                   .mlp = Mlp::gelu_tanh,
                                                   .biases = {.query_key_value = true, .output = true, .up = true, .down = true}},
                                      .fields = kGpt2Fields,
                                      .activations = kGpt2Activations,
                                      .restricted = kGpt2Restricted,
                                      .ignored = kGpt2Ignored,
                                      .intermediate_per_hidden = 4,
                                      .max_positions = 1024,
                                      .norm_epsilon = 1e-5,
                                      .tied_embeddings = true,
                                      .dropout = 0.1,
                                      .weights = kGpt2Weights,
                                      .inputs_first = true,
                                      .exported_prefix = "transformer."}};

}  // namespace

std::string_view ModelType::weight(ParameterRole role) const {
  const auto at = std::ranges::find(weights, role, &WeightName::role);
  return at == weights.end() ? std::string_view() : at->name;
}

std::span<const ModelType> model_types() { return kModelTypes; }

const ModelType& model_type(std::string_view name) {
  const auto* const at = std::ranges::find(kModelTypes, name, &ModelType::name);
  if (at == std::end(kModelTypes)) throw std::out_of_range("no model_type " + std::string(name));
  return *at;
}

}  // namespace tsprun::detail
