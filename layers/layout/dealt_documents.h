// Documents that are packed into a sequence, dealt to the ranks that share it so that the busiest rank has little of attention's
// work, however long documents are. Long ones are cut into 2D chunks of their own, of which rank p gets chunks p and 2D − 1 − p.
// A document's chunks differ by at most one token; the odd tokens of all documents are dealt round, those of the longest first,
// each document's from the chunk on where those of the one before ended. Short ones, whose chunks would be smaller than kernels'
// tiles, go whole to one rank, the longest first, each to the rank with the fewest pairs so far that has room for it. Those for
// which no rank has room any more are laid one behind the other into what is left of the chunks, from chunk 0 to chunk 2D − 1.
//
// Place c of the sequence's own cut into 2D chunks (zigzag.h) gets as many tokens as that cut has: what ranks hold, send and
// receive stays what it is without documents.
//
//   sequence    a a a a a a a a a b b b b b b c      D = 2, if all are cut: odd ones of a are in chunk 0, of b in 1 and 2
//   places      a a a b | a a b b | a a b b | a a b c
//
//   sequence    a a a a a b b b b b c c c d d d      D = 2, if all are whole: a and c on rank 0, b and d on rank 1
//   places      a a a a | b b b b | b d d d | a c c c
//
// Long are those of more tokens than a limit: that of the longest document, but 2D·kWholePiece at most, or half as many, and so
// on to 0, whichever leaves the busiest rank the least work by this estimate, the largest of several that do. A piece of c tokens
// counts as its pairs times (c + kPanel) / c, since a panel of queries that holds several short pieces computes the keys of all
// their documents for each of its queries. Of documents that are cut, c is a chunk's share, 1 at least, and each rank is taken to
// have as much of them. So documents that are too short for even shares, or even too short to be cut into 2D chunks, may leave
// ranks uneven where evening them out would cost more than it saves.
//
// Places number the tokens in the order in which they are dealt. Within a chunk documents are in their own order, and so are the
// tokens of each document over all chunks. So a model may compute with places for positions, if masks tell documents apart and
// rotations take positions in documents (Documents in core/kernels/flash.h).
#pragma once

#include "layers/io/config.h"
#include "layers/layout/zigzag.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Returns whether documents are dealt where zigzag cuts sequences like this: if several ranks share them, no layer's window is
/// shorter than the sequence, since places would scatter the keys that it shows, and no probabilities of attention are dropped,
/// which are drawn by positions. Where heads are exchanged, ranks have whole sequences to attend to, and nothing is
/// dealt.
bool deals_documents(const ModelConfig& config, const Zigzag& cut);

/// Tokens of a chunk's share of a document from which on the document is always cut: as many as flash attention's largest tiles
/// have, about.
inline constexpr std::size_t kWholePiece = 512;
/// Queries of a panel of flash attention, about, to which kernels apply all keys that any of them sees.
inline constexpr std::size_t kPanel = 64;

/// The documents of one sequence, dealt.
class Deal {
 public:
  /// Deals documents of these lengths, which are the cut's sequence together.
  Deal(const Zigzag& cut, std::span<const std::uint32_t> lengths);

  /// Returns for each place the position in the sequence of its token.
  std::vector<std::uint32_t> order() const;
  /// Returns Zigzag::attention_pairs() of these documents.
  std::size_t pairs(int rank, std::size_t window = 0) const;

  /// Tokens of a document that lie one behind the other in a chunk.
  struct Piece {
    std::size_t start;     ///< position in the sequence at which the document begins
    std::size_t position;  ///< of the piece's first token, in the document
    std::size_t count;
  };
  /// Returns the pieces of a chunk, in the order of places.
  std::vector<Piece> pieces(int chunk) const;

 private:
  /// A document that is cut into a piece for each chunk.
  struct CutDocument {
    std::size_t start;
    std::size_t length;
    std::size_t first_odd;  // the chunk that gets its first odd token
  };
  std::size_t deal(std::span<const Piece> documents, std::size_t cut_ones);
  std::size_t deal_whole(std::span<const Piece> documents, std::vector<std::size_t> room);
  void lay(std::span<const Piece> documents, std::span<const std::size_t> into, std::vector<std::size_t>& room);
  std::size_t chunks() const { return whole_.size(); }
  std::size_t other(std::size_t rank) const { return chunks() - 1 - rank; }
  std::size_t before(const CutDocument& document, std::size_t chunk) const;

  Zigzag cut_;
  std::vector<CutDocument> long_;          // in the order of the sequence
  std::vector<std::vector<Piece>> whole_;  // by chunk: of documents that aren't cut so
};

}  // namespace tsprun::detail
