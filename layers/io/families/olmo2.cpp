// OLMo 2: Llama's form with norms behind the sublayers, within the residual branch, and none before them. Special: an RMSNorm of
// q and one of k over all heads together, with gains of n_h·d and n_kv·d elements, before rotation. attention_bias adds biases to
// W_Q, W_K, W_V and W_O; attention_dropout is applied in training.
//
// Sources: huggingface/transformers, src/transformers/models/olmo2/{configuration,modular}_olmo2.py; arXiv 2501.00656.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kOlmo2Honoured[] = {"attention_bias", "attention_dropout"};

constexpr WeightName kOlmo2Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
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
                                        {ParameterRole::post_attention_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                        {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                        {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                        {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                        {ParameterRole::post_mlp_norm, "model.layers.{}.post_feedforward_layernorm.weight"},
                                        {ParameterRole::final_norm, "model.norm.weight"},
                                        {ParameterRole::head, "lm_head.weight"}};

}  // namespace

ModelType olmo2() {
  ModelType type = llama();
  type.name = "olmo2";
  type.architectures = {"Olmo2ForCausalLM", "Olmo2Model"};
  type.model.specs = LayerSpec{.query_key_norm = QueryKeyNorm::rows, .norms = NormPlaces::after};
  type.fields.attention_dropout = "attention_dropout";
  type.honoured = kOlmo2Honoured;
  type.ignored = {};
  type.read_layers = read_attention_bias;
  type.write_layers = write_attention_bias;
  type.norm_epsilon = 1e-5;
  type.weights = kOlmo2Weights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
