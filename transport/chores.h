// Work that a played rank's own core does for communication: what a GPU's copy engines would do beside the kernels.
#pragma once

namespace tsprun::detail {

/// Chores of one rank since they were last paid for.
struct Chores {
  double copied_bytes = 0;
  double reduced_bytes = 0;  ///< of all terms
  double messages = 0;       ///< sent, or asked for
  bool in_pieces = false;    ///< an operation's step copies at most a segment, as on a real rank; else all that it can
};

}  // namespace tsprun::detail
