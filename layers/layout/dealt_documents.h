// Documents that are packed into a sequence, dealt to the ranks that share it: each document is cut into 2D chunks of its own, of
// which rank p gets chunks p and 2D − 1 − p, so that every rank has as much of each document's attention, however long documents
// are. A document's chunks differ by at most one token. The odd tokens of all documents are dealt round, chunk by chunk from
// where those of the document before ended. So place c of the sequence's own cut into 2D chunks (zigzag.h) gets as many tokens as
// that cut has: what ranks hold, send and receive stays what it is without documents.
//
//   sequence    a a a a a a a a a b b b b b b c      D = 2; a's odd token goes to chunk 0, b's two to 1 and 2, c's one to 3
//   places      a a a b | a a b b | a a b b | a a b c
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

/// Returns for each place the position in the sequence of its token. `starts` [S]: for each position, that of the first token of
/// its document.
std::vector<std::uint32_t> dealt_order(const Zigzag& cut, std::span<const std::uint32_t> starts);

/// Returns Zigzag::attention_pairs() where documents of these lengths are dealt.
std::size_t dealt_pairs(const Zigzag& cut, int rank, std::size_t window, std::span<const std::uint32_t> lengths);

}  // namespace tsprun::detail
