// `tsprun block`: one transformer block, forward and backward, on tensors from files: to hold against another implementation.
//
// This file is the command: its options and what it refuses. Every rank's part is block_rank.h.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"

#include <string>

namespace tsprun::launcher {

/// As typed.
struct BlockOptions {
  std::string weights;
  std::string input;
  std::string output;
  bool backward = false;
};

class BlockCommand final : public Command {
 public:
  std::string name() const override { return "block"; }
  std::string help() const override { return "one transformer block, forward and backward, on tensors from files"; }
  bool has_trace() const override { return true; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  ModelCommandOptions model_;
  BlockOptions block_;
};

}  // namespace tsprun::launcher
