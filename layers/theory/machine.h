// Description of a cluster for the model of time (step_time.h): a small JSON file. Built-in ones are found by name; their files
// are in machines/. docs/reference/machine-file.md documents the format for users.
//
//   {
//     "name": "8 MI300X a node, a Pollara 400 each",
//     "memory_bytes": 206158430208,             of a GPU
//     "memory_bytes_per_s": 5.3e12,
//     "flops_per_s": {"bf16": 1.3074e15, …},    peak of dense GEMMs by dtype; a dtype that is missing can't be planned
//     "gemm_efficiency": 0.5,                   fraction of the peak that large GEMMs reach, 0.001 to 1
//     "attention_efficiency": 0.35,             fraction of the peak that flash attention reaches
//     "gpus_per_node": 8,
//     "within_node": {
//       "fabric": "links",                      links: a link between every two GPUs (xGMI), so that k participants of a
//                                               collective receive at (k−1)·bytes_per_s each, and a ring uses one link;
//                                               switch: every GPU receives at bytes_per_s, however many take part (NVSwitch)
//       "bytes_per_s": 64e9,                    of one link, or of one GPU's port, per direction
//       "latency_s": 2e-6                       per message
//     },
//     "across_nodes": {
//       "nics_per_node": 8,                     local GPU i uses NIC i modulo their number: rail i
//       "bytes_per_s": 50e9,                    of one NIC, per direction
//       "latency_s": 5e-6,
//       "rail_crossing": 1.5                    how many times longer bytes take if they change rails, at least 1
//     }
//   }
//
// Every field is required, except that flops_per_s may lack dtypes, and no other field is allowed. Errors name the file, the
// field and what was expected.
#pragma once

#include "tsprun/types.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::theory {

/// How the GPUs of a node are connected: a link between every two, or one switch.
enum class Fabric { links, on_switch };

/// Contents of a machine file; fields, units and ranges are described at the top of this file.
struct Machine {
  std::string name;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;
  std::optional<double> flops_bf16;  ///< peak FLOP/s; nothing if the file doesn't state it
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

  /// Returns the peak FLOP/s for a dtype, or nothing if the file doesn't state it.
  std::optional<double> flops(DType dtype) const;
  /// Returns a GPU's share of its node's NIC bandwidth, in bytes/s; at most one NIC's.
  double across_bytes_per_s() const;
};

/// Returns the names of the machine descriptions that come with the program.
std::vector<std::string> machine_names();
/// Returns the machine that `--machine` names: a built-in name, otherwise a file. Throws Error(refused) if there is neither, if
/// the file can't be read or is larger than 1 MiB, and as parse_machine().
Machine find_machine(const std::string& name_or_file);
/// Parses a machine description. `where` (a file or a name) begins every error message. Throws Error(refused), naming the field
/// and what was expected.
Machine parse_machine(std::string_view text, const std::string& where);

}  // namespace tsprun::detail::theory
