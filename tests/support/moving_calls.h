// Calls that move elements unchanged, one class for each operation: it fills the buffers, calls, and checks the result.
#pragma once

#include "tests/support/typed_call.h"

#include <optional>

namespace tsprun::detail::test {

template <Element T>
class BroadcastCall final : public TypedCall<T> {
 public:
  BroadcastCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call), buffer_(this->make(this->count(0))) {
    fill(buffer_.elements(), call.seed, this->p_);
    if (call.posted) this->work_ = group.post_broadcast(Buffer(buffer_.elements()), call.root, call.options);
    else group.broadcast(Buffer(buffer_.elements()), call.root, call.options);
  }
  void finish() override {
    this->finish_work();
    this->expect_samples("buffer", buffer_.elements(), this->call_.seed, this->call_.root);
    this->expect_guards(buffer_, "buffer");
  }

 private:
  Guarded<T> buffer_;
};

template <Element T>
class AllGatherCall final : public TypedCall<T> {
 public:
  AllGatherCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call), recv_(this->make_whole()) {
    const int p = this->p_;
    std::span<T> own = recv_.elements().subspan(this->offset(p), this->count(p));
    if (!call.in_place) {
      send_.emplace(this->make(this->count(p)));
      own = send_->elements();
    }
    fill(own, call.seed, p);
    const ConstBuffer send(own);
    const Buffer recv(recv_.elements());
    if (call.scattered) {
      if (call.posted) this->work_ = group.post_all_gather_v(send, recv, this->counts_, this->offsets_, call.options);
      else group.all_gather_v(send, recv, this->counts_, this->offsets_, call.options);
    } else if (call.uneven) {
      if (call.posted) this->work_ = group.post_all_gather_v(send, recv, this->counts_, call.options);
      else group.all_gather_v(send, recv, this->counts_, call.options);
    } else {
      if (call.posted) this->work_ = group.post_all_gather(send, recv, call.options);
      else group.all_gather(send, recv, call.options);
    }
  }
  void finish() override {
    this->finish_work();
    for (int rank = 0; rank < this->n_; ++rank) {
      this->expect_samples("recv", recv_.elements().subspan(this->offset(rank), this->count(rank)), this->call_.seed, rank);
    }
    this->expect_guards(recv_, "recv");
    if (this->call_.scattered) this->expect_holes(recv_, "recv");
    this->expect_unchanged(send_);
  }

 private:
  Guarded<T> recv_;
  std::optional<Guarded<T>> send_;
};

template <Element T>
class AllToAllCall final : public TypedCall<T> {
 public:
  AllToAllCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call),
        out_(counts_between(true)),
        in_(counts_between(false)),
        send_(this->make(sum(out_))),
        recv_(this->make(sum(in_))) {
    std::size_t at = 0;
    for (int to = 0; to < this->n_; ++to) {
      const std::size_t elements = out_[static_cast<std::size_t>(to)];
      fill(send_.elements().subspan(at, elements), pair_seed(this->p_, to), this->p_);
      at += elements;
    }
    const ConstBuffer send(send_.elements());
    const Buffer recv(recv_.elements());
    if (call.uneven) {
      if (call.posted) this->work_ = group.post_all_to_all_v(send, out_, recv, in_, call.options);
      else group.all_to_all_v(send, out_, recv, in_, call.options);
    } else {
      if (call.posted) this->work_ = group.post_all_to_all(send, recv, call.options);
      else group.all_to_all(send, recv, call.options);
    }
  }
  void finish() override {
    this->finish_work();
    std::size_t at = 0;
    for (int from = 0; from < this->n_; ++from) {
      const std::size_t elements = in_[static_cast<std::size_t>(from)];
      this->expect_samples("recv", recv_.elements().subspan(at, elements), pair_seed(from, this->p_), from);
      at += elements;
    }
    this->expect_guards(send_, "send");
    this->expect_guards(recv_, "recv");
  }

 private:
  std::uint64_t pair_seed(int from, int to) const {
    return mix(this->call_.seed, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to));
  }
  Counts counts_between(bool outgoing) const {
    Counts counts;
    for (int other = 0; other < this->n_; ++other) {
      counts.push_back(outgoing ? all_to_all_count(this->call_, this->p_, other)
                                : all_to_all_count(this->call_, other, this->p_));
    }
    return counts;
  }

  Counts out_;
  Counts in_;
  Guarded<T> send_;
  Guarded<T> recv_;
};

