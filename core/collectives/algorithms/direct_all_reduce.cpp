// all_reduce, direct: a direct reduce_scatter and a direct all_gather in one. The buffer is cut into n chunks, of which rank p
// sums chunk p; a *segment* is the part of a chunk that is passed on at once. Rank p sums its chunk straight from the others'
// memory, segment by segment, and sends each segment to all when it is done; the others copy it while it is still in the cache.
// To make sure that it still is, no rank sums more than kAhead segments beyond those that it has collected from the slowest of
// its peers.
//
// Two steps; each rank sends n−1 messages with inputs and n−1 with each segment of its chunk, and receives n−1 times its own
// chunk and once everybody else's. In place it needs no further synchronisation: chunk p of every rank's buffer is read only by
// rank p, before p sends its result.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

#include <algorithm>
#include <limits>

namespace tsprun::detail {

namespace {
constexpr std::size_t kAhead = 2;
constexpr std::uint32_t kDirectInput = 0;  // steps
constexpr std::uint32_t kDirectResult = 1;
}  // namespace

/// The buffer of an all_reduce, in chunks and segments.
class Segments {
 public:
  Segments(Buffer buffer, Chunks cut)
      : chunks(std::move(cut)), buffer_(buffer), elements_(kSegmentBytes / size_of(buffer.dtype)) {}
  /// Returns the number of segments of a chunk; an empty chunk has one, too, so that there is always a message.
  std::size_t number(int chunk) const { return std::max<std::size_t>(1, (chunks.count(chunk) + elements_ - 1) / elements_); }
  /// Returns the first element of a segment, counted within its chunk.
  std::size_t first(std::size_t index) const { return index * elements_; }
  std::span<std::byte> at(int chunk, std::size_t index) const {
    const std::size_t count = std::min(elements_, chunks.count(chunk) - first(index));
    return buffer_.slice(chunks.offset(chunk) + first(index), count).as_bytes();
  }
  const Chunks chunks;

 private:
  Buffer buffer_;
  std::size_t elements_;
};

/// The others' segments: the condition that all are at their places.
class SegmentGather {
 public:
  SegmentGather(Collective& me, Buffer recv, const Segments& segments)
      : me_(me), segments_(segments), landing_(me, recv.as_bytes()), next_(static_cast<std::size_t>(me.peers())) {
    arrivals_.reserve(next_.size());
    for (int i = 0; i < me.peers(); ++i) arrivals_.push_back(arrival(i));
  }

  /// Copies the segments that have arrived.
  bool poll() {
    bool complete = true;
    moved_ = false;
    for (std::size_t i = next_.size(); i-- > 0;) {
      const int from = me_.peer(static_cast<int>(i));
      while (next_[i] < segments_.number(from) && me_.budget > 0) {
        Arrival& arriving = arrivals_[i];
        if (!arriving.ask() || !arriving.advance()) break;
        moved_ = true;
        if (!arriving.done()) break;
        if (++next_[i] < segments_.number(from)) arriving = arrival(static_cast<int>(i));
      }
      if (next_[i] == segments_.number(from)) continue;
      complete = false;
      me_.set_missing(from, static_cast<std::uint32_t>(next_[i]) + 1);
    }
    if (moved_ && !complete) me_.moved();
    return complete;
  }
  /// Returns true if the last poll() found a segment.
  bool moved() const { return moved_; }
  /// Returns the number of segments collected from the slowest of the peers that still have segments to send.
  std::size_t slowest() const {
    std::size_t slowest = std::numeric_limits<std::size_t>::max() - kAhead;
    for (std::size_t i = 0; i < next_.size(); ++i) {
      if (next_[i] < segments_.number(me_.peer(static_cast<int>(i)))) slowest = std::min(slowest, next_[i]);
    }
    return slowest;
  }

 private:
  Arrival arrival(int i) {
    const int from = me_.peer(i);
    return {landing_, from, kDirectResult, segments_.at(from, next_[static_cast<std::size_t>(i)])};
  }
  Collective& me_;
  const Segments& segments_;
  Landing landing_;
  PerPeer<std::size_t> next_;  // by peer: index of the segment that is expected
  PerPeer<Arrival> arrivals_;
  bool moved_ = false;
};

/// The second half of the operation, all at once: this rank's segments are summed and sent, the others' collected.
class SegmentPipeline {
 public:
  SegmentPipeline(Collective& me, const Arguments& call, const Segments& segments)
      : result(me),
        me_(me),
        segments_(segments),
        own_(call.send.data + segments.chunks.offset(me.rank()) * size_of(call.send.dtype)),
        element_(size_of(call.send.dtype)),
        last_(segments.number(me.rank())),
        sum_(prepare(call), call.send.dtype, segments.chunks.count(me.rank()), kDirectInput),
        gather_(me, call.recv, segments) {}

