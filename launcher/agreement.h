// What all nodes of a job must have been started with. Options as typed, or their defaults: ranks that compute with unlike ones
// would at best wait for each other, at worst train something that nobody asked for.
#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>

namespace tsprun::launcher {

/// An option's name, or what else is agreed on, and its value as text.
using Agreement = std::map<std::string, std::string>;

/// The options of tsprun and its command but for those that speak of one machine alone, such as --node-rank, --rdma, --json or
/// --save.
Agreement typed_options(const CLI::App& app, const CLI::App& command);

/// "--lr 0.1 on node 1, 0.3 on node 0; --verify on node 1 only"; empty if they agree.
std::string difference(const Agreement& theirs, int their_node, const Agreement& mine, int my_node);

}  // namespace tsprun::launcher
