// The sum of squares of gradients that are cut over data ranks, with the bits that one rank gets that has all of them:
//
//   block of a part    ├─────── rank 1 ───────┼───── rank 2 ─────┤        a rank's chunk may end within a block
//
//   1. each rank adds the squares of the blocks that begin in its chunk
//   2. of a block that goes on in the next rank's chunk, it sends the sums of the lanes there, where more is added: in as many
//      rounds as the block has ranks besides the first
//   3. all gather the sums of all blocks, and the first adds them in their order, part by part
//
// All ranks do the same operations, whatever they have to send, so that one replica can stand for others in virtual time.
#include "layers/schedules/gradient_sums.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

namespace tsprun::detail {

namespace {

using kernels::kSquaresBlock;
using kernels::SquareLanes;

/// What one data rank has of a part that is counted: elements [first, end) of all of them.
struct SquaresPiece {
  Tensor gradient;  // of those elements; of other ranks' pieces it has no dims
  std::size_t first;
  std::size_t end;
  std::size_t all;

  bool any() const { return first < end; }
  /// Returns whether its first block begins on the rank before, and its last one ends on the next.
  bool goes_on() const { return any() && first % kSquaresBlock != 0; }
  bool stays_open() const { return any() && end < all && end % kSquaresBlock != 0; }
  /// Returns whether these are one block.
  bool passes() const { return goes_on() && stays_open() && first / kSquaresBlock == end / kSquaresBlock; }
  std::size_t blocks() const { return any() ? (end - 1) / kSquaresBlock - first / kSquaresBlock + 1 : 0; }
  std::size_t ended() const { return blocks() - (stays_open() ? 1 : 0); }
  /// Returns where the blocks that begin here begin.
  std::size_t begin() const { return goes_on() ? std::min(end, (first / kSquaresBlock + 1) * kSquaresBlock) : first; }
};

std::vector<SquaresPiece> pieces_of(const ParameterStore& store, int sharer) {
  std::vector<SquaresPiece> pieces;
  for (std::size_t pack = 0; pack < store.packs(); ++pack) {
    const PackPlan& plan = store.plan(pack);
    const std::vector<ElementRange> of_parts = states_held(plan, sharer);
    std::size_t before = 0;  // elements of the memory that belong to parts before
    for (std::size_t i = 0; i < of_parts.size(); ++i) {
      const ElementRange& held = of_parts[i];
      const std::size_t all = plan.parts[i].rows() * plan.parts[i].width();
      const std::size_t at = before + (store.is_cut(pack) ? 0 : held.first);
      before += store.is_cut(pack) ? held.count : all;
      if (!plan.parts[i].counted || all == 0) continue;
      const Tensor gradient = sharer == plan.sharer ? store.held_gradients(pack).slice(0, at, held.count) : Tensor();
      pieces.push_back({gradient, held.first, held.end(), all});
    }
  }
  return pieces;
}

using Lanes = std::vector<SquareLanes>;
constexpr CallOptions kOptions{.stream = Stream::gradients};

std::size_t doubles_in(const Lanes& lanes) { return lanes.size() * std::tuple_size_v<SquareLanes>; }

}  // namespace

std::vector<double> GradientSums::shared_squares() {
  ComputeStream& compute = rank_.compute();
  const int ranks = sharers_.size();
  const auto me = static_cast<std::size_t>(sharers_.rank());
  std::vector<std::vector<SquaresPiece>> pieces;  // by data rank
  for (int sharer = 0; sharer < ranks; ++sharer) pieces.push_back(pieces_of(store_, sharer));
  const std::vector<SquaresPiece>& mine = pieces[me];
  const auto add = [&](const SquaresPiece& piece, std::size_t from, std::size_t to, std::span<SquareLanes> blocks) {
    if (from < to) compute.add_squares(blocks, piece.gradient.slice(0, from - piece.first, to - from), from);
  };
  std::vector<Lanes> blocks;  // by piece
  for (const SquaresPiece& piece : mine) {
    Lanes& lanes = blocks.emplace_back(piece.blocks());
    add(piece, piece.begin(), piece.end, std::span(lanes).subspan(piece.goes_on() ? 1 : 0));
  }

  // A piece's first block comes in round 1 if it begins on the rank before, in round 2 if that rank has it from the one before, …
  std::vector<std::size_t> round_of(mine.size());  // 0: it begins here
  std::size_t rounds = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    std::size_t round = 0;
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
      const bool again = rank > 0 && pieces[rank - 1][i].passes();
      round = !pieces[rank][i].goes_on() ? 0 : again ? round + 1 : 1;
      rounds = std::max(rounds, round);
      if (rank == me) round_of[i] = round;
    }
  }
  for (std::size_t round = 1; round <= rounds; ++round) {
    Lanes sent;
    Lanes received(static_cast<std::size_t>(std::ranges::count(round_of, round)));
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const bool whole_block = mine[i].passes();
      if (mine[i].stays_open() && (whole_block ? round_of[i] + 1 == round : round == 1)) sent.push_back(blocks[i].back());
    }
    rank_.wait(sharers_.post_send_recv(ConstBuffer(sent.data(), doubles_in(sent), DType::f64), (sharers_.rank() + 1) % ranks,
                                       Buffer(received.data(), doubles_in(received), DType::f64),
                                       (sharers_.rank() + ranks - 1) % ranks, kOptions));
    auto next = received.begin();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (round_of[i] != round) continue;
      blocks[i].front() = *next++;
      add(mine[i], mine[i].first, mine[i].begin(), std::span(blocks[i]).first(1));
    }
  }

  std::vector<double> sums;  // of the blocks that end here
  for (std::size_t i = 0; i < mine.size(); ++i) {
    for (std::size_t block = 0; block < mine[i].ended(); ++block) sums.push_back(kernels::sum_of(blocks[i][block]));
  }
  std::vector<std::size_t> counts;
  std::vector<std::size_t> next = {0};  // number of the next sum of each rank
  for (const std::vector<SquaresPiece>& of : pieces) {
    counts.push_back(0);
    for (const SquaresPiece& piece : of) counts.back() += piece.ended();
    next.push_back(next.back() + counts.back());
  }
  std::vector<double> all(next.back());
  rank_.wait(sharers_.post_all_gather_v(ConstBuffer(std::span<const double>(sums)), Buffer(std::span(all)), counts, kOptions));
  std::vector<double> of_parts(mine.size());
  if (me > 0) return of_parts;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
      for (std::size_t block = 0; block < pieces[rank][i].ended(); ++block) of_parts[i] += all[next[rank]++];
    }
  }
  return of_parts;
}

}  // namespace tsprun::detail
