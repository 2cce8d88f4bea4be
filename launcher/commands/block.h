// `tsprun block`: one transformer block, forward and backward, on tensors from files, for comparison with another implementation.
//
// This file has the command's options and checks. What each rank does is in block_rank.h.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"

#include <string>

namespace tsprun::detail::launcher {

/// Options as they are typed.
struct BlockOptions {
  std::string weights;
  std::string input;
  std::string output;
  bool backward = false;
};

/// The command `block`.
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

}  // namespace tsprun::detail::launcher
