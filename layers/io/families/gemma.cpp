// Gemma (the first): Llama's form. Special: gains of norms are 1 + w of what files have; embedded tokens are multiplied by √h;
// the gate's activation is GeLU; head_dim is its own, 256 in files that don't have the field; the head is the embedding.
// attention_bias adds biases to W_Q, W_K, W_V and W_O.
//
// The activation is hidden_activation. In files without it the tanh form is meant, with which the models were trained, also where
// hidden_act says "gelu": transformers 4 and llama.cpp take it so, transformers 5 takes hidden_act literally. √h is exact, where
// transformers rounds it to the dtype of the weights.
//
// Sources: huggingface/transformers, src/transformers/models/gemma/{configuration,modular}_gemma.py; google/gemma_pytorch,
// gemma/model.py; ggml-org/llama.cpp, src/models/gemma.cpp.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <algorithm>
#include <string>

namespace tsprun::detail::families {

namespace {

constexpr ActivationName kGemmaActivations[] = {
    {"gelu_pytorch_tanh", Mlp::geglu_tanh}, {"gelu_new", Mlp::geglu_tanh}, {"gelu_fast", Mlp::geglu_tanh}, {"gelu", Mlp::geglu}};

constexpr std::string_view kOtherActivation = "hidden_act";
constexpr std::string_view kBothWays = "use_bidirectional_attention";
constexpr std::string_view kGemmaHonoured[] = {"attention_bias"};

void read_gemma(ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, config);
  if (fields.flag(kBothWays, false)) fields.refuse(kBothWays, "false or null (nothing else is supported)");
  const nlohmann::json* other = fields.find(kOtherActivation);
  if (other == nullptr || fields.find(config.type->fields.activation) != nullptr) return;
  if (std::ranges::none_of(kGemmaActivations, [&](const ActivationName& row) { return *other == row.name; }))
    fields.refuse(kOtherActivation, "\"gelu_pytorch_tanh\" or null (nothing else is supported)");
}

/// Says the activation under the name that transformers 5 reads, too, whatever stood there.
void write_gemma(const ModelConfig& config, nlohmann::json& object) {
  write_attention_bias(config, object);
  object[std::string(kOtherActivation)] = object.at(std::string(config.type->fields.activation));
}

}  // namespace

ModelType gemma() {
  ModelType type = llama();
  type.name = "gemma";
  type.architectures = {"GemmaForCausalLM", "GemmaModel"};
  type.model.mlp = Mlp::geglu_tanh;
  type.model.gains_from_one = true;
  type.model.embedding_times_root = true;
  type.fields.activation = "hidden_activation";
  type.activations = kGemmaActivations;
  type.honoured = kGemmaHonoured;
  type.read_layers = read_gemma;
  type.write_layers = write_gemma;
  type.head_dim = 256;
  type.kv_heads = 16;
  type.max_positions = 8192;
  type.tied_embeddings = true;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
