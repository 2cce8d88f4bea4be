// One class per collective: fills its buffers, posts it, and checks the result.
#include "tests/support/calls.h"

#include "core/collectives/communicator_state.h"
#include "tests/support/guarded.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <utility>

namespace tsprun::detail::test {

namespace {

using Counts = std::vector<std::size_t>;

std::size_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::size_t{0}); }

/// Holds what all calls share: the place in the group, the counts of all ranks, and the Work of a posted call.
template <Element T>
class TypedCall : public Running {
 protected:
  TypedCall(Context& context, Communicator& group, const Call& call)
      : context_(context), group_(group), call_(call), n_(group.size()), p_(group.rank()) {
    for (int rank = 0; rank < n_; ++rank)
      counts_.push_back(call.uneven ? call.counts[static_cast<std::size_t>(rank)] : call.counts[0]);
    place_chunks();
  }

  std::size_t count(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }
  std::size_t offset(int rank) const { return offsets_[static_cast<std::size_t>(rank)]; }
  /// Elements of the chunks before that of `rank`.
  std::size_t element(int rank) const { return std::accumulate(counts_.begin(), counts_.begin() + rank, std::size_t{0}); }
  /// Returns the elements of the whole buffer, holes included.
  std::size_t extent() const { return extent_; }
  Guarded<T> make(std::size_t elements) const {
    return Guarded<T>(call_.where == Where::heap ? &heap_of(context_) : nullptr, elements, call_.seed);
  }
  void finish_work() {
    if (call_.posted) work_.wait();
  }
  std::string place() const { return fmt::format("{} on rank {} of {}", call_.describe(), p_, n_); }

  /// Compares `got` with expected(i) bit by bit (reductions that may meet NaN aren't checked through calls).
  template <class Expected>
  void expect(const char* what, std::span<const T> got, const Expected& expected) const {
    std::size_t wrong = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!same_bits(got[i], expected(i)) && wrong++ == 0) first = i;
    }
    if (wrong != 0) {
      ADD_FAILURE() << place() << ": " << wrong << " of " << got.size() << " elements of " << what << " are wrong, the first at "
                    << first << ": " << show(got[first]) << " instead of " << show(expected(first));
    }
  }
  void expect_samples(const char* what, std::span<const T> got, std::uint64_t seed, int rank) const {
    expect(what, got, [samples = Samples<T>(seed, rank)](std::size_t i) { return samples[i]; });
  }
  ReducedSamples<T> reductions() const { return ReducedSamples<T>(call_.seed, n_, call_.reduction); }
  void expect_guards(const Guarded<T>& memory, const char* what) const {
    EXPECT_TRUE(memory.guards_intact()) << place() << " wrote outside of " << what;
  }

  /// Checks that the holes between the chunks still hold what make() wrote there.
  void expect_holes(const Guarded<T>& memory, const char* what) const {
    std::vector<bool> in_chunk(extent_);
    for (int rank = 0; rank < n_; ++rank) {
      for (std::size_t i = 0; i < count(rank); ++i) in_chunk[offset(rank) + i] = true;
    }
    const Samples<T> samples(call_.seed, kHoles);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < extent_; ++i)
      wrong += static_cast<std::size_t>(!in_chunk[i] && !same_bits(memory.elements()[i], samples[i]));
    EXPECT_EQ(wrong, 0U) << place() << " wrote between the chunks of " << what;
  }
  /// The whole buffer of a call that is cut into chunks, holes filled.
  Guarded<T> make_whole() const {
    Guarded<T> memory = make(extent_);
    if (call_.scattered) fill(memory.elements(), call_.seed, kHoles);
    return memory;
  }

  Context& context_;
  Communicator& group_;
  Call call_;
  int n_;
  int p_;
  Counts counts_;
  Counts offsets_;
  std::size_t extent_ = 0;
  Work work_;

 private:
  static constexpr int kHoles = 1'000'000;  // a rank whose samples no chunk holds

  /// Chunks one after another; or scattered: in an order and with holes that every rank draws for itself.
  void place_chunks() {
    const auto n = static_cast<std::size_t>(n_);
    Counts order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::uint64_t seed = mix(call_.seed, 17, static_cast<std::uint64_t>(p_));
    for (std::size_t i = n - 1; call_.scattered && i > 0; --i) std::swap(order[i], order[mix(seed, i) % (i + 1)]);
    offsets_.resize(n);
    for (const std::size_t chunk : order) {
      if (call_.scattered) extent_ += mix(seed, chunk, 1) % 4 * 5;
      offsets_[chunk] = extent_;
      extent_ += counts_[chunk];
    }
    if (call_.scattered) extent_ += mix(seed, 2) % 3;
  }
};

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
    if (send_) {
      this->expect_samples("send", send_->elements(), this->call_.seed, this->p_);
      this->expect_guards(*send_, "send");
    }
  }

 private:
  Guarded<T> recv_;
  std::optional<Guarded<T>> send_;
};

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
    if (send_) {
      this->expect_samples("send", send_->elements(), this->call_.seed, this->p_);
      this->expect_guards(*send_, "send");
    }
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

