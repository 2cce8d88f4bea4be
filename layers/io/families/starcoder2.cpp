// StarCoder2: Llama's form with LayerNorm, its bias included, biases of all linear layers (use_bias), and an MLP without a gate
// (c_fc, GeLU, c_proj). The head is the embedding unless the file says otherwise; dropout in training if the file has it. A file
// without num_key_value_heads has 2. A window (sliding_window), as most files have one, is refused.
//
// Sources: huggingface/transformers, src/transformers/models/starcoder2/{configuration,modular}_starcoder2.py; arXiv 2402.19173.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <string>

namespace tsprun::detail::families {

namespace {

constexpr ConfigNames kStarcoder2Fields = {.hidden = "hidden_size",
                                           .layers = "num_hidden_layers",
                                           .query_heads = "num_attention_heads",
                                           .intermediate = "intermediate_size",
                                           .vocabulary = "vocab_size",
                                           .max_positions = "max_position_embeddings",
                                           .activation = "hidden_act",
                                           .norm_epsilon = "norm_epsilon",
                                           .kv_heads = "num_key_value_heads",
                                           .residual_dropout = "residual_dropout",
                                           .embedding_dropout = "embedding_dropout",
                                           .attention_dropout = "attention_dropout"};

constexpr ActivationName kStarcoder2Activations[] = {
    {"gelu_pytorch_tanh", Mlp::gelu_tanh}, {"gelu_new", Mlp::gelu_tanh}, {"gelu_fast", Mlp::gelu_tanh}, {"gelu", Mlp::gelu}};

constexpr std::string_view kStarcoder2Norm[] = {"norm_type"};
constexpr std::string_view kStarcoder2Mlp[] = {"mlp_type"};
constexpr std::string_view kStarcoder2True[] = {"scale_attn_weights"};
constexpr std::string_view kStarcoder2One[] = {"partial_rotary_factor"};
constexpr RestrictedFields kStarcoder2Restricted[] = {{R"(["layer_norm"])", kStarcoder2Norm},
                                                      {R"(["default"])", kStarcoder2Mlp},
                                                      {"[true]", kStarcoder2True},
                                                      {"[1]", kStarcoder2One}};

constexpr std::string_view kStarcoder2Ignored[] = {"activation_function", "attention_softmax_in_fp32",
                                                   "scale_attention_softmax_in_fp32", "layer_norm_epsilon"};

constexpr std::string_view kStarcoder2Biases = "use_bias";

constexpr WeightName kStarcoder2Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
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

void read_starcoder2_layers(ConfigFields& fields, ModelConfig& config) {
  const bool all = fields.flag(kStarcoder2Biases, true);
  config.specs = LayerSpec{.biases = {.query = all, .key = all, .value = all, .output = all, .up = all, .down = all}};
}

void write_starcoder2_layers(const ModelConfig& config, nlohmann::json& object) {
  nlohmann::json& biases = object[std::string(kStarcoder2Biases)];
  if (biases.is_null()) biases = config.layer(0).biases.query;
}

}  // namespace

ModelType starcoder2() {
  ModelType type = llama();
  type.name = "starcoder2";
  type.architectures = {"Starcoder2ForCausalLM", "Starcoder2Model"};
  type.model.norm = Norm::layer;
  type.model.mlp = Mlp::gelu_tanh;
  type.model.specs = LayerSpec{.biases = {.query = true, .key = true, .value = true, .output = true, .up = true, .down = true}};
  type.fields = kStarcoder2Fields;
  type.activations = kStarcoder2Activations;
  type.restricted = kStarcoder2Restricted;
  type.ignored = kStarcoder2Ignored;
  type.read_layers = read_starcoder2_layers;
  type.write_layers = write_starcoder2_layers;
  type.kv_heads = 2;
  type.max_positions = 4096;
  type.norm_epsilon = 1e-5;
  type.tied_embeddings = true;
  type.weights = kStarcoder2Weights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
