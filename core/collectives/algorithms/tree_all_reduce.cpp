// all_reduce, tree: every rank's chunk has a binomial tree of its own, rooted at that rank and equal to all others but for its
// place, and what two ranks have for each other in several trees is one message. So sums take ⌈log2 n⌉ steps instead of a ring's
// n−1, and as many bytes; and so does spreading them. This is Bruck et al.'s all-gather (IEEE TPDS 8(11), 1997), backwards for
// the sums; NCCL calls it PAT, parallel aggregated trees.
//
// A rank holds the chunks in the order of their ranks from itself on: place 0 is its own chunk, place p that of the rank p to its
// right. Of each distance d = 1, 2, 4, … < n there is a step in which m = min(d, n−d) chunks move:
//
//   sums     the largest d first. Places d … d+m−1 go to the rank d to the right, where they are places 0 … m−1; what comes from
//            the rank d to the left is added to places 0 … m−1
//   results  the smallest d first. Places 0 … m−1 go to the rank d to the left, where they are places d … d+m−1
//
// 2⌈log2 n⌉ steps, in each of which every rank sends a message. Partial sums travel in the accumulator's type. The order of sums
// depends on n. Sums, what comes of them, and results have memory of their own, each as large as the buffer: for buffers whose
// latencies weigh more than their bytes.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"

#include <algorithm>

namespace tsprun::detail {

/// A step of a tree: the distance d, and the number m of chunks that move.
struct TreeStep {
  int distance;
  int moved;
};

/// Returns the steps among n ranks, by distance.
static PerPeer<TreeStep> tree_steps(int ranks) {
  PerPeer<TreeStep> steps;
  for (int distance = 1; distance < ranks; distance *= 2) steps.push_back({distance, std::min(distance, ranks - distance)});
  return steps;
}

/// Chunks in the order in which a rank holds them: its own is at place 0.
class TreePlaces {
 public:
  TreePlaces(std::size_t elements, int rank, int ranks)
      : chunks_(Chunks::balanced(ranks, elements)), rank_(rank), ranks_(ranks) {}

  int chunk(int place) const { return (rank_ + place) % ranks_; }
  std::size_t count(int place) const { return chunks_.count(chunk(place)); }
  /// Returns the first element of a place among all; of place n, the number of elements.
  std::size_t offset(int place) const {
    const std::size_t own = chunks_.offset(rank_);
    return rank_ + place < ranks_ ? chunks_.offset(rank_ + place) - own
                                  : chunks_.total() - own + chunks_.offset(rank_ + place - ranks_);
  }
  /// Returns the elements of some places.
  std::size_t elements(int first, int places) const { return offset(first + places) - offset(first); }
  /// Returns the first element of a place in a buffer that holds chunks in the order of their ranks.
  std::size_t in_buffer(int place) const { return chunks_.offset(chunk(place)); }
  std::size_t total() const { return chunks_.total(); }
  /// Returns the elements of all sums that come.
  std::size_t landed() const {
    std::size_t sum = 0;
    for (const TreeStep& step : tree_steps(ranks_)) sum += elements(0, step.moved);
    return sum;
  }

 private:
  Chunks chunks_;
  int rank_;
  int ranks_;
};

/// What a tree_all_reduce holds.
struct TreeState {
  TreeState(Collective& me, const Arguments& call);

  std::byte* sum(int place) const { return sums.bytes().data() + places.offset(place) * wire; }
  std::size_t messages() const { return steps.size(); }