template <Element T>
std::unique_ptr<Running> start_moving(Context& context, Communicator& group, const Call& call) {
  switch (call.op) {
    case Op::send:
    case Op::recv: return std::make_unique<ShiftCall<T>>(context, group, call);
    case Op::send_recv: return std::make_unique<ExchangeCall<T>>(context, group, call);
    case Op::broadcast: return std::make_unique<BroadcastCall<T>>(context, group, call);
    case Op::all_gather: return std::make_unique<AllGatherCall<T>>(context, group, call);
    case Op::all_to_all: return std::make_unique<AllToAllCall<T>>(context, group, call);
    case Op::gather: return std::make_unique<RootedChunksCall<T, false>>(context, group, call);
    case Op::scatter: return std::make_unique<RootedChunksCall<T, true>>(context, group, call);
    default: break;
  }
  if constexpr (!std::same_as<T, std::byte>) {
    switch (call.op) {
      case Op::reduce_scatter: return std::make_unique<ReduceScatterCall<T>>(context, group, call);
      case Op::all_reduce: return std::make_unique<AllReduceCall<T>>(context, group, call);
      case Op::reduce: return std::make_unique<ReduceCall<T>>(context, group, call);
      default: break;
    }
  }
  throw std::logic_error("no such call: " + call.describe());
}

}  // namespace

std::string Call::describe() const {
  return fmt::format("{}{} {} of {} elements [{}]{}{}{} in {} memory, algorithm {}, stream {}, seed {}", name(op),
                     scattered ? "_v scattered"
                     : uneven  ? "_v"
                               : "",
                     name(dtype), reduces(op) ? fmt::format("({})", name(reduction)) : "", fmt::join(counts, ","),
                     has_root(op) ? fmt::format(" root {}", root) : "", in_place ? " in place" : "", posted ? " posted" : "",
                     where == Where::heap ? "heap" : "plain", name(options.algorithm), name(options.stream), seed);
}

std::unique_ptr<Running> start(Context& context, Communicator& group, const Call& asked) {
  Call call = asked;
  // A random call doesn't know its group.
  if (!can_run(group, call.op, call.options.algorithm)) call.options.algorithm = Algorithm::automatic;
  if (call.op == Op::barrier) return std::make_unique<BarrierCall>(group, call);
  switch (call.dtype) {
    case DType::byte: return start_moving<std::byte>(context, group, call);
    case DType::bf16: return start_moving<bf16>(context, group, call);
    case DType::f32: return start_moving<float>(context, group, call);
    case DType::f64: return start_moving<double>(context, group, call);
    case DType::f16: return start_moving<f16>(context, group, call);
    case DType::i8: return start_moving<std::int8_t>(context, group, call);
    case DType::u8: return start_moving<std::uint8_t>(context, group, call);
    case DType::i32: return start_moving<std::int32_t>(context, group, call);
    case DType::i64: return start_moving<std::int64_t>(context, group, call);
    case DType::boolean: return start_moving<bool>(context, group, call);
  }
  throw std::logic_error("no such dtype");
}

