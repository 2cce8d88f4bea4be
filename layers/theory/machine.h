// Description of a cluster for the model of time (step_time.h) and for virtual time (simulate.h): a small JSON file. Built-in
// ones are found by name; their files are in machines/. docs/reference/machine-file.md documents the format for users.
//
//   {
//     "version": 2,                             1 if it is missing; fields marked * need 2, ** 4, *** 5, **** 6
//     "name": "8 MI300X a node, a Pollara 400 each",
//     "memory_bytes": 206158430208,             of a GPU
//     "memory_bytes_per_s": 5.3e12,
//     "memory_efficiency": 0.8,                 * fraction of it that kernels reach, 0.001 to 1; without it 1
//     "launch_s": 4e-6,                         * seconds that each kernel takes besides its work; without it 0
//     "copies_slow_kernels": 1.1,               * how many times longer a kernel takes while messages of its GPU are under
//                                               way, at least 1; without it 1
//     "flops_per_s": {"bf16": 1.3074e15, …},    peak of dense GEMMs by dtype; a dtype that is missing can't be planned
//     "gemm_efficiency": 0.5,                   fraction of the peak that large GEMMs reach, 0.001 to 1; or a table * of
//                                               FLOPs and fractions, [[1e9, 0.1], [1e12, 0.5]], between whose entries it is
//                                               interpolated, both in logarithms; or a grid ****
//                                               {"depth": [256, 4096], "results": [1e6, 1e8], "fraction": [[…], […]]} of the
//                                               length of the sums and the elements of the result, a list for each depth
//     "attention_efficiency": 0.35,             likewise, of flash attention; or **** {"forward": …, "backward": …} of such, in
//                                               which grids have "head" (elements of a head) and "seen" (keys that a query
//                                               sees on average: half of a causal sequence) for "depth" and "results"
//     "attention_kernels": {"flash2": 0.3},     **** the same for other implementations of attention, which --attention names
//     "logit_tile_bytes": 1073741824,           *** the pieces in which a rank makes logits and gathers K and V
//     "kv_bucket_bytes": 268435456,             (core/rank/piece_sizes.h); without them a 64th of the memory, at most 1 GiB, and
//     a
//                                               256th, at most 256 MiB, but no less than real ranks have
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
//       "rail_crossing": 1.5,                   how many times longer bytes take if they change rails, at least 1
//       "spine": {                              ** what is above the NICs; without it nothing there limits them
//         "nodes_per_leaf": 32,                 nodes whose NICs are on one leaf switch
//         "leaf_per_rail": true,                NICs of each rail have leaves of their own, so that to change rails is to go
//                                               through the spine
//         "leaf_bytes_per_s": 6.4e11,           of all links of a leaf to the spine, per direction
//         "bytes_per_s": 1e13,                  of all that goes through the spine; without it only leaves limit it
//         "latency_s": 1e-6                     that a message through the spine takes besides
//       }
//     },
//     "sources": {"launch_s": "an assumption"}  * where numbers come from, by field: "within_node.latency_s" for one inside
//   }
//
// Version 3 has a second kind of machine, cores of a host: core_machine.h.
//
// Every field is required, except those of versions 2, 4, 5 and 6, and that flops_per_s may lack dtypes. No other field is
// allowed. Errors name the file, the field and what was expected.
#pragma once

#include "core/rank/piece_sizes.h"
#include "layers/theory/core_machine.h"
#include "layers/theory/efficiency.h"
#include "tsprun/types.h"

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::theory {

/// Connection of a node's GPUs: a link between every two, or one switch.
enum class Fabric { links, on_switch };

/// Leaf and spine switches, as the top of this file describes them.
struct Spine {
  int nodes_per_leaf = 1;
  bool leaf_per_rail = false;
  double leaf_bytes_per_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double latency = 0;
};

/// How attention is computed.
enum class AttentionKind {
  fused,          ///< as flash attention does: scores don't go through memory
  unfused,        ///< products and a softmax, all scores through memory
  unfused_again,  ///< the same, and backward passes make the scores again
};

/// Names of the kinds that aren't fused, as --attention has them.
inline constexpr std::string_view kUnfused = "unfused";
inline constexpr std::string_view kUnfusedAgain = "unfused-again";

/// How kernels that touch each element are computed.
enum class Elementwise {
  fused,  ///< one kernel, which reads and writes each element once
  eager   ///< a kernel for each operation (eager_price.h)
};

/// Contents of a machine file; fields, units and ranges are described at the top of this file.
struct Machine {
  std::string name;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;
  double memory_efficiency = 1;
  double launch_seconds = 0;
  double copies_slow_kernels = 1;
  std::optional<double> flops_bf16;  ///< peak FLOP/s; nothing if the file doesn't state it
  std::optional<double> flops_f32;
  std::optional<double> flops_f64;
  Efficiency gemm_efficiency = 1;
  AttentionEfficiency attention_efficiency = 1;
  std::map<std::string, AttentionEfficiency> attention_kernels;  ///< of other implementations, by name
  AttentionKind attention = AttentionKind::fused;
  Elementwise elementwise = Elementwise::fused;
  PieceSizes pieces;  ///< that ranks work in; those of a real rank where ranks have cores
  int gpus_per_node = 1;

  std::optional<CoreMachine> cores;  ///< ranks have cores of this host; nothing: they are GPUs

  Fabric fabric = Fabric::on_switch;
  double within_bytes_per_s = 0;
  double within_latency = 0;

  int nics_per_node = 1;
  double nic_bytes_per_s = 0;
  double nic_latency = 0;
  double rail_crossing = 1;
  std::optional<Spine> spine;

  /// Returns the peak FLOP/s for a dtype, or nothing if the file doesn't state it.
  std::optional<double> flops(DType dtype) const;
  /// Returns the bytes/s that kernels reach in a GPU's memory.
  double memory_rate() const { return memory_bytes_per_s * memory_efficiency; }
  /// Takes attention as `which` says: kUnfused, kUnfusedAgain, or one of attention_kernels. Returns whether it is one of these.
  bool choose_attention(const std::string& which);
  /// Returns whether collectives add across nodes by rails on it, as NCCL and RCCL do, where nobody asks for another order.
  bool adds_by_rails() const { return !cores && nics_per_node > 1; }
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
