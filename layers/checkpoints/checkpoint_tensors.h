// Tensors that a checkpoint keeps of each parameter, and the file of each.
#pragma once

#include "core/kernels/check.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/parameter_store.h"

#include <string>
#include <vector>

namespace tsprun::detail {

/// One file of a checkpoint: its name, the dtype of its tensors, and the member of ParameterPart that it holds.
struct CheckpointTensors {
  std::string file;
  DType dtype;
  Tensor ParameterPart::*member;
};

/// Returns the files for a model with parameters of `dtype`, in the order of checkpoint_files().
inline std::vector<CheckpointTensors> checkpoint_tensors(DType dtype) {
  const DType sums = kernels::summed_in(dtype);
  std::vector<CheckpointTensors> tensors = {{"model.safetensors", dtype, &ParameterPart::value},
                                            {"optimizer.m.safetensors", sums, &ParameterPart::m},
                                            {"optimizer.v.safetensors", sums, &ParameterPart::v}};
  if (keeps_master(dtype)) tensors.push_back({"optimizer.master.safetensors", sums, &ParameterPart::master});
  return tensors;
}

/// Returns a parameter's tensor in one of these files. Older checkpoints of GPT-2 models lack the prefix "transformer."; both
/// names are accepted. Throws Error(refused).
inline const safetensors::TensorInfo& checkpoint_tensor(const safetensors::File& file, const ModelConfig& config,
                                                        const Parameter& parameter) {
  const std::string name = exported_name(config, parameter);
  return file.require(file.find(name) != nullptr ? name : parameter.name, parameter.shape);
}

}  // namespace tsprun::detail