void run(Context& context, Communicator& group, const Call& call) { start(context, group, call)->finish(); }

std::size_t all_to_all_count(const Call& call, int from, int to) {
  if (!call.uneven) return call.counts[0];
  return call.counts[static_cast<std::size_t>(from * 3 + to * 5) % call.counts.size()];
}

bool reduces(Op op) { return op == Op::reduce_scatter || op == Op::all_reduce || op == Op::reduce; }
bool has_root(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::send_recv || op == Op::gather || op == Op::scatter;
}
bool has_uneven_form(Op op) {
  return op == Op::all_gather || op == Op::reduce_scatter || op == Op::all_to_all || op == Op::send || op == Op::send_recv ||
         op == Op::gather || op == Op::scatter;
}
bool has_scattered_form(Op op) { return op == Op::all_gather || op == Op::reduce_scatter; }
bool has_in_place_form(Op op) { return op == Op::all_gather || op == Op::gather || op == Op::scatter || reduces(op); }

std::span<const Reduction> reductions_of(DType dtype) {
  static constexpr Reduction kOfFloats[] = {Reduction::sum, Reduction::max, Reduction::min, Reduction::product,
                                            Reduction::average};
  static constexpr Reduction kOfIntegers[] = {Reduction::sum,     Reduction::max,    Reduction::min,    Reduction::product,
                                              Reduction::bit_and, Reduction::bit_or, Reduction::bit_xor};
  switch (dtype) {
    case DType::byte: return {};
    case DType::bf16:
    case DType::f16:
    case DType::f32:
    case DType::f64: return kOfFloats;
    default: return kOfIntegers;
  }
}

std::vector<Algorithm> algorithms_of(Op op) {
  std::vector<Algorithm> algorithms = {Algorithm::automatic};
  for (const AlgorithmRow& row : algorithm_rows()) {
    if (row.op == op && !row.reorders_sums) algorithms.push_back(row.algorithm);
  }
  return algorithms;
}

bool can_run(const Communicator& group, Op op, Algorithm algorithm) {
  return algorithm == Algorithm::automatic || CommunicatorState::of(group).why_not(op, algorithm).empty();
}

Call random_call(std::uint64_t seed, int ranks, std::size_t largest_count) {
  std::uint64_t state = mix(seed);
  auto pick = [&state](std::size_t choices) {
    state = mix(state);
    return static_cast<std::size_t>(state % choices);
  };
  // Sizes of all magnitudes alike: the exponent is drawn first. One in eight is zero.
  auto count = [&] {
    if (pick(8) == 0) return std::size_t{0};
    std::size_t magnitude = 1;
    while (magnitude < largest_count && pick(6) != 0) magnitude *= 4;
    return 1 + pick(std::min(magnitude, largest_count));
  };
  Call call;
  call.seed = mix(seed, 1);
  call.op = kCallable[pick(std::size(kCallable))];
  call.dtype = reduces(call.op) ? kDTypes[1 + pick(std::size(kDTypes) - 1)] : kDTypes[pick(std::size(kDTypes))];
  if (const auto reductions = reductions_of(call.dtype); !reductions.empty())
    call.reduction = reductions[pick(reductions.size())];
  call.root = static_cast<int>(pick(static_cast<std::size_t>(ranks)));
  call.uneven = has_uneven_form(call.op) && pick(2) == 0;
  call.scattered = call.uneven && has_scattered_form(call.op) && pick(2) == 0;
  call.in_place = has_in_place_form(call.op) && pick(2) == 0;
  call.posted = pick(2) == 0;
  call.where = pick(2) == 0 ? Where::heap : Where::plain;
  const std::vector<Algorithm> algorithms = algorithms_of(call.op);
  call.options.algorithm = algorithms[pick(algorithms.size())];
  call.options.stream = static_cast<Stream>(pick(kStreams));
  for (int rank = 0; rank < ranks; ++rank) call.counts.push_back(count());
  return call;
}

}  // namespace tsprun::detail::test
