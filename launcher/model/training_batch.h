// The tokens of training steps: for step s and sequence b always the same ones, on every rank, under every layout.
#pragma once

#include "launcher/model/model_options.h"
#include "layers/model/data.h"
#include "layers/model/model.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::launcher {

class TrainingBatch {
 public:
  /// `options` must outlive it; its files are opened.
  explicit TrainingBatch(const ModelCommandOptions& options);

  /// `step` from 1. Valid until the next call.
  TokenBatch of_step(std::uint64_t step);
  /// [B, S] of that step.
  std::span<const Token> ids() const { return ids_; }

 private:
  const ModelCommandOptions& options_;
  TokenStream stream_;
  std::vector<Token> ids_;
  std::vector<std::int64_t> labels_;
  std::vector<Token> window_;
};

}  // namespace tsprun::launcher
