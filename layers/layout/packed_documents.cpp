// Finds ends of documents, and cuts positions as tokens are cut.
#include "layers/layout/packed_documents.h"

#include "core/kernels/cross_entropy.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace tsprun::detail {

namespace {

std::span<std::uint32_t> numbers_of(const OwnedTensor& memory) {
  return {reinterpret_cast<std::uint32_t*>(memory->data()), memory->elements()};
}

}  // namespace

/// Allocates what a pass computes with.
PackedDocuments::PackedDocuments(Rank& rank, const TokenLayout& tokens) : sequence_(tokens.sequence()) {
  const auto numbers = [&](std::size_t count, std::string_view what) {
    return rank.tensor(Category::workspace, DType::i32, {count}, what);
  };
  starts_ = numbers(tokens.batch() * sequence_, "beginnings of documents");
  positions_ = numbers(tokens.rows(), "positions in documents");
}

PackedDocuments::PackedDocuments(Rank& rank, const TokenLayout& tokens, std::span<const Token> ids, Token end)
    : PackedDocuments(rank, tokens) {
  const bool known = ids.size() == tokens.batch() * sequence_;
  alike_ = !known;
  if (rank.is_phantom()) counted_.resize(known ? ids.size() : sequence_);
  if (!known) return;
  std::vector<std::uint32_t> starts(sequence_);
  for (std::size_t b = 0; b < tokens.batch(); ++b) {
    std::uint32_t start = 0;
    for (std::uint32_t i = 0; i < sequence_; ++i) {
      starts[i] = start;
      if (ids[b * sequence_ + i] == end) start = i + 1;
    }
    if (rank.is_phantom()) std::ranges::copy(starts, counted_.begin() + static_cast<std::ptrdiff_t>(b * sequence_));
    else take(tokens, b, starts);
  }
}

PackedDocuments::PackedDocuments(Rank& rank, const TokenLayout& tokens, std::span<const std::uint32_t> lengths)
    : PackedDocuments(rank, tokens) {
  std::vector<std::uint32_t> starts;
  for (const std::uint32_t length : lengths) starts.insert(starts.end(), length, static_cast<std::uint32_t>(starts.size()));
  if (starts.size() != sequence_) {
    throw Error(Cause::refused, fmt::format("documents of {} tokens together in sequences of {}", starts.size(), sequence_));
  }
  alike_ = rank.is_phantom();
  if (alike_) {
    counted_ = std::move(starts);
    return;
  }
  for (std::size_t b = 0; b < tokens.batch(); ++b) take(tokens, b, starts);
}

/// Keeps where the documents of a sequence begin, and the positions of this rank's tokens in theirs.
void PackedDocuments::take(const TokenLayout& tokens, std::size_t sequence, std::span<const std::uint32_t> starts) {
  std::ranges::copy(starts, numbers_of(starts_).subspan(sequence * sequence_, sequence_).begin());
  std::vector<std::uint32_t> positions(sequence_);
  for (std::uint32_t i = 0; i < sequence_; ++i) positions[i] = i - starts[i];
  tokens.cut().cut(tokens.part(), std::span<const std::uint32_t>(positions),
                   numbers_of(positions_).subspan(sequence * tokens.local(), tokens.local()));
}

DocumentViews PackedDocuments::views() const {
  if (!any()) return {};
  const std::uint32_t* starts = counted_.empty() ? numbers_of(starts_).data() : counted_.data();
  return {.starts = {.starts = starts, .length = sequence_, .alike = alike_}, .positions = numbers_of(positions_)};
}

void unlabel_ends(std::span<std::int64_t> labels, std::span<const Token> ids, Token end) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (ids[i] == end) labels[i] = kernels::kNoLabel;
  }
}

}  // namespace tsprun::detail
