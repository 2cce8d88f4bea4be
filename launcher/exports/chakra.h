// A step as Chakra execution traces (MLCommons; schema/protobuf/et_def.proto there), a file for each rank: a GlobalMetadata and
// then a Node for each kernel, collective and message, each behind its length.
//
//   node             type, attributes
//   kernel           COMP_NODE, duration_micros; num_ops (FLOPs), tensor_size (bytes read and written)
//   collective       COMM_COLL_NODE; comm_type, comm_size (bytes that this rank brings; where only a root does, that it takes),
//                    pg_name (group)
//   send, recv       COMM_SEND_NODE, COMM_RECV_NODE; comm_src, comm_dst, comm_size, comm_tag (stream); a send_recv is two nodes
//
// All have is_cpu_op = false; communication has its stream and purpose, which is no attribute of Chakra's own. Nodes depend
// (data_deps) on what they follow: a kernel on the kernel before it and on what was waited for, an operation besides on the
// operation before it on its stream. Durations are whole microseconds, rounded so that no sum of them is wrong by more than one.
// Operations of groups of one rank move nothing and have no node. Taking and giving back memory has none either: Chakra's memory
// nodes are loads and stores, which take time.
//
// groups.json beside them has the ranks of each group by its name.
#pragma once

#include "layers/theory/simulate.h"

#include <span>
#include <string>

namespace tsprun::detail::launcher {

/// Returns the name of a rank's file in a folder: "DIR/step.3.et".
std::string chakra_file(const std::string& folder, int rank);
/// Writes the programs of all ranks into a folder that exists. `blocking`: operations are waited for at once. Throws
/// Error(refused) if a file can't be written.
void write_chakra(std::span<const theory::PricedProgram> ranks, bool blocking, const std::string& folder);

}  // namespace tsprun::detail::launcher
