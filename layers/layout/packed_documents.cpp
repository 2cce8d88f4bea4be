// Finds ends of documents, and cuts positions as tokens are cut.
#include "layers/layout/packed_documents.h"

#include "core/kernels/cross_entropy.h"
#include "layers/layout/dealt_documents.h"
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

/// Returns the lengths of documents that begin at these positions, of which there is one for each token.
std::vector<std::uint32_t> lengths_of(std::span<const std::uint32_t> starts) {
  std::vector<std::uint32_t> lengths;
  for (std::size_t position = 0; position < starts.size(); ++position) {
    if (starts[position] == position) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

}  // namespace

/// Allocates what a pass computes with.
PackedDocuments::PackedDocuments(Rank& rank, const TokenLayout& tokens, bool deal)
    : sequence_(tokens.sequence()), phantom_(rank.is_phantom()) {
  const auto numbers = [&](std::size_t count, std::string_view what) {
    return rank.tensor(Category::workspace, DType::i32, {count}, what);
  };
  starts_ = numbers(tokens.batch() * sequence_, "beginnings of documents");
  positions_ = numbers(tokens.rows(), "positions in documents");
  if (deal) places_ = numbers(tokens.batch() * sequence_, "positions of all tokens in documents");
}

PackedDocuments::PackedDocuments(Rank& rank, const TokenLayout& tokens, std::span<const Token> ids, Token end, bool deal)
    : PackedDocuments(rank, tokens, deal) {
  alike_ = ids.size() != tokens.batch() * sequence_;
  std::vector<std::uint32_t> starts(sequence_);
  for (std::size_t b = 0; b < (alike_ ? 1 : tokens.batch()); ++b) {
    std::uint32_t start = 0;
    for (std::uint32_t i = 0; i < sequence_; ++i) {
      starts[i] = start;
      if (!alike_ && ids[b * sequence_ + i] == end) start = i + 1;
    }
    take(tokens, b, starts);
  }
}

PackedDocuments::PackedDocuments(Rank& rank, const TokenLayout& tokens, std::span<const std::uint32_t> lengths, bool deal)
    : PackedDocuments(rank, tokens, deal) {
  std::vector<std::uint32_t> starts;
  for (const std::uint32_t length : lengths) starts.insert(starts.end(), length, static_cast<std::uint32_t>(starts.size()));
  if (starts.size() != sequence_) {
    throw Error(Cause::refused, fmt::format("documents of {} tokens together in sequences of {}", starts.size(), sequence_));
  }
  alike_ = phantom_;
  for (std::size_t b = 0; b < (alike_ ? 1 : tokens.batch()); ++b) take(tokens, b, starts);
}

/// Keeps where the documents of a sequence begin, and the positions of its tokens in theirs, by place.
void PackedDocuments::take(const TokenLayout& tokens, std::size_t sequence, std::span<const std::uint32_t> starts) {
  std::vector<std::uint32_t> by_place(starts.begin(), starts.end());
  std::vector<std::uint32_t> positions(sequence_);
  for (std::uint32_t i = 0; i < sequence_; ++i) positions[i] = i - starts[i];
  if (places_.exists()) {
    const std::vector<std::uint32_t> order = Deal(tokens.cut(), lengths_of(starts)).order();
    for (std::size_t place = 0; place < sequence_; ++place) {
      by_place[place] = starts[order[place]];
      positions[place] = order[place] - starts[order[place]];
    }
    order_.insert(order_.end(), order.begin(), order.end());
  }
  if (phantom_) {
    counted_starts_.insert(counted_starts_.end(), by_place.begin(), by_place.end());
    if (places_.exists()) counted_positions_.insert(counted_positions_.end(), positions.begin(), positions.end());
    return;
  }
  const auto part = [&](const OwnedTensor& all) { return numbers_of(all).subspan(sequence * sequence_, sequence_).begin(); };
  std::ranges::copy(by_place, part(starts_));
  if (places_.exists()) std::ranges::copy(positions, part(places_));
  tokens.cut().cut(tokens.part(), std::span<const std::uint32_t>(positions),
                   numbers_of(positions_).subspan(sequence * tokens.local(), tokens.local()));
}

DocumentViews PackedDocuments::views() const {
  if (!any()) return {};
  const auto table = [&](const OwnedTensor& memory, const std::vector<std::uint32_t>& counted) -> const std::uint32_t* {
    if (!memory.exists()) return nullptr;
    return phantom_ ? counted.data() : numbers_of(memory).data();
  };
  return {.starts = {.starts = table(starts_, counted_starts_),
                     .length = sequence_,
                     .alike = alike_,
                     .positions = table(places_, counted_positions_)},
          .positions = numbers_of(positions_)};
}

void unlabel_ends(std::span<std::int64_t> labels, std::span<const Token> ids, Token end) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (ids[i] == end) labels[i] = kernels::kNoLabel;
  }
}

}  // namespace tsprun::detail
