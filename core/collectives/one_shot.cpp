// all_reduce in one round, for small buffers: one message to and from every other rank instead of two. Every chunk is summed in
// the canonical order, so the result has the same bits as with the other algorithms.
#include "core/collectives/operations.h"
#include "core/kernels/reduce.h"

namespace tsprun::detail {

OneShotAllReduce::OneShotAllReduce(const Call& call, ConstBuffer send, Buffer recv) : Collective(call), send_(send), recv_(recv) {
  const std::size_t bytes = send_.bytes();
  // In place, the result would overwrite input that slower peers have yet to read.
  const Owner owner = send_.data == recv_.data ? Owner::changing : Owner::caller;
  if (peers() > 0) offer_.set(*this, send_.as_bytes(), bytes, Readers::several, owner);
  const auto count = static_cast<std::size_t>(peers());
  messages_.fill(count, Incoming());
  if (count * bytes <= near_landing_.size() && bytes <= group().plain_limit) {
    landing_ = near_landing_.data();
  } else if (!group().views) {
    far_landing_ = group().heap->allocate(count * bytes, "peers' parts of an all_reduce");
    landing_ = far_landing_.bytes().data();
  }
}

bool OneShotAllReduce::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  const std::size_t bytes = send_.bytes();
  if (peers() > 0 && !offer_.prepare_all(*this, engine, prepared_, budget)) return false;
  if (sent_ < peers()) {
    while (sent_ < peers() && offer_.send(*this, peer(sent_), 0, 0, bytes)) ++sent_;
    if (sent_ == peers()) offer_.all_sent();
  }
  for (; posted_ < peers(); ++posted_) {
    const auto i = static_cast<std::size_t>(posted_);
    std::byte* landing = landing_ == nullptr ? nullptr : landing_ + i * bytes;
    if (!messages_[i].post(*this, peer(posted_), 0, bytes, landing)) break;
  }
  for (; arrived_ < posted_; ++arrived_) {
    if (!messages_[static_cast<std::size_t>(arrived_)].arrived(*this, engine)) {
      set_missing(peer(arrived_));
      return false;
    }
  }
  if (arrived_ < peers()) return false;
  if (!summed_) sum_all();
  summed_ = true;
  return sent_ == peers() && offer_.drained(*this, engine);
}

void OneShotAllReduce::sum_all() {
  const std::size_t element = size_of(send_.dtype);
  const auto n = static_cast<std::size_t>(size());
  // All ranks' buffers, listed twice: so the terms of chunk c, ranks c+1 … c (cyclic), are consecutive entries.
  SmallVector<const std::byte*, 2 * kInlinePeers> inputs;
  inputs.fill(2 * n, nullptr);
  inputs[static_cast<std::size_t>(rank())] = send_.data;
  for (int i = 0; i < peers(); ++i) {
    const auto from = static_cast<std::size_t>(peer(i));
    inputs[from] = messages_[static_cast<std::size_t>(i)].bytes(*this, 0, send_.bytes());
  }
  for (std::size_t r = 0; r < n; ++r) inputs[n + r] = inputs[r];

  SmallVector<const std::byte*, kInlinePeers> terms;
  terms.fill(n, nullptr);
  const Chunks chunks = Chunks::balanced(size(), send_.count);
  for (int c = 0; c < size(); ++c) {
    const std::size_t at = chunks.offset(c) * element;
    const std::size_t count = chunks.count(c);
    if (count == 0) break;  // only the first chunks of a buffer shorter than the group have an element
    for (std::size_t i = 0; i < n; ++i) terms[i] = inputs[static_cast<std::size_t>(c) + 1 + i] + at;
    kernels::reduce(info().reduction, send_.dtype, {terms.data(), n}, recv_.data + at, count);
  }
  for (Incoming& message : messages_) message.release(*this);
}

}  // namespace tsprun::detail
