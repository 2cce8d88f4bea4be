// The families of models, a file each: what the fields of their config.json mean, and the names of their weights. A family that
// is like another but for a few lines begins with it.
#pragma once

#include "layers/io/model_type.h"

namespace tsprun::detail::families {

ModelType llama();
ModelType gpt2();
ModelType qwen2();
ModelType qwen3();
ModelType mistral();
ModelType smollm3();
ModelType granite();
ModelType gemma();
ModelType gemma2();
ModelType gemma3();
ModelType gemma4();
ModelType exaone4();
ModelType stablelm();
ModelType phi3();
ModelType ministral3();
ModelType starcoder2();
ModelType glm4();
ModelType cohere();
ModelType cohere2();
ModelType olmo2();
ModelType olmo3();
ModelType phi();

/// Reads a flag with which linear layers add biases, `which`; `usual`: its value in a file without it. For
/// ModelType::read_layers.
void read_biases(ConfigFields& fields, ModelConfig& config, std::string_view field, const Biases& which, bool usual);
/// Writes it, unless `object` says it.
void write_biases(const ModelConfig& config, nlohmann::json& object, std::string_view field);
/// Reads attention_bias, with which W_Q, W_K, W_V and W_O add biases; for ModelType::read_layers.
void read_attention_bias(ConfigFields& fields, ModelConfig& config);
/// Writes attention_bias, unless `object` says it.
void write_attention_bias(const ModelConfig& config, nlohmann::json& object);

}  // namespace tsprun::detail::families
