// Reads windows.
#include "launcher/model/window_batch.h"

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {

std::size_t windows_together(const TokenStream& stream, const ModelCommandOptions& options, std::uint64_t first) {
  const std::uint64_t all = window_count(stream.size(), options.sequence);
  const std::uint64_t whole = (stream.size() - 1) / options.sequence;
  if (first >= whole) return 1;
  return static_cast<std::size_t>(std::min<std::uint64_t>(options.batch, std::min(whole, all) - first));
}

}  // namespace

WindowBatch::WindowBatch(const TokenStream& stream, const ModelCommandOptions& options, std::uint64_t first)
    : count_(windows_together(stream, options, first)),
      length_(window(stream.size(), options.sequence, first).length),
      document_end_(options.document_end) {
  std::vector<Token> tokens(length_ + 1);
  for (std::uint64_t w = first; w < first + count_; ++w) {
    stream.read(window(stream.size(), options.sequence, w).first, tokens);
    ids_.insert(ids_.end(), tokens.begin(), tokens.end() - 1);
    labels_.insert(labels_.end(), tokens.begin() + 1, tokens.end());
  }
  if (document_end_) unlabel_ends(labels_, ids_, *document_end_);
}

}  // namespace tsprun::detail::launcher
