// What a checkpoint keeps of each parameter, and in which file.
#pragma once

#include "core/kernels/check.h"
#include "layers/model/parameter_store.h"

#include <string>
#include <vector>

namespace tsp {

struct CheckpointTensors {
  std::string file;
  DType dtype;
  Tensor ParameterPart::*member;
};

/// Of a model whose parameters are `dtype`, in the order of checkpoint_files().
inline std::vector<CheckpointTensors> checkpoint_tensors(DType dtype) {
  const DType sums = kernels::summed_in(dtype);
  std::vector<CheckpointTensors> tensors = {{"model.safetensors", dtype, &ParameterPart::value},
                                            {"optimizer.m.safetensors", sums, &ParameterPart::m},
                                            {"optimizer.v.safetensors", sums, &ParameterPart::v}};
  if (sums != dtype) tensors.push_back({"optimizer.master.safetensors", sums, &ParameterPart::master});
  return tensors;
}

}  // namespace tsp
