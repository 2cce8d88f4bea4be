// Cuts the arguments of direct algorithms.
#include "core/collectives/rounds.h"

#include "core/collectives/registry.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace tsprun::detail {

/// Returns true for algorithms that move a whole buffer instead of chunks of it.
static bool moves_whole(Start* start) { return start == direct_broadcast || start == direct_reduce; }

/// How the buffer of an operation is cut.
struct RoundCut {
  RoundCut(const Collective& me, const Arguments& call) {
    const std::size_t element = size_of(me.info().dtype);
    if (moves_whole(me.algorithm())) {
      largest = me.algorithm() == direct_broadcast ? call.recv.count : call.send.count;
      most = kRoundBytes / element;
    } else {
      chunks = call.chunks;
      if (me.algorithm() == direct_all_reduce && chunks.total() == 0) chunks = Chunks::balanced(me.size(), call.send.count);
      largest = chunks.largest();
      most = std::max(kRoundBytes / static_cast<std::size_t>(me.size()), kRoundPartBytes) / element;
    }
  }
  std::size_t rounds() const { return (largest + most - 1) / most; }

  Chunks chunks = Chunks::uniform(1, 0);
  std::size_t largest;  // elements of the largest chunk
  std::size_t most;     // elements of it that a round moves
};

namespace {

/// Returns how many of `count` elements belong to a round.
std::size_t in_round(const RoundCut& cut, std::size_t round, std::size_t count) {
  return std::min(cut.most, count - std::min(count, round * cut.most));
}

/// Returns the stretches of a round, one of each chunk.
Chunks stretches(const RoundCut& cut, std::size_t round, const Chunks& chunks, int ranks) {
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;
  for (int chunk = 0; chunk < ranks; ++chunk) {
    counts.push_back(in_round(cut, round, chunks.count(chunk)));
    offsets.push_back(chunks.offset(chunk) + round * cut.most);
  }
  return Chunks::placed(counts, offsets);
}

/// Returns a round's stretch of a buffer that holds one chunk, or is cut as a whole; nothing of a buffer that this rank hasn't.
template <class B>
B stretch(const RoundCut& cut, std::size_t round, const B& buffer) {
  if (buffer.data == nullptr) return buffer;
  return buffer.slice(std::min(buffer.count, round * cut.most), in_round(cut, round, buffer.count));
}

Arguments arguments_of(const Collective& me, const Arguments& call, const RoundCut& cut, std::size_t round) {
  Arguments part = call;
  Start* const start = me.algorithm();
  if (!moves_whole(start)) part.chunks = stretches(cut, round, cut.chunks, me.size());
  if (start == direct_all_to_all) part.send_chunks = stretches(cut, round, call.send_chunks, me.size());
  if (moves_whole(start) || start == direct_all_gather || start == direct_gather) part.send = stretch(cut, round, call.send);
  if (moves_whole(start) || start == direct_reduce_scatter || start == direct_scatter) part.recv = stretch(cut, round, call.recv);
  return part;
}

}  // namespace

bool goes_in_rounds(const Collective& me, const Arguments& call) {
  if (!may_go_in_rounds(call)) return false;
  if (me.engine().options().counted != nullptr) return false;  // virtual ranks' buffers lie where their GPUs can read them
  Start* const start = me.algorithm();
  const bool is_even = start == direct_all_to_all && call.chunks == Chunks::uniform(me.size(), call.chunks.largest());
  const bool can = is_even || moves_whole(start) || start == direct_all_reduce || start == direct_all_gather ||
                   start == direct_reduce_scatter || start == direct_gather || start == direct_scatter;
  return can && me.peers() > 0 && RoundCut(me, call).rounds() > 1;
}

Task in_rounds(Collective& me, const Arguments& call) {
  const RoundCut cut(me, call);
  // The first round is the largest: it allocates what all need now, and not in the middle of the operation.
  std::optional<Collective> part;
  part.emplace(me.among(me.group(), 0), me.algorithm(), arguments_of(me, call, cut, 0));
  co_await me.turn();
  for (std::size_t round = 0; round < cut.rounds(); ++round) {
    if (round != 0) part.emplace(me.among(me.group(), round), me.algorithm(), arguments_of(me, call, cut, round));
    co_await Subcollective(me, *part);
    part.reset();
    me.moved();
  }
  co_await me.finished();
}

}  // namespace tsprun::detail
