// `tsprun bench OP[,OP…]|all`: micro-benchmarks of messages and collectives, with nccl-tests' columns.
//
// This file has the command's options, checks and output. What each rank does is in bench_rank.h, how times are measured in
// launcher/bench/measure.h.
#pragma once

#include "launcher/bench/measure.h"
#include "launcher/commands/command.h"

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Options as they are typed, with their defaults.
struct BenchOptions {
  std::string ops;
  std::string sizes = "8,1K,64K,1M,64M";
  std::string dtype = "f32";
  std::string iterations = "auto";
  double min_seconds = 0.3;
  double max_seconds = 2;
  bool check = true;
  bool both_places = true;
};

/// The command `bench`.
class BenchCommand final : public Command {
 public:
  std::string name() const override { return "bench"; }
  std::string help() const override { return "measure messages and collectives between ranks, with nccl-tests' columns"; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  BenchOptions options_;
  // Results of validation.
  std::vector<bench::Case> cases_;
  bench::Pace pace_;
  DType dtype_ = DType::f32;
  std::vector<std::string> notes_;  // comment lines that say which rows were left out, and why
};

}  // namespace tsprun::detail::launcher