/// The root gathers the chunks of all ranks or, `kScatter`, sends each its own.
template <Element T, bool kScatter>
class RootedChunksCall final : public TypedCall<T> {
 public:
  RootedChunksCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call), own_(this->make(this->count(this->p_))) {
    part_ = own_.elements();
    if (is_root()) {
      whole_.emplace(this->make(this->extent()));
      if (call.in_place) part_ = whole_->elements().subspan(this->element(this->p_), this->count(this->p_));
    }
    const std::span<T> whole = is_root() ? whole_->elements() : std::span<T>();
    if (!kScatter) fill(part_, call.seed, this->p_);
    else if (is_root()) fill(whole, call.seed, call.root);
    if constexpr (kScatter) {
      const ConstBuffer send(whole);
      const Buffer recv(part_);
      if (call.uneven) {
        if (call.posted) this->work_ = group.post_scatter_v(send, this->counts_, recv, call.root, call.options);
        else group.scatter_v(send, this->counts_, recv, call.root, call.options);
      } else {
        if (call.posted) this->work_ = group.post_scatter(send, recv, call.root, call.options);
        else group.scatter(send, recv, call.root, call.options);
      }
    } else {
      const ConstBuffer send(part_);
      const Buffer recv(whole);
      if (call.uneven) {
        if (call.posted) this->work_ = group.post_gather_v(send, recv, this->counts_, call.root, call.options);
        else group.gather_v(send, recv, this->counts_, call.root, call.options);
      } else {
        if (call.posted) this->work_ = group.post_gather(send, recv, call.root, call.options);
        else group.gather(send, recv, call.root, call.options);
      }
    }
  }
  void finish() override {
    this->finish_work();
    if (kScatter) {
      const Samples<T> samples(this->call_.seed, this->call_.root);
      this->expect("recv", part_, [&](std::size_t i) { return samples[this->element(this->p_) + i]; });
      if (is_root()) this->expect_samples("send", whole_->elements(), this->call_.seed, this->call_.root);
    } else {
      this->expect_samples("send", part_, this->call_.seed, this->p_);
      for (int from = 0; is_root() && from < this->n_; ++from) {
        this->expect_samples("recv", whole_->elements().subspan(this->element(from), this->count(from)), this->call_.seed, from);
      }
    }
    this->expect_guards(own_, "the chunk");
    if (whole_) this->expect_guards(*whole_, "the whole");
  }

 private:
  bool is_root() const { return this->p_ == this->call_.root; }

  Guarded<T> own_;
  std::optional<Guarded<T>> whole_;  // of the root
  std::span<T> part_;
};

/// Every rank sends its part to its successor and receives its predecessor's.
template <Element T>
class ShiftCall final : public TypedCall<T> {
 public:
  ShiftCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call),
        from_((this->p_ + this->n_ - 1) % this->n_),
        send_(this->make(this->count(this->p_))),
        recv_(this->make(this->count(from_))) {
    fill(send_.elements(), call.seed, this->p_);
    if (this->n_ == 1) return;
    const int to = (this->p_ + 1) % this->n_;
    if (call.posted) {
      // Both directions of a stream's order: half of the ranks post the receive first, half the send.
      if (this->p_ % 2 == 0) receive_ = group.post_recv(Buffer(recv_.elements()), from_, call.options);
      this->work_ = group.post_send(ConstBuffer(send_.elements()), to, call.options);
      if (this->p_ % 2 != 0) receive_ = group.post_recv(Buffer(recv_.elements()), from_, call.options);
    } else if (this->p_ == 0) {
      // Blocking calls form a chain that one rank starts by sending.
      group.send(ConstBuffer(send_.elements()), to, call.options);
      group.recv(Buffer(recv_.elements()), from_, call.options);
    } else {
      group.recv(Buffer(recv_.elements()), from_, call.options);
      group.send(ConstBuffer(send_.elements()), to, call.options);
    }
  }
  void finish() override {
    if (this->n_ == 1) return;
    this->finish_work();
    if (this->call_.posted) receive_.wait();
    this->expect_samples("recv", recv_.elements(), this->call_.seed, from_);
    this->expect_guards(send_, "send");
    this->expect_guards(recv_, "recv");
  }

 private:
  int from_;
  Guarded<T> send_;
  Guarded<T> recv_;
  Work receive_;
};

/// Every rank sends to the one `root` places on, and receives from the one as many places back, all at once.
template <Element T>
class ExchangeCall final : public TypedCall<T> {
 public:
  ExchangeCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call),
        from_((this->p_ + this->n_ - call.root) % this->n_),
        send_(this->make(this->count(this->p_))),
        recv_(this->make(this->count(from_))) {
    fill(send_.elements(), call.seed, this->p_);
    const int to = (this->p_ + call.root) % this->n_;
    const ConstBuffer send(send_.elements());
    const Buffer recv(recv_.elements());
    if (call.posted) this->work_ = group.post_send_recv(send, to, recv, from_, call.options);
    else group.send_recv(send, to, recv, from_, call.options);
  }
  void finish() override {
    this->finish_work();
    this->expect_samples("recv", recv_.elements(), this->call_.seed, from_);
    this->expect_samples("send", send_.elements(), this->call_.seed, this->p_);
    this->expect_guards(send_, "send");
    this->expect_guards(recv_, "recv");
  }

 private:
  int from_;
  Guarded<T> send_;
  Guarded<T> recv_;
};

class BarrierCall final : public Running {
 public:
  BarrierCall(Communicator& group, const Call& call) : posted_(call.posted) {
    if (posted_) work_ = group.post_barrier(call.options);
    else group.barrier(call.options);
  }
  void finish() override {
    if (posted_) work_.wait();
  }

 private:
  bool posted_;
  Work work_;
};

}  // namespace tsprun::detail::test
