// The windows of data that an evaluation reads, --batch of them together: `eval`, and the evaluations of `train`.
#pragma once

#include "launcher/model/model_options.h"
#include "layers/io/data.h"
#include "layers/model/model.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tsprun::detail::launcher {

/// Windows that are evaluated together; all have the same length. Holds their tokens and labels.
class WindowBatch {
 public:
  /// Reads --batch windows of --seq tokens from window `first` on; a shorter last one alone. Throws Error(refused) if a file
  /// can't be read.
  WindowBatch(const TokenStream& stream, const ModelCommandOptions& options, std::uint64_t first);

  /// Returns ids and labels [windows, length]. They are this object's.
  TokenBatch tokens() const {
    return {.batch = count_, .sequence = length_, .ids = ids_, .labels = labels_, .document_end = document_end_};
  }
  /// Returns the number of windows.
  std::size_t count() const { return count_; }
  /// Returns the tokens of each.
  std::size_t length() const { return length_; }

 private:
  std::size_t count_;
  std::size_t length_;
  std::optional<Token> document_end_;
  std::vector<Token> ids_;
  std::vector<std::int64_t> labels_;
};

}  // namespace tsprun::detail::launcher
