// A small model on a small cluster, for tests of steps in virtual time.
#pragma once

#include "layers/theory/layouts.h"
#include "layers/theory/machine.h"
#include "tests/layers/model_run.h"

#include <cstddef>
#include <string>

namespace tsprun::detail::test::simulate_support {

/// Returns a model of two layers on a layout.
inline theory::MeshSetting setting(const std::string& layout, std::size_t batch = 8, std::size_t sequence = 256) {
  ModelCase of{.config = small_config(256, 2, 8, 8, 32, 512, 1024), .batch = batch, .sequence = sequence, .dtype = DType::bf16};
  return {.setting = of.setting(), .layout = Layout::parse(layout)};
}

/// Returns a built-in machine with as many GPUs and NICs on a node.
inline theory::Machine machine(const std::string& name = "mi300x", int gpus_per_node = 4) {
  theory::Machine found = theory::find_machine(name);
  found.gpus_per_node = gpus_per_node;
  found.nics_per_node = gpus_per_node;
  return found;
}

}  // namespace tsprun::detail::test::simulate_support
