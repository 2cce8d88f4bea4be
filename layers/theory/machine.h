// What a cluster can do, for models of time: a small JSON file. Built-in ones are found by name; their files lie in machines/.
// For users docs/reference/machine-file.md says the same.
//
//   {
//     "name": "8 MI300X a node, a Pollara 400 each",
//     "memory_bytes": 206158430208,             of a GPU
//     "memory_bytes_per_s": 5.3e12,
//     "flops_per_s": {"bf16": 1.3074e15, …},    peak of dense GEMMs, by element type; those that are missing can't be planned
//     "gemm_efficiency": 0.5,                   of that peak that large GEMMs reach, 0.001 to 1
//     "attention_efficiency": 0.35,             that flash attention reaches
//     "gpus_per_node": 8,
//     "within_node": {
//       "fabric": "links",                      links: a link between every two GPUs (xGMI), so that k participants of a
//                                               collective receive at (k−1)·bytes_per_s each, and a ring uses one link;
//                                               switch: every GPU receives at bytes_per_s, whatever takes part (NVSwitch)
//       "bytes_per_s": 64e9,                    of a link and direction, or of a GPU's port and direction
//       "latency_s": 2e-6                       of a message
//     },
//     "across_nodes": {
//       "nics_per_node": 8,                     local GPU i uses NIC i modulo their number: rail i
//       "bytes_per_s": 50e9,                    of a NIC and direction
//       "latency_s": 5e-6,
//       "rail_crossing": 1.5                    how many times longer bytes take that change rails, at least 1
//     }
//   }
//
// Every field must be there and no other; an error names the file, the field and what was expected.
#pragma once

#include "core/tensor/dtype.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::theory {

enum class Fabric { links, on_switch };

struct Machine {
  std::string name;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;
  std::optional<double> flops_bf16;
  std::optional<double> flops_f32;
  std::optional<double> flops_f64;
  double gemm_efficiency = 1;
  double attention_efficiency = 1;
  int gpus_per_node = 1;

  Fabric fabric = Fabric::on_switch;
  double within_bytes_per_s = 0;
  double within_latency = 0;

  int nics_per_node = 1;
  double nic_bytes_per_s = 0;
  double nic_latency = 0;
  double rail_crossing = 1;

  std::optional<double> flops(DType dtype) const;
  /// A GPU's share of its node's NICs.
  double across_bytes_per_s() const;
};

/// Names of the machines that come with the program.
std::vector<std::string> machine_names();
/// `--machine`: a name, else a file. Throws Error(refused).
Machine find_machine(const std::string& name_or_file);
/// `where` begins the messages. Throws Error(refused).
Machine parse_machine(std::string_view text, const std::string& where);

}  // namespace tsprun::theory