  DType dtype;
  DType sum_type;
  std::size_t element;
  std::size_t wire;
  PerPeer<TreeStep> steps;
  TreePlaces places;
  HeapBlock sums;     // partial sums, by place
  HeapBlock landing;  // those of others
  HeapBlock results;  // by place
  Landing spread;
  PerPeer<Message> terms;     // by step, largest distance first
  PerPeer<Arrival> arrivals;  // by step, smallest first
};

TreeState::TreeState(Collective& me, const Arguments& call)
    : dtype(call.send.dtype),
      sum_type(kernels::accumulator_of(dtype)),
      element(size_of(dtype)),
      wire(size_of(sum_type)),
      steps(tree_steps(me.size())),
      places(call.send.count, me.rank(), me.size()),
      sums(me.group().heap->allocate(places.total() * wire, "partial sums of a tree")),
      landing(me.group().heap->allocate(me.group().views ? 0 : places.landed() * wire, "others' partial sums of a tree")),
      results(me.group().heap->allocate(places.total() * element, "results of a tree")),
      spread(me, results.bytes()) {
  std::size_t landed = 0;
  for (std::size_t i = steps.size(); i-- > 0;) {
    const auto [distance, moved] = steps[i];
    const std::size_t bytes = places.elements(0, moved) * wire;
    terms.emplace_back(me, me.left_by(distance), static_cast<std::uint32_t>(terms.size()), bytes,
                       me.group().views ? nullptr : landing.bytes().data() + landed);
    landed += bytes;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto [distance, moved] = steps[i];
    arrivals.emplace_back(spread, me.left_by(me.size() - distance), static_cast<std::uint32_t>(steps.size() + i),
                          results.bytes().subspan(places.offset(distance) * element, places.elements(distance, moved) * element));
  }
}

/// Writes this rank's terms of other chunks to their places, where they are the first of sums.
static Task begin_sums(Collective& me, TreeState& all, const Arguments& call) {
  const std::size_t most = kSegmentBytes / all.wire;
  for (int place = 1; place < me.size(); ++place) {
    for (std::size_t at = 0; at < all.places.count(place); at += most) {
      const std::size_t count = std::min(most, all.places.count(place) - at);
      me.widen(all.dtype, call.send.data + (all.places.in_buffer(place) + at) * all.element, all.sum(place) + at * all.wire,
               count);
      if (count * all.wire < me.budget) me.budget -= count * all.wire;
      else co_await me.pause();
    }
  }
}

/// Adds what a step has brought, to places 0 … moved−1. This rank's own term of place 0 comes last of all.
static Task add_terms(Collective& me, TreeState& all, const Arguments& call, std::size_t step) {
  const std::size_t moved = all.places.elements(0, all.steps[all.messages() - 1 - step].moved);
  const std::size_t most = kSegmentBytes / all.wire;
  Message& message = all.terms[step];
  const std::size_t own = all.places.count(0);
  if (step == 0) me.copy(all.sum(0), message.bytes(0, own * all.wire), own * all.wire);
  for (std::size_t at = step == 0 ? own : 0; at < moved; at += most) {
    const std::size_t count = std::min(most, moved - at);
    std::byte* const sum = all.sum(0) + at * all.wire;
    me.reduce_term(all.sum_type, sum, message.bytes(at * all.wire, count * all.wire), sum, count, false);
    if (at + count < moved) co_await me.pause();
  }
  message.release();
  if (step + 1 < all.messages()) co_return;
  const std::byte* const term = call.send.data + all.places.in_buffer(0) * all.element;
  for (std::size_t at = 0; at < own; at += most) {
    const std::size_t count = std::min(most, own - at);
    me.reduce_term(all.dtype, all.sum(0) + at * all.wire, term + at * all.element, all.results.bytes().data() + at * all.element,
                   count, true);
    if (at + count < own) co_await me.pause();
  }
}

Task tree_all_reduce(Collective& me, const Arguments& call) {
  TreeState all(me, call);
  Offer sums(me, all.sums.bytes(), all.sums.bytes().size(), Readers::one, Owner::operation);
  Offer results(me, all.results.bytes(), all.results.bytes().size(), Readers::several, Owner::operation);
  co_await me.turn();
  for (Message& message : all.terms) message.ask();  // where there is no credit now, its wait asks again
  co_await begin_sums(me, all, call);
  for (std::size_t step = 0; step < all.messages(); ++step) {
    const auto [distance, moved] = all.steps[all.messages() - 1 - step];
    co_await sums.sent(me.left_by(me.size() - distance), static_cast<std::uint32_t>(step), all.places.offset(distance) * all.wire,
                       all.places.elements(distance, moved) * all.wire);
    co_await all.terms[step];
    co_await add_terms(me, all, call, step);
  }
  for (Arrival& arrival : all.arrivals) arrival.ask();
  for (std::size_t step = 0; step < all.messages(); ++step) {
    const auto [distance, moved] = all.steps[step];
    co_await results.sent(me.left_by(distance), static_cast<std::uint32_t>(all.messages() + step), 0,
                          all.places.elements(0, moved) * all.element);
    co_await all.arrivals[step];
  }
  // From this rank's chunk to the last one, then from the first one to this rank's.
  const std::size_t behind = all.places.offset(me.size() - me.rank()) * all.element;
  const std::size_t own = all.places.in_buffer(0) * all.element;
  co_await LocalCopy(me, call.recv.data + own, all.results.bytes().data(), behind);
  co_await LocalCopy(me, call.recv.data, all.results.bytes().data() + behind, own);
  co_await sums.drained();
  co_await results.drained();
  co_await me.finished();
}

std::uint64_t tree_all_reduce_received(const Group& group, const Arguments& call) {
  const TreePlaces places(call.send.count, group.rank, group.size());
  const std::size_t others = places.total() - places.count(0);
  return places.landed() * size_of(kernels::accumulator_of(call.send.dtype)) + others * size_of(call.send.dtype);
}

}  // namespace tsprun::detail
