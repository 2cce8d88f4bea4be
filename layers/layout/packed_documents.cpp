// Finds ends of documents, and cuts positions as tokens are cut.
#include "layers/layout/packed_documents.h"

#include "core/kernels/cross_entropy.h"

#include <vector>

namespace tsprun::detail {

namespace {

std::span<std::uint32_t> numbers_of(const OwnedTensor& memory) {
  return {reinterpret_cast<std::uint32_t*>(memory->data()), memory->elements()};
}

}  // namespace

PackedDocuments::PackedDocuments(Rank& rank, const TokenLayout& tokens, std::span<const Token> ids, Token end)
    : sequence_(tokens.sequence()) {
  const auto numbers = [&](std::size_t count, std::string_view what) {
    return rank.tensor(Category::workspace, DType::i32, {count}, what);
  };
  starts_ = numbers(tokens.batch() * sequence_, "beginnings of documents");
  positions_ = numbers(tokens.rows(), "positions in documents");
  if (rank.is_phantom()) return;
  std::vector<std::uint32_t> positions(sequence_);
  for (std::size_t b = 0; b < tokens.batch(); ++b) {
    const auto starts = numbers_of(starts_).subspan(b * sequence_, sequence_);
    std::uint32_t start = 0;
    for (std::uint32_t i = 0; i < sequence_; ++i) {
      starts[i] = start;
      positions[i] = i - start;
      if (ids[b * sequence_ + i] == end) start = i + 1;
    }
    tokens.cut().cut(tokens.part(), std::span<const std::uint32_t>(positions),
                     numbers_of(positions_).subspan(b * tokens.local(), tokens.local()));
  }
}

DocumentViews PackedDocuments::views() const {
  if (!any()) return {};
  return {.starts = {.starts = numbers_of(starts_).data(), .length = sequence_}, .positions = numbers_of(positions_)};
}

void unlabel_ends(std::span<std::int64_t> labels, std::span<const Token> ids, Token end) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (ids[i] == end) labels[i] = kernels::kNoLabel;
  }
}

}  // namespace tsprun::detail
