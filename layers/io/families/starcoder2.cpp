// StarCoder2: Llama's order of a block with rotary positions on halves and grouped query heads, but LayerNorm with a bias, an MLP
// without a gate (c_fc, GeLU in the tanh form, c_proj), and dropout in training. Special: all linear layers of a block add biases
// unless use_bias is false; every layer has a window where sliding_window is a number. The head is the embedding unless the file
// says otherwise. A file without num_key_value_heads has 2.
//
// Sources: huggingface/transformers, src/transformers/models/starcoder2/{configuration,modular}_starcoder2.py; arXiv 2402.19173.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr ActivationName kStarCoder2Activations[] = {
    {"gelu_pytorch_tanh", Mlp::gelu_tanh}, {"gelu_new", Mlp::gelu_tanh}, {"gelu_fast", Mlp::gelu_tanh}, {"gelu", Mlp::gelu}};

constexpr std::string_view kStarCoder2True[] = {"scale_attn_weights"};
constexpr std::string_view kStarCoder2LayerNorm[] = {"norm_type"};
constexpr std::string_view kStarCoder2Ungated[] = {"mlp_type"};
constexpr std::string_view kStarCoder2One[] = {"partial_rotary_factor"};
constexpr RestrictedFields kStarCoder2Restricted[] = {{"[true]", kStarCoder2True},
                                                      {"[\"layer_norm\"]", kStarCoder2LayerNorm},
                                                      {"[\"default\"]", kStarCoder2Ungated},
                                                      {"[1]", kStarCoder2One}};

/// hidden_act and norm_epsilon say what the first and the last mean.
constexpr std::string_view kStarCoder2Ignored[] = {"activation_function", "attention_softmax_in_fp32",
                                                   "scale_attention_softmax_in_fp32", "layer_norm_epsilon"};

constexpr WeightName kStarCoder2Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                             {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                             {ParameterRole::attention_norm_bias, "model.layers.{}.input_layernorm.bias"},
                                             {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                             {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                             {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                             {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                             {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                             {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                             {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                             {ParameterRole::output_bias, "model.layers.{}.self_attn.o_proj.bias"},
                                             {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                             {ParameterRole::mlp_norm_bias, "model.layers.{}.post_attention_layernorm.bias"},
                                             {ParameterRole::up, "model.layers.{}.mlp.c_fc.weight"},
                                             {ParameterRole::up_bias, "model.layers.{}.mlp.c_fc.bias"},
                                             {ParameterRole::down, "model.layers.{}.mlp.c_proj.weight"},
                                             {ParameterRole::down_bias, "model.layers.{}.mlp.c_proj.bias"},
                                             {ParameterRole::final_norm, "model.norm.weight"},
                                             {ParameterRole::final_norm_bias, "model.norm.bias"},
                                             {ParameterRole::head, "lm_head.weight"}};

constexpr std::string_view kStarCoder2Biases = "use_bias";
constexpr Biases kStarCoder2All = {.query = true, .key = true, .value = true, .output = true, .up = true, .down = true};

}  // namespace

ModelType starcoder2() {
  ModelType type = llama();
  type.name = "starcoder2";
  type.architectures = {"Starcoder2ForCausalLM", "Starcoder2Model"};
  type.model = {.norm = Norm::layer, .mlp = Mlp::gelu_tanh, .specs = LayerSpec{.biases = kStarCoder2All}};
  type.fields.norm_epsilon = "norm_epsilon";
  type.fields.residual_dropout = "residual_dropout";
  type.fields.embedding_dropout = "embedding_dropout";
  type.fields.attention_dropout = "attention_dropout";
  type.activations = kStarCoder2Activations;
  type.restricted = kStarCoder2Restricted;
  type.ignored = kStarCoder2Ignored;
  type.read_layers = [](ConfigFields& fields, ModelConfig& config) {
    read_biases(fields, config, kStarCoder2Biases, kStarCoder2All, true);
  };
  type.write_layers = [](const ModelConfig& config, nlohmann::json& object) { write_biases(config, object, kStarCoder2Biases); };
  type.window = WindowField::every_layer;
  type.kv_heads = 2;
  type.max_positions = 4096;
  type.norm_epsilon = 1e-5;
  type.tied_embeddings = true;
  type.weights = kStarCoder2Weights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
