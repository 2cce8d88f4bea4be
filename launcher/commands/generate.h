// `tsprun generate`: samples text from a model. The prompt goes through the training schedule's forward pass; every further token
// moves activations and no weights. The text goes to stdout as it is made, everything else to stderr.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"
#include "layers/io/data.h"
#include "layers/model/sampling.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Options of `generate`. Members named …_text hold what was typed; validation sets the parsed values below.
struct GenerateOptions {
  std::string prompt;
  std::string tokens_text = "64";
  std::string temperature_text = "1";
  std::string top_k_text = "0";
  std::string top_p_text = "1";
  bool audit = false;  ///< print the audit's tables, not only its verdict

  // Results of validation.
  std::vector<Token> ids;  ///< the prompt's tokens
  std::size_t tokens = 64;
  SamplingOptions sampling;
};

/// Returns the bytes that the ids stand for. An id of 256 or more becomes "<300>".
std::string text_of(std::span<const Token> ids);

/// The command `generate`.
class GenerateCommand final : public Command {
 public:
  std::string name() const override { return "generate"; }
  std::string help() const override { return "sample text from a model"; }
  bool has_trace() const override { return true; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void read_prompt();

  ModelCommandOptions model_;
  GenerateOptions options_;
};

}  // namespace tsprun::detail::launcher
