// all_reduce and barrier through rank 0, for groups so large that n² messages are too many: they send 2(n−1). Rank 0 sums every
// chunk in the canonical order, so the result has the same bits as with the other algorithms.
#include "core/collectives/operations.h"
#include "core/kernels/reduce.h"

namespace tsprun::detail {

namespace {
constexpr int kRoot = 0;
constexpr std::uint32_t kInputStep = 0;
constexpr std::uint32_t kResultStep = 1;
}  // namespace

// --- all_reduce --------------------------------------------------------------------------------------------------------------

RootedAllReduce::RootedAllReduce(const Call& call, ConstBuffer send, Buffer recv)
    : Collective(call), send_(send), recv_(recv), chunks_(Chunks::balanced(size(), send.count)) {
  const std::size_t bytes = send_.bytes();
  if (rank() != kRoot) {
    offer_.set(*this, send_.as_bytes(), bytes, Readers::one);
    return;
  }
  if (peers() > 0) offer_.set(*this, std::span<const std::byte>(recv_.as_bytes()), bytes, Readers::several);
  const auto count = static_cast<std::size_t>(peers());
  messages_.fill(count, Incoming());
  if (!group().views) landings_ = group().heap->allocate(count * bytes, "peers' parts of an all_reduce");
}

bool RootedAllReduce::step(Engine& engine) { return rank() == kRoot ? step_root(engine) : step_other(engine); }

bool RootedAllReduce::step_other(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  set_missing(kRoot);
  if (sent_ == 0) {
    if (!offer_.prepare_all(*this, engine, prepared_, budget)) return false;
    if (!offer_.send(*this, kRoot, kInputStep, 0, send_.bytes())) return false;
    offer_.all_sent();
    sent_ = 1;
  }
  // Works in place, too: the root sends the result only when it has read all inputs.
  if (!arrival_.posted() && !arrival_.post(*this, kRoot, kResultStep, recv_.as_bytes(), recv_.as_bytes(), landing_)) return false;
  if (arrival_.advance(*this, engine, budget) && !arrival_.done()) engine.moved();
  return arrival_.done() && offer_.drained(*this, engine);
}

bool RootedAllReduce::step_root(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  for (; posted_ < peers(); ++posted_) {
    const auto i = static_cast<std::size_t>(posted_);
    std::byte* landing = group().views ? nullptr : landings_.bytes().data() + i * send_.bytes();
    if (!messages_[i].post(*this, peer(posted_), kInputStep, send_.bytes(), landing)) break;
  }
  for (; arrived_ < posted_; ++arrived_) {
    if (!messages_[static_cast<std::size_t>(arrived_)].arrived(*this, engine)) {
      set_missing(peer(arrived_));
      return false;
    }
  }
  if (arrived_ < peers()) return false;
  while (summed_ < size()) {
    sum_chunk(summed_);
    if (++summed_ == size()) {
      for (Incoming& message : messages_) message.release(*this);
    }
    const std::size_t read = chunks_.largest() * size_of(send_.dtype) * static_cast<std::size_t>(size());
    if (read < budget) {
      budget -= read;
      continue;
    }
    engine.moved();
    return false;
  }
  if (peers() == 0) return true;
  if (!offer_.prepare_all(*this, engine, prepared_, budget)) return false;
  while (sent_ < peers()) {
    if (!offer_.send(*this, peer(sent_), kResultStep, 0, recv_.bytes())) return false;
    if (++sent_ == peers()) offer_.all_sent();
  }
  return offer_.drained(*this, engine);
}

/// Sums chunk c over all ranks, in the order c+1, c+2, …, c.
void RootedAllReduce::sum_chunk(int c) {
  const std::size_t count = chunks_.count(c);
  if (count == 0) return;
  const std::size_t at = chunks_.offset(c) * size_of(send_.dtype);
  SmallVector<const std::byte*, kInlinePeers> terms;
  terms.fill(static_cast<std::size_t>(size()), nullptr);
  for (int i = 0; i < size(); ++i) {
    const int from = (c + 1 + i) % size();
    // The i-th peer of the root is rank i+1.
    terms[static_cast<std::size_t>(i)] =
        from == kRoot ? send_.data + at
                      : messages_[static_cast<std::size_t>(from - 1)].bytes(*this, at, count * size_of(send_.dtype));
  }
  kernels::reduce(info().reduction, send_.dtype, {terms.data(), terms.size()}, recv_.data + at, count);
}

// --- barrier -----------------------------------------------------------------------------------------------------------------

RootedBarrier::RootedBarrier(const Call& call) : Collective(call) {
  messages_.fill(rank() == kRoot ? static_cast<std::size_t>(peers()) : 1, Incoming());
}

bool RootedBarrier::step(Engine& engine) {
  const bool root = rank() == kRoot;
  const int others = root ? peers() : 1;
  const auto other = [&](int i) { return root ? peer(i) : kRoot; };
  const auto say = [&](std::uint32_t step) {
    while (sent_ < others && offer_.send(*this, other(sent_), step, 0, 0)) ++sent_;
    return sent_ == others;
  };
  if (!root && !say(kInputStep)) return false;
  const std::uint32_t expected = root ? kInputStep : kResultStep;
  while (posted_ < others && messages_[static_cast<std::size_t>(posted_)].post(*this, other(posted_), expected, 0, nullptr)) {
    ++posted_;
  }
  for (; arrived_ < posted_; ++arrived_) {
    if (!messages_[static_cast<std::size_t>(arrived_)].arrived(*this, engine)) {
      set_missing(other(arrived_));
      return false;
    }
  }
  return arrived_ == others && (!root || say(kResultStep));
}

}  // namespace tsprun::detail
