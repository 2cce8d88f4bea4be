// Documents that are packed one behind the other into the sequences of a pass: attention doesn't cross their ends, and positions
// begin anew with each. All ranks have all ids of a batch, so each finds the documents by itself, and nothing is sent for them.
#pragma once

#include "core/kernels/flash.h"
#include "core/rank/rank.h"
#include "layers/io/data.h"
#include "layers/layout/token_layout.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Tables with which a pass computes; borrowed. Where each sequence is one document, both are empty.
struct DocumentViews {
  kernels::Documents starts = {};  ///< for masks, of whole sequences
  /// [B, S_p], positions of a rank's tokens in their documents: the rows of tables that rotate them.
  std::span<const std::uint32_t> positions = {};
};

/// The documents of a pass's sequences, in memory of the rank's heap.
class PackedDocuments {
 public:
  /// Each sequence is one document; nothing is stored.
  PackedDocuments() = default;
  /// Finds the documents in the ids [B, S] of the layout's sequences. One ends with each token `end`, and with its sequence. On a
  /// phantom ids may be missing: then masks are those of whole sequences. `deal`: tokens are dealt, document by document
  /// (dealt_documents.h), and what is called a position of the sequence elsewhere is a place.
  PackedDocuments(Rank& rank, const TokenLayout& tokens, std::span<const Token> ids, Token end, bool deal = false);
  /// Makes documents of these lengths, one behind the other, in each of the layout's sequences. Throws Error(refused) unless they
  /// are S tokens together.
  PackedDocuments(Rank& rank, const TokenLayout& tokens, std::span<const std::uint32_t> lengths, bool deal = false);

  bool any() const { return starts_.exists(); }
  DocumentViews views() const;
  /// Returns the positions in their documents of the tokens of this rank's residual.
  std::span<const std::uint32_t> held_positions(const TokenLayout& tokens) const {
    return views().positions.subspan(tokens.first_held(), tokens.held_rows());
  }

  /// Returns the number in [B, S] of the token that has number `place` of the places [B, S] that are dealt.
  std::size_t number_at(std::size_t place) const {
    if (order_.empty()) return place;
    return place / sequence_ * sequence_ + order_[alike_ ? place % sequence_ : place];
  }
  /// Returns values [B, S] in the order of places.
  template <class T>
  std::vector<T> dealt(std::span<const T> natural) const {
    std::vector<T> values(natural.size());
    for (std::size_t place = 0; place < values.size(); ++place) values[place] = natural[number_at(place)];
    return values;
  }
  bool deals() const { return !order_.empty(); }

 private:
  PackedDocuments(Rank& rank, const TokenLayout& tokens, bool deal);
  void take(const TokenLayout& tokens, std::size_t sequence, std::span<const std::uint32_t> starts);

  std::size_t sequence_ = 0;
  bool phantom_ = false;
  OwnedTensor starts_;     // [B, S] uint32
  OwnedTensor positions_;  // [B, S_p] uint32
  OwnedTensor places_;     // [B, S] uint32, positions in documents by place; only where tokens are dealt
  // Tables [B, S]; [S] if sequences are alike.
  bool alike_ = false;
  std::vector<std::uint32_t> order_ = {};           // Deal::order(), where tokens are dealt
  std::vector<std::uint32_t> counted_starts_ = {};  // on a phantom, whose memory isn't there, to count by
  std::vector<std::uint32_t> counted_positions_ = {};
};

/// Takes away the labels [B, S] of tokens that end documents: what comes next begins another document, which nothing before it
/// foretells.
void unlabel_ends(std::span<std::int64_t> labels, std::span<const Token> ids, Token end);

}  // namespace tsprun::detail
