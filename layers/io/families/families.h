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

}  // namespace tsprun::detail::families