  bool poll() {
    sum_.ask();
    const bool sent = send_results();
    const bool collected = gather_.poll();
    const bool reduced = reduce_segment();
    return reduced && sent && collected && sent_ == last_;
  }

  Offer result;  ///< of this rank's segments

 private:
  Collective& prepare(const Arguments& call) {
    const Buffer chunk = call.recv.slice(segments_.chunks.offset(me_.rank()), segments_.chunks.count(me_.rank()));
    if (me_.peers() > 0) result.set(chunk.as_bytes(), std::min(chunk.bytes(), kSegmentBytes), Readers::several);
    return me_;
  }

  /// Sums the next segment of the own chunk unless this rank is too far ahead; returns true when all segments are done. It waits
  /// for the others' segments only while these keep arriving: until the own chunk is done, the peers' inputs are viewed and their
  /// credits held back, so a peer with more segments than its lane has slots couldn't go on otherwise.
  bool reduce_segment() {
    if (reduced_ == last_) return true;
    if ((gather_.moved() && reduced_ >= gather_.slowest() + kAhead) || !sum_.poll()) return false;
    const std::span<std::byte> out = segments_.at(me_.rank(), reduced_);
    const std::size_t first = segments_.first(reduced_);
    if (summed_ == reduced_) {
      sum_.sum(own_ + first * element_, out.data(), first, out.size() / element_, kernels::Stores::cached);
      // Release the inputs before waiting for room: peers may wait until their inputs are read before they read this rank's data.
      if (++summed_ == last_) sum_.release();
      me_.moved();
    }
    if (me_.peers() > 0 && !result.prepare(first * element_, out.size())) return false;
    ++reduced_;
    send_results();
    return reduced_ == last_;
  }

  /// Sends summed segments to all peers; returns true if none is left to send.
  bool send_results() {
    while (sent_ < reduced_) {
      const std::size_t bytes = segments_.at(me_.rank(), sent_).size();
      for (; peer_ < me_.peers(); ++peer_) {
        if (!result.send(me_.peer(peer_), kDirectResult, segments_.first(sent_) * element_, bytes)) return false;
      }
      peer_ = 0;
      ++sent_;
    }
    return true;
  }

  Collective& me_;
  const Segments& segments_;
  const std::byte* own_;  // this rank's part of the own chunk
  std::size_t element_;
  std::size_t last_;  // number of segments of the own chunk
  PeerSum sum_;
  SegmentGather gather_;
  std::size_t summed_ = 0;   // segments of the own chunk that are summed
  std::size_t reduced_ = 0;  // segments of the own chunk that may be sent
  std::size_t sent_ = 0;     // segments sent to all
  int peer_ = 0;             // next peer for segment sent_
};

Task direct_all_reduce(Collective& me, const Arguments& call) {
  // Of a round (rounds.h) the stretches are given.
  const bool is_round = call.chunks.total() != 0;
  const Segments segments(call.recv, is_round ? call.chunks : Chunks::balanced(me.size(), call.send.count));
  const std::size_t element = size_of(call.send.dtype);
  Offer input(me, call.send.as_bytes(), segments.chunks.largest() * element, Readers::one);
  SendToPeers inputs(me, input, kDirectInput, segments.chunks, element);
  SegmentPipeline pipeline(me, call, segments);
  co_await me.turn();
  co_await inputs;
  input.all_sent();
  co_await pipeline;
  co_await input.drained();
  co_await pipeline.result.drained();
  co_await me.finished();
}

std::uint64_t direct_all_reduce_received(const Group& group, const Arguments& call) {
  const std::uint64_t own = Chunks::balanced(group.size(), call.send.count).count(group.rank);
  return (static_cast<std::uint64_t>(group.size() - 1) * own + call.send.count - own) * size_of(call.send.dtype);
}

}  // namespace tsprun::detail
