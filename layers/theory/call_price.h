// What a collective or message of a recorded program takes on a machine's links, in closed formulas: for lone_walk.h, which can't
// play the operation itself (simulate.h does).
//
// A rank of a group of k, of which m sit on each of n nodes, receives b bytes (the mean of all members).
//
//   gathers            (n−1)/(k−1) of b cross nodes along rails, and each part then goes to the others of its node: the last of n
//                      parts when nothing crosses any more
//   sums               the same bytes. A reduce_scatter adds within nodes, then along rails, where sums travel in the type of the
//                      accumulator and in pieces, each hop of which adds a latency (a small all_reduce along a tree, whose
//                      steps are as many as nodes have bits); it then gathers within nodes
//   broadcast, reduce  of a buffer of N bytes. On one node its root's port carries it k−1 times (on fabric `links`, each of its
//                      links once). A broadcast to several nodes sends 1/m of it along each rail, node by node. A reduce across
//                      nodes is a ring's: the buffer passes the NIC at each node's end, as sums
//   all_to_all         (k−m)/(k−1) of b leave the node, of which (m−1)/m change rails
//   messages           all of b passes the NIC at a node's end, or a link
//
// Where nodes hold unlike numbers of members, no rails are used: a ring's bytes all pass the NICs at nodes' ends. Bytes that
// change rails take the machine's rail_crossing times as long. Each step adds a latency.
#pragma once

#include "core/program/program.h"
#include "layers/theory/machine.h"

#include <vector>

namespace tsprun::detail::theory {

/// Seconds that an operation takes a rank's links.
struct CallPrice {
  double within = 0;     ///< in which links within the node are busy
  double across = 0;     ///< in which the NIC is
  double after = 0;      ///< in which links within the node are busy once both are done
  double delay = 0;      ///< that pass besides before its result is there: latencies, and what happens on other nodes meanwhile
  bool ordered = false;  ///< the NIC goes to work after the links within the node; else both do at once
};

/// Returns the price of a call among these world ranks. The call must have been recorded with Recorder::count_received().
CallPrice call_price(const ProgramCall& call, const std::vector<int>& members, const Machine& machine);

}  // namespace tsprun::detail::theory
