// Packs, exchanges and unpacks each half of the sequence with all_to_all_v.
#include "layers/schedules/sp/head_exchange.h"

#include <numeric>

namespace tsprun::detail {

namespace {

std::vector<int> reversed_ranks(int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

std::size_t sum_of(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Returns one half of the sequence of `whole` [S, B, heads, …], which is contiguous.
Tensor half_of(const Tensor& whole, const TokenLayout& tokens, std::size_t half) {
  const std::size_t middle = tokens.cut().chunk_start(tokens.cut().ranks());
  return half == 0 ? whole.slice(0, 0, middle) : whole.slice(0, middle, tokens.sequence() - middle);
}

/// Views elements [first, first + count) of a pack, a chunk [tokens, B, heads, e], as [B, tokens, heads·e].
Tensor chunk_of(const OwnedTensor& packed, std::size_t first, std::size_t count, std::size_t tokens, std::size_t batch,
                std::size_t width) {
  return packed->slice(0, first, count).reshaped({tokens, batch, width}).transposed(0, 1);
}

}  // namespace

HeadExchange::HeadExchange(const SequenceAxis& axis) : axis_(axis), reversed_(axis.group.subgroup(reversed_ranks(axis.D()))) {}

HeadExchange::Counts HeadExchange::counts(const TokenLayout& tokens, std::size_t half, const HeadRanges& of,
                                          std::size_t e) const {
  const auto elements = [&](int holder, int owner) {
    return tokens.chunks_of(holder)[half].count * tokens.batch() * of[static_cast<std::size_t>(owner)].count * e;
  };
  Counts counts;
  for (int i = 0; i < axis_.D(); ++i) {
    counts.own_tokens.push_back(elements(axis_.p(), member(half, i)));
    counts.own_heads.push_back(elements(member(half, i), axis_.p()));
  }
  return counts;
}

HeadExchange::Move HeadExchange::to_heads(const TokenLayout& tokens, const Tensor& whole, const ConstTensor& all,
                                          const HeadRanges& of, const CallOptions& options) {
  Move move;
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk mine = tokens.chunks()[half];
    const Counts n = counts(tokens, half, of, all.size(3));
    OwnedTensor& packed = move.packed[half];
    packed = axis_.rank.tensor(Category::communication, all.dtype(), {sum_of(n.own_tokens)}, "heads that leave");
    std::size_t first = 0;
    for (int i = 0; i < axis_.D(); ++i) {
      const HeadRange& heads = of[static_cast<std::size_t>(member(half, i))];
      const std::size_t count = n.own_tokens[static_cast<std::size_t>(i)];
      axis_.compute().convert(chunk_of(packed, first, count, mine.count, tokens.batch(), heads.count * all.size(3)),
                              all.slice(1, mine.first, mine.count).slice(2, heads.first, heads.count).merged(2));
      first += count;
    }
    move.work[half] = group(half).post_all_to_all_v(buffer_of(ConstTensor(packed.view())), n.own_tokens,
                                                    buffer_of(half_of(whole, tokens, half)), n.own_heads, options);
  }
  return move;
}

HeadExchange::Move HeadExchange::to_tokens(const TokenLayout& tokens, const Tensor& whole, const HeadRanges& of,
                                           const CallOptions& options) {
  Move move;
  for (std::size_t half = 0; half < kHalves; ++half) {
    const Counts n = counts(tokens, half, of, whole.size(3));
    move.packed[half] = axis_.rank.tensor(Category::communication, whole.dtype(), {sum_of(n.own_tokens)}, "heads that arrive");
    move.work[half] = group(half).post_all_to_all_v(buffer_of(ConstTensor(half_of(whole, tokens, half))), n.own_heads,
                                                    buffer_of(move.packed[half].view()), n.own_tokens, options);
  }
  return move;
}

void HeadExchange::wait(const Move& move) const {
  for (const Work& half : move.work) axis_.rank.wait(half);
}

void HeadExchange::unpack(const TokenLayout& tokens, const Tensor& all, Move& move, const HeadRanges& of, bool copied) const {
  const std::size_t e = all.size(3);
  wait(move);
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk mine = tokens.chunks()[half];
    const Tensor rows = all.slice(1, mine.first, mine.count);
    const Counts n = counts(tokens, half, of, e);
    std::vector<bool> written(all.size(2), false);
    for (int i = 1; i <= axis_.D(); ++i) {
      const int owner = (axis_.p() + i) % axis_.D();
      const auto at = static_cast<std::ptrdiff_t>(member(half, owner));  // its place in the group: members are their own inverse
      const std::size_t first = std::accumulate(n.own_tokens.begin(), n.own_tokens.begin() + at, std::size_t{0});
      const HeadRange& heads = of[static_cast<std::size_t>(owner)];
      const Tensor arrived = chunk_of(move.packed[half], first, n.own_tokens[static_cast<std::size_t>(at)], mine.count,
                                      tokens.batch(), heads.count * e);
      if (!copied) {
        axis_.compute().convert(rows.slice(2, heads.first, heads.count).merged(2), arrived);
        continue;
      }
      for (std::size_t head = 0; head < heads.count; ++head) {
        const Tensor to = rows.select(2, heads.first + head);
        const Tensor from = arrived.slice(2, head * e, e);
        if (written[heads.first + head]) axis_.compute().add(to, to, from);
        else axis_.compute().convert(to, from);
        written[heads.first + head] = true;
      }
    }
  }
  move = {};
}

}  // namespace tsprun::detail
