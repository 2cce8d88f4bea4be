// GPT-2: LayerNorm before each sublayer, learned positions, as many K/V heads as query heads, an MLP of four times the width with
// GeLU, biases of all linear layers, dropout in training. The head is the embedding unless the file says otherwise. Files store
// W_Q, W_K and W_V side by side in one matrix, and all matrices of blocks as [in, out]. Names bear "transformer." where the whole
// model was saved.
//
// Sources: huggingface/transformers, src/transformers/models/gpt2/{configuration,modeling}_gpt2.py.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

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

/// Causal masks of layers.
constexpr std::string_view kGpt2HarmlessWeights[] = {"h.{}.attn.bias", "h.{}.attn.masked_bias"};

constexpr BuiltInModel kGpt2BuiltIn[] = {{"nano-gpt2", {64, 2, 8, 8, 8, 256, 256, 256}}};

}  // namespace

ModelType gpt2() {
  return {
      .name = "gpt2",
      .architectures = {"GPT2LMHeadModel", "GPT2Model"},
      .model = {.norm = Norm::layer,
                .learned_positions = true,
                .mlp = Mlp::gelu_tanh,
                .specs =
                    LayerSpec{.rotary_positions = false,
                              .biases = {.query = true, .key = true, .value = true, .output = true, .up = true, .down = true}}},
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
      .harmless_weights = kGpt2HarmlessWeights,
      .inputs_first = true,
      .exported_prefix = "transformer.",
      .built_in = kGpt2BuiltIn};
}

}  // namespace tsprun::detail::families
