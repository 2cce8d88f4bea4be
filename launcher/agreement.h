// Facts in which all nodes of a job must agree: options as typed, or their defaults. Ranks that compute with different options
// would at best wait for each other, and at worst train something that nobody asked for.
#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>

namespace tsprun::detail::launcher {

/// Maps an option's name, or that of another fact to agree on, to its value as text.
using Agreement = std::map<std::string, std::string>;

/// Returns the options of tsprun and of its command, without those that may differ between nodes, such as --node-rank, --rdma,
/// --json or --save.
Agreement typed_options(const CLI::App& app, const CLI::App& command);

/// Returns how two nodes differ: "--lr 0.1 on node 1, 0.3 on node 0; --verify on node 1 only". Empty: they agree.
std::string difference(const Agreement& theirs, int their_node, const Agreement& mine, int my_node);

}  // namespace tsprun::detail::launcher
