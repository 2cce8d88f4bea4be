// Direct all_reduce. Rank p sums chunk p straight from the others' memory, one segment at a time, and sends each segment to all
// when it is done; the others copy it while it is still in the cache. To make sure that it still is, no rank reduces more than
// kAhead segments beyond those that it has collected from the slowest of its peers.
#include "core/collectives/operations.h"

#include <algorithm>
#include <limits>

namespace tsprun::detail {

namespace {
constexpr std::size_t kAhead = 2;
constexpr std::uint32_t kInputStep = 0;
constexpr std::uint32_t kResultStep = 1;
}  // namespace

DirectAllReduce::DirectAllReduce(const Call& call, ConstBuffer send, Buffer recv)
    : Collective(call),
      send_(send),
      recv_(recv),
      chunks_(Chunks::balanced(size(), send.count)),
      segment_elements_(kSegmentBytes / size_of(send.dtype)) {
  const std::size_t element = size_of(send_.dtype);
  if (peers() > 0) {
    input_.set(*this, send_.as_bytes(), chunks_.largest() * element, Readers::one);
    const Buffer own = recv_.slice(chunks_.offset(rank()), chunks_.count(rank()));
    result_.set(*this, std::span<const std::byte>(own.as_bytes()), std::min(own.bytes(), kSegmentBytes), Readers::several);
  }
  sum_.set(*this, send_.dtype, info().reduction, chunks_.count(rank()));
  gathers_.fill(static_cast<std::size_t>(peers()), Gather());
}

/// Returns the number of segments of a chunk; an empty chunk has one, too, so that there is always a message.
std::size_t DirectAllReduce::segments(int chunk) const {
  return std::max<std::size_t>(1, (chunks_.count(chunk) + segment_elements_ - 1) / segment_elements_);
}

std::span<std::byte> DirectAllReduce::segment(int chunk, std::size_t index) const {
  const std::size_t first = index * segment_elements_;
  const std::size_t count = std::min(segment_elements_, chunks_.count(chunk) - first);
  return recv_.slice(chunks_.offset(chunk) + first, count).as_bytes();
}

bool DirectAllReduce::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (!send_inputs(engine, budget)) return false;
  sum_.post(*this, kInputStep);
  const bool results_sent = send_results();
  const std::size_t budget_before = budget;
  const bool collected = collect(engine, budget);
  const bool reduced = reduce_segment(engine, budget != budget_before);
  return reduced && results_sent && collected && result_sent_ == segments(rank()) && input_.drained(*this, engine) &&
         result_.drained(*this, engine);
}

bool DirectAllReduce::send_inputs(Engine& engine, std::size_t& budget) {
  if (input_sent_ == peers()) return true;
  if (!input_.prepare_all(*this, engine, input_prepared_, budget)) return false;
  const std::size_t element = size_of(send_.dtype);
  for (; input_sent_ < peers(); ++input_sent_) {
    const int to = peer(input_sent_);
    if (!input_.send(*this, to, kInputStep, chunks_.offset(to) * element, chunks_.count(to) * element)) return false;
  }
  input_.all_sent();
  return true;
}

/// Reduces the next segment of the own chunk unless this rank is too far ahead; returns true when all segments are done. It waits
/// for the others' segments only while these keep arriving (`collecting`): until the own chunk is done, the peers' inputs are
/// viewed and their credits held back, so a peer with more segments than its lane has slots couldn't go on otherwise.
bool DirectAllReduce::reduce_segment(Engine& engine, bool collecting) {
  if (reduced_ == segments(rank())) return true;
  if ((collecting && reduced_ >= slowest_gather() + kAhead) || !sum_.arrived(*this, engine)) return false;
  const std::span<std::byte> out = segment(rank(), reduced_);
  const std::size_t element = size_of(send_.dtype);
  const std::size_t first = reduced_ * segment_elements_;
  const std::byte* own = send_.data + (chunks_.offset(rank()) + first) * element;
  if (summed_ == reduced_) {
    sum_.sum(*this, own, out.data(), first, out.size() / element, kernels::Stores::cached);
    // Release the inputs before waiting for room: peers may wait until their inputs are read before they read this rank's data.
    if (++summed_ == segments(rank())) sum_.release(*this);
    engine.moved();
  }
  if (peers() > 0 && !result_.prepare(*this, first * element, out.size())) return false;
  ++reduced_;
  send_results();
  return reduced_ == segments(rank());
}

/// Sends reduced segments to all peers; returns true if none is left to send.
bool DirectAllReduce::send_results() {
  const std::size_t element = size_of(send_.dtype);
  while (result_sent_ < reduced_) {
    const std::size_t bytes = segment(rank(), result_sent_).size();
    for (; result_peer_ < peers(); ++result_peer_) {
      if (!result_.send(*this, peer(result_peer_), kResultStep, result_sent_ * segment_elements_ * element, bytes)) return false;
    }
    result_peer_ = 0;
    if (++result_sent_ == segments(rank())) result_.all_sent();
  }
  return true;
}

/// Copies the others' segments that have arrived; returns true when all have.
bool DirectAllReduce::collect(Engine& engine, std::size_t& budget) {
  bool complete = true;
  bool moved = false;
  for (int i = peers() - 1; i >= 0; --i) {
    Gather& gather = gathers_[static_cast<std::size_t>(i)];
    const int from = peer(i);
    while (gather.next < segments(from) && budget > 0) {
      if (!gather.arrival.posted() &&
          !gather.arrival.post(*this, from, kResultStep, recv_.as_bytes(), segment(from, gather.next), landing_))
        break;
      if (!gather.arrival.advance(*this, engine, budget)) break;
      moved = true;
      if (!gather.arrival.done()) break;
      ++gather.next;
      gather.arrival = Arrival();
    }
    if (gather.next < segments(from)) {
      complete = false;
      set_missing_segment(from, gather.next);
    }
  }
  if (moved && !complete) engine.moved();
  return complete;
}

/// Returns the number of segments collected from the slowest of the peers that still have segments to send.
std::size_t DirectAllReduce::slowest_gather() const {
  std::size_t slowest = std::numeric_limits<std::size_t>::max() - kAhead;
  for (int i = 0; i < peers(); ++i) {
    const std::size_t next = gathers_[static_cast<std::size_t>(i)].next;
    if (next < segments(peer(i))) slowest = std::min(slowest, next);
  }
  return slowest;
}

}  // namespace tsprun::detail
