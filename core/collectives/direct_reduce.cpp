// Direct reduce_scatter and reduce: each rank sums its chunk straight from the peers' memory, in the canonical order: first the
// ranks after it, cyclically, then its own part.
#include "core/collectives/operations.h"
#include "core/kernels/reduce.h"

#include <algorithm>

namespace tsprun::detail {

// --- PeerSum -----------------------------------------------------------------------------------------------------------------

void PeerSum::set(const Collective& operation, DType dtype, Reduction reduction, std::size_t count) {
  dtype_ = dtype;
  reduction_ = reduction;
  count_ = count;
  const auto peers = static_cast<std::size_t>(operation.peers());
  messages_.fill(peers, Incoming());
  terms_.fill(peers + 1, nullptr);
  for (int i = 0; i < operation.peers(); ++i) {
    if (!Incoming::needs_landing(operation, operation.peer(i))) continue;
    landing_ = operation.group().heap->allocate(peers * count * size_of(dtype), "peers' parts of a reduction");
    break;
  }
}

bool PeerSum::post(Collective& operation, std::uint32_t step) {
  const std::size_t bytes = count_ * size_of(dtype_);
  for (; posted_ < operation.peers(); ++posted_) {
    const auto i = static_cast<std::size_t>(posted_);
    const int from = operation.peer(posted_);
    std::byte* landing = Incoming::needs_landing(operation, from) ? landing_.bytes().data() + i * bytes : nullptr;
    if (!messages_[i].post(operation, from, step, bytes, landing)) {
      operation.set_missing(from);
      return false;
    }
  }
  return true;
}

bool PeerSum::arrived(Collective& operation, Engine& engine) {
  for (; arrived_ < posted_; ++arrived_) {
    if (!messages_[static_cast<std::size_t>(arrived_)].arrived(operation, engine)) {
      operation.set_missing(operation.peer(arrived_));
      return false;
    }
  }
  return posted_ == operation.peers();
}

void PeerSum::sum(const Collective& operation, const std::byte* own, std::byte* out, std::size_t first, std::size_t count,
                  kernels::Stores stores) {
  const std::size_t element = size_of(dtype_);
  const auto peers = static_cast<std::size_t>(operation.peers());
  for (std::size_t i = 0; i < peers; ++i) terms_[i] = messages_[i].bytes(operation, first * element, count * element);
  terms_[peers] = own;
  kernels::reduce(reduction_, dtype_, {terms_.data(), terms_.size()}, out, count, stores);
}

void PeerSum::release(const Collective& operation) {
  for (Incoming& message : messages_) message.release(operation);
}

namespace {

/// Returns the number of elements that one step sums: fewer for more ranks, as it reads each element once for every rank.
std::size_t elements_a_step(DType dtype, int ranks) {
  constexpr std::size_t kReadBytes = 4 * kSegmentBytes;
  const std::size_t bytes = std::clamp<std::size_t>(kReadBytes / static_cast<std::size_t>(ranks), 4096, kSegmentBytes);
  return bytes / size_of(dtype);
}

}  // namespace

// --- reduce_scatter ----------------------------------------------------------------------------------------------------------

DirectReduceScatter::DirectReduceScatter(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks)
    : Collective(call), send_(send), recv_(recv), chunks_(std::move(chunks)) {
  if (peers() > 0) offer_.set(*this, send_.as_bytes(), chunks_.largest() * size_of(send_.dtype), Readers::one);
  sum_.set(*this, send_.dtype, info().reduction, chunks_.count(rank()));
}

bool DirectReduceScatter::step(Engine& engine) {
  std::size_t budget = kSegmentBytes;
  if (peers() > 0 && !offer_.prepare_all(*this, engine, prepared_, budget)) return false;
  const std::size_t element = size_of(send_.dtype);
  if (sent_ < peers()) {
    while (sent_ < peers() &&
           offer_.send(*this, peer(sent_), 0, chunks_.offset(peer(sent_)) * element, chunks_.count(peer(sent_)) * element)) {
      ++sent_;
    }
    if (sent_ == peers()) offer_.all_sent();
  }
  const std::size_t count = chunks_.count(rank());
  if (!sum_.post(*this, 0) || !sum_.arrived(*this, engine)) return false;
  if (reduced_ < count) {
    const std::size_t some = std::min(count - reduced_, elements_a_step(send_.dtype, size()));
    const std::byte* own = send_.data + (chunks_.offset(rank()) + reduced_) * element;
    sum_.sum(*this, own, recv_.data + reduced_ * element, reduced_, some, stores_for(recv_.bytes()));
    reduced_ += some;
    if (reduced_ < count) {
      engine.moved();
      return false;
    }
  }
  sum_.release(*this);
  return sent_ == peers() && offer_.drained(*this, engine);
}

// --- reduce ------------------------------------------------------------------------------------------------------------------

DirectReduce::DirectReduce(const Call& call, ConstBuffer send, Buffer recv, int root)
    : Collective(call), send_(send), recv_(recv), root_(root) {
  if (rank() == root_) {
    sum_.set(*this, send_.dtype, info().reduction, send_.count);
  } else {
    offer_.set(*this, send_.as_bytes(), send_.bytes(), Readers::one);
  }
}

bool DirectReduce::step(Engine& engine) {
  if (rank() == root_) return step_root(engine);
  std::size_t budget = kSegmentBytes;
  if (!offer_.prepare_all(*this, engine, prepared_, budget)) return false;
  if (!sent_) {
    if (!offer_.send(*this, root_, 0, 0, send_.bytes())) return false;
    offer_.all_sent();
    sent_ = true;
  }
  return offer_.drained(*this, engine);
}

bool DirectReduce::step_root(Engine& engine) {
  if (!sum_.post(*this, 0) || !sum_.arrived(*this, engine)) return false;
  if (reduced_ < send_.count) {
    const std::size_t some = std::min(send_.count - reduced_, elements_a_step(send_.dtype, size()));
    const std::size_t at = reduced_ * size_of(send_.dtype);
    sum_.sum(*this, send_.data + at, recv_.data + at, reduced_, some, stores_for(recv_.bytes()));
    reduced_ += some;
    if (reduced_ < send_.count) {
      engine.moved();
      return false;
    }
  }
  sum_.release(*this);
  return true;
}

}  // namespace tsprun::detail
