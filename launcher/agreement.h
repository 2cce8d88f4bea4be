// Facts in which all nodes of a job must agree: options as typed, or their defaults. Ranks that compute with different options
// would at best deadlock, and at worst train the wrong thing.
#pragma once

#include "launcher/option_table.h"

#include <map>
#include <string>

namespace tsprun::detail::launcher {

/// Maps an option's name, or that of another fact to agree on, to its value as text.
using Agreement = std::map<std::string, std::string>;

/// Returns the options of tsprun and of its command, without those that may differ between nodes (Trait::per_node).
Agreement typed_options(const OptionTable& global, const OptionTable& command);

/// Returns how two nodes differ: "--lr 0.1 on node 1, 0.3 on node 0; --verify on node 1 only". Empty: they agree.
std::string difference(const Agreement& theirs, int their_node, const Agreement& mine, int my_node);

}  // namespace tsprun::detail::launcher
