// The tokens of training steps. The tokens of a sequence depend only on the data, --seq, --seed, the step and the sequence's
// number in the batch, so every rank gets the same under every layout.
#pragma once

#include "launcher/model/model_options.h"
#include "layers/io/data.h"
#include "layers/model/model.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail::launcher {

/// Reads the tokens of one step at a time into its own memory.
class TrainingBatch {
 public:
  /// Opens the data files of `options`, which must outlive this object.
  explicit TrainingBatch(const ModelCommandOptions& options);

  /// Reads the tokens and labels of a step, counted from 1. The result is valid until the next call.
  TokenBatch of_step(std::uint64_t step);
  /// Returns the token ids [B, S] of the last step that was read.
  std::span<const Token> ids() const { return ids_; }

 private:
  const ModelCommandOptions& options_;
  TokenStream stream_;
  std::vector<Token> ids_;
  std::vector<std::int64_t> labels_;
  std::vector<Token> window_;
};

}  // namespace tsprun::detail::launcher
