// Starts the tspruns of one job on several nodes, all of which are this machine.
#pragma once

#include "tests/support/free_port.h"
#include "tests/support/process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test {

inline ProcessOptions with(std::map<std::string, std::string> environment) {
  ProcessOptions options;
  options.environment = std::move(environment);
  return options;
}

/// A tsprun of a job whose four ranks are actors: global options, then what they do.
inline std::vector<std::string> node_words(int node, int port, std::vector<std::string> more,
                                           const std::vector<std::string>& action, int nodes = 2) {
  more.insert(more.begin(), {"-n", "4", "--log-level", "warn", "--nnodes", std::to_string(nodes), "--node-rank",
                             std::to_string(node), "--rendezvous", fmt::format("127.0.0.1:{}", port)});
  return tsprun_actor(more, action);
}

/// Environment with the secret of these jobs.
inline const ProcessOptions kSecret = with({{"TSP_SECRET", "of this test, and long enough"}});

/// A tsprun of two that have one rank each: further options and the command.
inline std::vector<std::string> node_words(int node, int port, const std::vector<std::string>& more) {
  std::vector<std::string> words = {tsprun_path(),
                                    "-n",
                                    "2",
                                    "--nnodes",
                                    "2",
                                    "--node-rank",
                                    std::to_string(node),
                                    "--rendezvous",
                                    fmt::format("127.0.0.1:{}", port)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// A tsprun of two that train on one rank each: global options, then those of train.
inline std::vector<std::string> train_words(int node, int port, const std::string& data, const std::vector<std::string>& global,
                                            const std::vector<std::string>& options) {
  std::vector<std::string> words = node_words(node, port, global);
  words.insert(words.end(), {"train", "--config", "nano", "--data", data, "--seq", "16"});
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

}  // namespace tsprun::detail::test
