// Ministral 3: Mistral's form with the rope scaling "yarn". Special: after its rotation q is multiplied by a factor that grows
// with the position, 1 + β·ln(1 + ⌊position/original context⌋), β being llama_4_scaling_beta of rope_parameters; without it
// nothing grows here (transformers fails). max_position_embeddings within rope_parameters changes nothing. A file must have
// rope_parameters. Every layer has the window sliding_window, unless it is null. Published folders are those of models that see
// images, with it as text model.
//
// Sources: huggingface/transformers, src/transformers/models/ministral3/{configuration,modular}_ministral3.py.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <string>

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kMinistral3Usual =
    R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_attention_heads": 32})";
constexpr std::string_view kMinistral3Scaling = "rope_parameters";

void read_ministral3_layers(ConfigFields& fields, ModelConfig& /* config */) {
  if (fields.find(kMinistral3Scaling) == nullptr && fields.find("rope_scaling") == nullptr)
    fields.refuse(kMinistral3Scaling, "an object with the scaling (no default is supported)");
}

void write_ministral3_layers(const ModelConfig& config, nlohmann::json& object) {
  if (config.rope_scaling != RopeScaling()) return;  // which write_rope() says
  if (nlohmann::json& scaling = object[std::string(kMinistral3Scaling)]; scaling.is_null()) scaling["rope_type"] = "default";
}

}  // namespace

ModelType ministral3() {
  ModelType type = mistral();
  type.name = "ministral3";
  type.architectures = {"Ministral3ForCausalLM", "Ministral3Model"};
  type.read_layers = read_ministral3_layers;
  type.write_layers = write_ministral3_layers;
  type.usual_window = 0;
  type.query_growth = true;
  type.head_dim = 128;
  type.max_positions = 262144;
  type.within.usual = kMinistral3Usual;
  type.norm_epsilon = 1e-5;
  return type;
}

}  // namespace tsprun::detail::families
