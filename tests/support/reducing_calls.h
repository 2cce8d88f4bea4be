// Calls that reduce elements, one class for each operation: it fills the buffers, calls, and checks the result.
#pragma once

#include "tests/support/typed_call.h"

#include <optional>

namespace tsprun::detail::test {

template <Element T>
class ReduceScatterCall final : public TypedCall<T> {
 public:
  ReduceScatterCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call), send_(this->make_whole()) {
    const int p = this->p_;
    fill_chunks();
    own_ = send_.elements().subspan(this->offset(p), this->count(p));
    if (!call.in_place) {
      recv_.emplace(this->make(this->count(p)));
      own_ = recv_->elements();
    }
    const ConstBuffer send(send_.elements());
    const Buffer recv(own_);
    if (call.scattered) {
      if (call.posted)
        this->work_ = group.post_reduce_scatter_v(send, recv, this->counts_, this->offsets_, call.reduction, call.options);
      else group.reduce_scatter_v(send, recv, this->counts_, this->offsets_, call.reduction, call.options);
    } else if (call.uneven) {
      if (call.posted) this->work_ = group.post_reduce_scatter_v(send, recv, this->counts_, call.reduction, call.options);
      else group.reduce_scatter_v(send, recv, this->counts_, call.reduction, call.options);
    } else {
      if (call.posted) this->work_ = group.post_reduce_scatter(send, recv, call.reduction, call.options);
      else group.reduce_scatter(send, recv, call.reduction, call.options);
    }
  }
  void finish() override {
    this->finish_work();
    const std::size_t first = this->element(this->p_);
    this->expect("recv", own_, [&, sums = this->reductions()](std::size_t i) { return sums.at(first + i, this->p_); });
    this->expect_guards(send_, "send");
    if (this->call_.scattered) this->expect_holes(send_, "send");
    if (recv_) {
      this->expect_guards(*recv_, "recv");
      for (int chunk = 0; chunk < this->n_; ++chunk) {
        const Samples<T> samples(this->call_.seed, this->p_);
        this->expect("send", send_.elements().subspan(this->offset(chunk), this->count(chunk)),
                     [&](std::size_t i) { return samples[this->element(chunk) + i]; });
      }
    }
  }

 private:
  /// Wherever a chunk lies, its values are those that it would have if chunks lay one after another.
  void fill_chunks() {
    const Samples<T> samples(this->call_.seed, this->p_);
    for (int chunk = 0; chunk < this->n_; ++chunk) {
      const std::span<T> elements = send_.elements().subspan(this->offset(chunk), this->count(chunk));
      for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = samples[this->element(chunk) + i];
    }
  }

  Guarded<T> send_;
  std::optional<Guarded<T>> recv_;
  std::span<T> own_;
};

template <Element T>
class AllReduceCall final : public TypedCall<T> {
 public:
  AllReduceCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call), recv_(this->make(this->count(0))) {
    std::span<T> input = recv_.elements();
    if (!call.in_place) {
      send_.emplace(this->make(this->count(0)));
      input = send_->elements();
    }
    fill(input, call.seed, this->p_);
    const ConstBuffer send(input);
    const Buffer recv(recv_.elements());
    if (call.posted) this->work_ = group.post_all_reduce(send, recv, call.reduction, call.options);
    else group.all_reduce(send, recv, call.reduction, call.options);
  }
  void finish() override {
    this->finish_work();
    const std::size_t total = this->count(0);
    this->expect("recv", recv_.elements(),
                 [&, sums = this->reductions()](std::size_t i) { return sums.at(i, all_reduce_chunk(total, this->n_, i)); });
    this->expect_guards(recv_, "recv");
    this->expect_unchanged(send_);
  }

 private:
  Guarded<T> recv_;
  std::optional<Guarded<T>> send_;
};

template <Element T>
class ReduceCall final : public TypedCall<T> {
 public:
  ReduceCall(Context& context, Communicator& group, const Call& call)
      : TypedCall<T>(context, group, call), send_(this->make(this->count(0))) {
    fill(send_.elements(), call.seed, this->p_);
    Buffer recv(nullptr, 0, dtype_of<T>());
    if (this->p_ == call.root) {
      result_ = send_.elements();
      if (!call.in_place) {
        recv_.emplace(this->make(this->count(0)));
        result_ = recv_->elements();
      }
      recv = Buffer(result_);
    }
    const ConstBuffer send(send_.elements());
    if (call.posted) this->work_ = group.post_reduce(send, recv, call.reduction, call.root, call.options);
    else group.reduce(send, recv, call.reduction, call.root, call.options);
  }
  void finish() override {
    this->finish_work();
    this->expect("recv", result_, [&, sums = this->reductions()](std::size_t i) { return sums.at(i, this->call_.root); });
    this->expect_guards(send_, "send");
    if (recv_) this->expect_guards(*recv_, "recv");
    if (result_.data() != send_.elements().data()) {
      this->expect_samples("send", send_.elements(), this->call_.seed, this->p_);
    }
  }

 private:
  Guarded<T> send_;
  std::optional<Guarded<T>> recv_;
  std::span<T> result_;
};

}  // namespace tsprun::detail::test
