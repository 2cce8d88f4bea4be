// Granite 3 (dense): Llama's form with four multipliers. Embedded tokens are multiplied by embedding_multiplier, scores by
// attention_multiplier instead of 1/√d, each sublayer's result by residual_multiplier, and logits are divided by logits_scaling;
// a field that is missing means 1. attention_bias adds biases to W_Q, W_K, W_V and W_O; mlp_bias is refused. Published files have
// an attention_dropout, which training applies.
//
// Sources: huggingface/transformers, src/transformers/models/granite/{configuration,modular}_granite.py.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kGraniteHonoured[] = {"attention_multiplier", "embedding_multiplier", "residual_multiplier",
                                                 "logits_scaling",       "attention_bias",       "attention_dropout"};

}  // namespace

ModelType granite() {
  ModelType type = llama();
  type.name = "granite";
  type.architectures = {"GraniteForCausalLM", "GraniteModel"};
  type.model.attention_multiplier = 1;
  type.fields.embedding_multiplier = "embedding_multiplier";
  type.fields.residual_multiplier = "residual_multiplier";
  type.fields.attention_multiplier = "attention_multiplier";
  type.fields.logits_divisor = "logits_scaling";
  type.fields.attention_dropout = "attention_dropout";
  type.honoured = kGraniteHonoured;
  type.read_layers = read_attention_bias;
  type.write_layers = write_attention_bias;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
