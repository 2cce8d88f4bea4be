// A machine whose ranks are computed by a host's cores, such as the one that tsprun runs on: what kernels took there, by name,
// dtype and sizes, and what a core needs to copy, to sum and for a message. `tsprun calibrate` writes its file:
//
//   {
//     "version": 3,
//     "kind": "cores",
//     "name": "2 cores, avx512",
//     "cores": 2,                              that ranks share
//     "memory_bytes": 12884901888,             of a rank
//     "launch_s": 2e-6,                        that a rank needs from kernel to kernel: memory, posting, the schedule itself
//     "copy_bytes_per_s": 8e9,                 of a core that copies what another one wrote
//     "reduce_bytes_per_s": 6e9,               of a core that sums, in bytes of all terms
//     "message_s": 4e-7,                       of a core, for each message that it sends or asks for
//     "within_node": {"fabric": "links", "bytes_per_s": 1e30, "latency_s": 1e-7},
//     "kernels": [{"kernel": "gemm", "dtype": "f32", "result": "f32", "sizes": [256, 256, 1024], "flops": 134217728,
//                  "bytes": 2359296, "seconds": 1.5e-3, "ticks": 2}, …]
//   }
#pragma once

#include "core/program/program.h"
#include "tsprun/types.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace tsprun::detail {
class JsonObject;
}

namespace tsprun::detail::theory {

/// Measured time of a kernel.
struct KernelPrice {
  double bytes = 0;    ///< read and written
  double seconds = 0;  ///< of one run, without communication
  double ticks = 1;    ///< of one run: how often communication makes progress
};

/// Cores of a host, and their prices.
struct CoreMachine {
  using Kind = std::tuple<std::string, DType, DType>;             ///< kernel, dtypes of its first input and of its result
  using Size = std::tuple<std::array<std::uint64_t, 5>, double>;  ///< sizes and FLOPs, as in KernelCost

  int cores = 1;
  double copy_bytes_per_s = 0;
  double reduce_bytes_per_s = 0;
  double message_seconds = 0;
  std::map<Kind, std::map<Size, KernelPrice>> kernels;

  /// Returns the price of a kernel. One that wasn't measured with these sizes costs as much more or less than the one of the same
  /// name and dtypes whose FLOPs (without any: bytes) are nearest, as its FLOPs (bytes) are more or less. Throws Error(refused),
  /// naming the machine `name`, if no such kernel was measured.
  KernelPrice price(const KernelCost& cost, const std::string& name) const;
  /// Returns the most FLOP/s that a matrix product of this dtype reached; nothing if none was measured.
  std::optional<double> best_flops(DType dtype) const;
  /// Reads the fields of a machine file. Throws Error(refused), naming the field and what was expected.
  static CoreMachine read(JsonObject& object);
};

}  // namespace tsprun::detail::theory
