// The process group's operations: each checks its tensors as gloo does, and posts one operation of the communicator.
#include "process_group.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <random>
#include <utility>

namespace tsprun::torch_binding {

namespace {

using std::chrono::milliseconds;

// --- tensors -----------------------------------------------------------------------------------------------------------------

std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * static_cast<std::size_t>(tensor.element_size());
}

/// Returns the element type of a tensor; types without arithmetic here are moved as bytes.
DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kChar: return DType::i8;
    case at::kByte: return DType::u8;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kBool: return DType::boolean;
    default: return DType::byte;
  }
}

Buffer view(const at::Tensor& tensor) {
  const DType dtype = dtype_of(tensor);
  return {tensor.data_ptr(), bytes_of(tensor) / size_of(dtype), dtype};
}

void check(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), call, ": a tensor is undefined");
  TORCH_CHECK(tensor.layout() == at::kStrided, call, ": tsprun takes dense tensors, not ", tensor.layout(),
              " ones; .to_dense() makes one, and the gloo backend reduces sparse ones");
  TORCH_CHECK(tensor.device().is_cpu(), call, ": tsprun moves tensors in host memory, this one is on ", tensor.device(),
              "; .cpu() copies it");
}

const at::Tensor& only(const char* call, const char* what, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, call, ": needs one tensor as ", what, ", got ", tensors.size());
  check(call, tensors.front());
  return tensors.front();
}

const Tensors& only_list(const char* call, const char* what, const std::vector<Tensors>& lists, int size) {
  TORCH_CHECK(lists.size() == 1, call, ": needs one list of tensors as ", what, ", got ", lists.size());
  TORCH_CHECK(lists.front().size() == static_cast<std::size_t>(size), call, ": the list of ", what,
              " needs a tensor for each of ", size, " ranks, and has ", lists.front().size());
  for (const at::Tensor& tensor : lists.front()) check(call, tensor);
  return lists.front();
}

void check_alike(const char* call, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK(one.scalar_type() == other.scalar_type(), call, ": tensors of one type are needed, got ", one.scalar_type(),
              " and ", other.scalar_type());
}

/// Checks that all tensors of a list have the type and the number of elements of `like`.
void check_list(const char* call, const Tensors& list, const at::Tensor& like) {
  for (const at::Tensor& tensor : list) {
    check_alike(call, tensor, like);
    TORCH_CHECK(tensor.sizes() == like.sizes(), call, ": tensors of one size are needed, got ", tensor.sizes(), " and ",
                like.sizes());
  }
}

Reduction reduction_of(const char* call, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const auto chosen = [&]() -> std::optional<Reduction> {
    switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
      case c10d::ReduceOp::SUM: return Reduction::sum;
      case c10d::ReduceOp::AVG: return Reduction::average;
      case c10d::ReduceOp::PRODUCT: return Reduction::product;
      case c10d::ReduceOp::MIN: return Reduction::min;
      case c10d::ReduceOp::MAX: return Reduction::max;
      case c10d::ReduceOp::BAND: return Reduction::bit_and;
      case c10d::ReduceOp::BOR: return Reduction::bit_or;
      case c10d::ReduceOp::BXOR: return Reduction::bit_xor;
      default: return std::nullopt;
    }
  }();
  TORCH_CHECK(chosen, call, ": tsprun has no premultiplied sum");
  TORCH_CHECK(reduces(*chosen, dtype_of(tensor)), call, ": tensors of type ", tensor.scalar_type(), " can't be reduced by ",
              std::string(name(*chosen)));
  return *chosen;
}

/// The memory of a result: the tensor itself, or, if that isn't contiguous, a copy that finish() copies back.
class Result {
 public:
  explicit Result(at::Tensor tensor, bool is_input = true)
      : tensor_(std::move(tensor)),
        memory_(tensor_.is_contiguous() ? tensor_
                : is_input              ? tensor_.contiguous()
                                        : at::empty(tensor_.sizes(), tensor_.options())) {}
  const at::Tensor& memory() const { return memory_; }
  void finish() const {
    if (!memory_.is_same(tensor_)) tensor_.copy_(memory_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor memory_;
};

at::Tensor joined(const Tensors& tensors) {
  Tensors flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

at::Tensor room_for(const Tensors& tensors) {
  std::int64_t all = 0;
  for (const at::Tensor& tensor : tensors) all += tensor.numel();
  return at::empty({all}, tensors.front().options().memory_format(at::MemoryFormat::Contiguous));
}

/// Copies consecutive parts of `flat` to the tensors.
void spread(const at::Tensor& flat, const Tensors& tensors) {
  std::int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

/// Returns how many elements (of the type in which they travel) each tensor has.
std::vector<std::size_t> counts_of(const Tensors& tensors) {
  std::vector<std::size_t> counts;
  counts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    counts.push_back(bytes_of(tensor) / size_of(dtype_of(tensor)));
  }
  return counts;
}

bool all_equal(const std::vector<std::size_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::size_t count) { return count == counts.front(); });
}

/// Returns the elements that each rank sends or receives in an alltoall_base: `splits` are parts of dimension 0; none: equal
/// ones.
std::vector<std::size_t> split_counts(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<int64_t> parts = splits;
  if (parts.empty()) {
    TORCH_CHECK(rows % size == 0, "all_to_all_single: the ", what, "'s first dimension, ", rows,
                ", can't be divided evenly by the ", size,
                " ranks of the group: Tensor's dim 0 does not divide equally across group size");
    parts.assign(static_cast<std::size_t>(size), rows / size);
  }
  TORCH_CHECK(parts.size() == static_cast<std::size_t>(size),
              "all_to_all_single: Number of tensor splits not equal to group size: ", parts.size(), " and ", size, " (", what,
              ")");
  std::int64_t sum = 0;
  for (const std::int64_t part : parts) sum += part;
  TORCH_CHECK(sum == rows, "all_to_all_single: Split sizes doesn't match total dim 0 size: ", sum, " and ", rows, " (", what,
              ")");
  const std::size_t row = rows == 0 ? 0 : bytes_of(tensor) / static_cast<std::size_t>(rows) / size_of(dtype_of(tensor));
  std::vector<std::size_t> counts;
  for (const std::int64_t part : parts) counts.push_back(static_cast<std::size_t>(part) * row);
  return counts;
}

// --- work --------------------------------------------------------------------------------------------------------------------

/// Rethrows a failure as what torch expects, a std::runtime_error with the verdict's text.
std::exception_ptr as_torch_error(const std::string& call, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return std::make_exception_ptr(std::runtime_error(call + ": " + std::string(name(error.cause())) + ": " + error.what()));
  } catch (...) {
    return std::current_exception();
  }
}

class TsprunWork : public c10d::Work {
 public:
  TsprunWork(int rank, c10d::OpType type, const std::string& title, const c10::optional<Tensors>& inputs, Tensors outputs,
             milliseconds timeout)
      : Work(rank, type, title.c_str(), inputs),
        call_(title),
        outputs_(std::move(outputs)),
        timeout_(timeout),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  void looked_after(std::shared_ptr<Member> member, Posted posted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    member_ = std::move(member);
    posted_.emplace(std::move(posted));
  }
  void over(const std::exception_ptr& failure) {
    const std::exception_ptr error = failure ? as_torch_error(call_, failure) : nullptr;
    finish(error);
    if (error) future_->setErrorIfNeeded(error);
    else future_->markCompleted(c10::IValue(outputs_));
  }

  bool wait(milliseconds timeout) override {
    const milliseconds limit = timeout.count() > 0 ? timeout : timeout_;
    bool in_time = false;
    try {
      in_time = posted_->wait(limit);
    } catch (...) {
      std::rethrow_exception(as_torch_error(call_, std::current_exception()));
    }
    TORCH_CHECK(in_time, call_, ": Timed out after ", limit.count(), " ms: ranks of the group are still computing, ",
                "or never called it");
    return true;
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void abort() override { TORCH_CHECK(false, "tsprun: an operation that has begun can't be taken back"); }
  int sourceRank() const override { return source_; }
  void set_source(int rank) { source_ = rank; }

 private:
  std::string call_;
  Tensors outputs_;
  milliseconds timeout_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::shared_ptr<Member> member_;  // before posted_, which must not outlive it
  std::optional<Posted> posted_;
  int source_ = -1;
};

// --- membership --------------------------------------------------------------------------------------------------------------

std::mutex member_mutex;
std::shared_ptr<Member>& the_member() {
  static auto* const member = new std::shared_ptr<Member>();  // never destroyed: leave() decides when
  return *member;
}

Context join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  if (std::getenv("TSP_NODE_FD") != nullptr) return Context::from_environment();
  static constexpr const char* kKey = "tsprun/job";
  if (rank == 0) {
    std::random_device random;
    std::string job = "torch-";
    for (int i = 0; i < 4; ++i) job += std::to_string(random()) + (i < 3 ? "." : "");
    store->set(kKey, std::vector<std::uint8_t>(job.begin(), job.end()));
  }
  const std::vector<std::uint8_t> job = store->get(kKey);
  return Context::meet(rank, size, std::string(job.begin(), job.end()));
}

}  // namespace

std::shared_ptr<Member> membership(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  const std::lock_guard<std::mutex> lock(member_mutex);
  std::shared_ptr<Member>& member = the_member();
  if (!member) member = std::make_shared<Member>(join(store, rank, size));
  TORCH_CHECK(member->context.rank() == rank && member->context.size() == size, "tsprun: this process is rank ",
              member->context.rank(), " of ", member->context.size(), " in its job, and can't be rank ", rank, " of ", size,
              " in a process group of all ranks");
  return member;
}

void leave() {
  std::shared_ptr<Member> member;
  {
    const std::lock_guard<std::mutex> lock(member_mutex);
    member = std::exchange(the_member(), nullptr);
  }
}

// --- the group ---------------------------------------------------------------------------------------------------------------

/// One operation to be posted.
struct TsprunGroup::Job {
  const char* call;
  c10d::OpType type;
  Tensors inputs;   ///< for profiles
  Tensors outputs;  ///< the result, as the work's future gives it
  std::function<tsprun::Work(Communicator&)> post;
  std::function<void()> finish = {};  ///< after the operation: copies results to where they belong
  int source = -1;
};

TsprunGroup::TsprunGroup(std::shared_ptr<Member> member, int rank, int size, const std::vector<int>& members,
                         milliseconds timeout, std::string name)
    : GroupBase(rank, size), name_(std::move(name)), member_(std::move(member)), is_world_(members.empty()), timeout_(timeout) {
  std::vector<int> ranks = members;
  for (int r = 0; is_world_ && r < size; ++r) ranks.push_back(r);
  member_->progress.use(
      [&](Context& context) { communicator_ = std::make_unique<Communicator>(context.world().subgroup(ranks)); });
}

TsprunGroup::~TsprunGroup() = default;

/// Operations of the group of all ranks, and those of other groups, have a stream each; messages use the two others.
CallOptions TsprunGroup::call_options() const { return {.stream = is_world_ ? Stream::control : Stream::gradients}; }

/// Returns a stream by direction, so that two ranks that both send before they receive don't wait for each other.
Stream TsprunGroup::message_stream(int from, int to) const {
  return communicator_->world_rank(from) < communicator_->world_rank(to) ? Stream::weights : Stream::kv;
}

WorkPtr TsprunGroup::start(Job job) {
  auto work = c10::make_intrusive<TsprunWork>(getRank(), job.type, name_ + ":" + job.call, c10::optional<Tensors>(job.inputs),
                                              std::move(job.outputs), timeout_);
  work->set_source(job.source);
  ++posted_;
  try {
    Posted posted = member_->progress.post(
        [&](Context&) { return job.post(*communicator_); },
        [work, inputs = std::move(job.inputs), finish = std::move(job.finish)](const std::exception_ptr& failure) {
          std::exception_ptr error = failure;
          try {
            if (!error && finish) finish();
          } catch (...) {
            error = std::current_exception();
          }
          work->over(error);
        });
    work->looked_after(member_, std::move(posted));
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error(name_ + ":" + job.call, std::current_exception()));
  }
  return work;
}

WorkPtr TsprunGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Result result(only("broadcast", "tensor", tensors));
  const int root = static_cast<int>(options.rootRank);
  return start(
      {.call = "broadcast",
       .type = c10d::OpType::BROADCAST,
       .inputs = tensors,
       .outputs = tensors,
       .post = [=, this](Communicator& group) { return group.post_broadcast(view(result.memory()), root, call_options()); },
       .finish = [=] { result.finish(); }});
}

WorkPtr TsprunGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Result result(only("all_reduce", "tensor", tensors));
  const Reduction reduction = reduction_of("all_reduce", options.reduceOp, tensors.front());
  return start({.call = "all_reduce",
                .type = c10d::OpType::ALLREDUCE,
                .inputs = tensors,
                .outputs = tensors,
                .post =
                    [=, this](Communicator& group) {
                      const Buffer all = view(result.memory());
                      return group.post_all_reduce(all, all, reduction, call_options());
                    },
                .finish = [=] { result.finish(); }});
}

WorkPtr TsprunGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK(!tensors.empty(), "all_reduce_coalesced: needs at least one tensor");
  for (const at::Tensor& tensor : tensors) {
    check("all_reduce_coalesced", tensor);
    check_alike("all_reduce_coalesced", tensor, tensors.front());
  }
  const Reduction reduction = reduction_of("all_reduce_coalesced", options.reduceOp, tensors.front());
  const at::Tensor flat = joined(tensors);
  const Tensors parts = tensors;
  return start(
      {.call = "all_reduce",
       .type = c10d::OpType::ALLREDUCE_COALESCED,
       .inputs = tensors,
       .outputs = tensors,
       .post = [=,
                this](Communicator& group) { return group.post_all_reduce(view(flat), view(flat), reduction, call_options()); },
       .finish = [=] { spread(flat, parts); }});
}

WorkPtr TsprunGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only("reduce", "tensor", tensors);
  const Reduction reduction = reduction_of("reduce", options.reduceOp, tensor);
  const int root = static_cast<int>(options.rootRank);
  const bool mine = root == getRank();
  const Result result(tensor);
  return start({.call = "reduce",
                .type = c10d::OpType::REDUCE,
                .inputs = tensors,
                .outputs = tensors,
                .post =
                    [=, this](Communicator& group) {
                      const Buffer all = view(result.memory());
                      return group.post_reduce(all, mine ? all : Buffer(), reduction, root, call_options());
                    },
                .finish =
                    [=] {
                      if (mine) result.finish();
                    }});
}

WorkPtr TsprunGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  const at::Tensor input = only("all_gather", "input", inputs).contiguous();
  const Tensors parts = only_list("all_gather", "outputs", outputs, getSize());
  for (const at::Tensor& part : parts) check_alike("all_gather", part, input);
  const std::vector<std::size_t> counts = counts_of(parts);
  TORCH_CHECK(counts[static_cast<std::size_t>(getRank())] == view(input).count, "all_gather: this rank's output tensor, number ",
              getRank(), ", has ", parts[static_cast<std::size_t>(getRank())].sizes(), " elements, its input ", input.sizes());
  const at::Tensor flat = room_for(parts);
  return start({.call = "all_gather",
                .type = c10d::OpType::ALLGATHER,
                .inputs = {input},
                .outputs = parts,
                .post =
                    [=, this](Communicator& group) {
                      if (all_equal(counts)) return group.post_all_gather(view(input), view(flat), call_options());
                      return group.post_all_gather_v(view(input), view(flat), counts, call_options());
                    },
                .finish = [=] { spread(flat, parts); }});
}

WorkPtr TsprunGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  check("all_gather_into_tensor", output);
  check("all_gather_into_tensor", input);
  check_alike("all_gather_into_tensor", output, input);
  TORCH_CHECK(output.numel() == input.numel() * getSize(),
              "all_gather_into_tensor: output tensor size must be equal to world_size times input tensor size, it has ",
              output.numel(), " elements, the input ", input.numel());
  const Result result(output, false);
  const at::Tensor own = input.contiguous();
  return start(
      {.call = "all_gather",
       .type = c10d::OpType::_ALLGATHER_BASE,
       .inputs = {own},
       .outputs = {output},
       .post = [=, this](Communicator& group) { return group.post_all_gather(view(own), view(result.memory()), call_options()); },
       .finish = [=] { result.finish(); }});
}

WorkPtr TsprunGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  TORCH_CHECK(!inputs.empty(), "all_gather_coalesced: needs at least one input tensor");
  TORCH_CHECK(outputs.size() == static_cast<std::size_t>(getSize()), "all_gather_coalesced: needs a list of outputs for each of ",
              getSize(), " ranks, got ", outputs.size());
  for (const at::Tensor& input : inputs) check("all_gather_coalesced", input);
  const auto bytes = [](const Tensors& tensors) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(tensor.contiguous().reshape({-1}).view(at::kByte));
    return at::cat(flat);
  };
  const at::Tensor mine = bytes(inputs);
  for (const Tensors& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), "all_gather_coalesced: a list of outputs has ", list.size(), " tensors, there are ",
                inputs.size(), " inputs");
    for (std::size_t i = 0; i < list.size(); ++i) {
      check("all_gather_coalesced", list[i]);
      check_list("all_gather_coalesced", {list[i]}, inputs[i]);
    }
  }
  const at::Tensor all = at::empty({mine.numel() * getSize()}, mine.options());
  const std::vector<Tensors> lists = outputs;
  return start({.call = "all_gather",
                .type = c10d::OpType::ALLGATHER_COALESCED,
                .inputs = inputs,
                .outputs = {},
                .post = [=, this](Communicator& group) { return group.post_all_gather(view(mine), view(all), call_options()); },
                .finish =
                    [=] {
                      std::int64_t at = 0;
                      for (const Tensors& list : lists) {
                        for (const at::Tensor& tensor : list) {
                          const auto n = static_cast<std::int64_t>(bytes_of(tensor));
                          tensor.copy_(all.narrow(0, at, n).clone().view(tensor.scalar_type()).view(tensor.sizes()));
                          at += n;
                        }
                      }
                    }});
}

WorkPtr TsprunGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor input = only("gather", "input", inputs).contiguous();
  const int root = static_cast<int>(options.rootRank);
  Tensors parts;
  at::Tensor flat;
  if (root == getRank()) {
    parts = only_list("gather", "outputs", outputs, getSize());
    check_list("gather", parts, input);
    flat = room_for(parts);
  } else {
    TORCH_CHECK(outputs.empty(), "gather: only the root, rank ", root, ", gives output tensors");
  }
  return start({.call = "gather",
                .type = c10d::OpType::GATHER,
                .inputs = {input},
                .outputs = parts,
                .post =
                    [=, this](Communicator& group) {
                      return group.post_gather(view(input), flat.defined() ? view(flat) : Buffer(), root, call_options());
                    },
                .finish =
                    [=] {
                      if (flat.defined()) spread(flat, parts);
                    }});
}

WorkPtr TsprunGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const Result result(only("scatter", "output", outputs), false);
  const int root = static_cast<int>(options.rootRank);
  at::Tensor flat;
  if (root == getRank()) {
    const Tensors& parts = only_list("scatter", "inputs", inputs, getSize());
    check_list("scatter", parts, outputs.front());
    flat = joined(parts);
  } else {
    TORCH_CHECK(inputs.empty(), "scatter: only the root, rank ", root, ", gives input tensors");
  }
  return start({.call = "scatter",
                .type = c10d::OpType::SCATTER,
                .inputs = flat.defined() ? Tensors{flat} : Tensors{},
                .outputs = outputs,
                .post =
                    [=, this](Communicator& group) {
                      return group.post_scatter(flat.defined() ? view(flat) : Buffer(), view(result.memory()), root,
                                                call_options());
                    },
                .finish = [=] { result.finish(); }});
}

WorkPtr TsprunGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  const Result result(only("reduce_scatter", "output", outputs), false);
  const Tensors& parts = only_list("reduce_scatter", "inputs", inputs, getSize());
  for (const at::Tensor& part : parts) check_alike("reduce_scatter", part, outputs.front());
  const Reduction reduction = reduction_of("reduce_scatter", options.reduceOp, outputs.front());
  const std::vector<std::size_t> counts = counts_of(parts);
  TORCH_CHECK(counts[static_cast<std::size_t>(getRank())] == view(result.memory()).count,
              "reduce_scatter: this rank's input tensor, number ", getRank(), ", has ",
              parts[static_cast<std::size_t>(getRank())].sizes(), " elements, its output ", outputs.front().sizes());
  const at::Tensor flat = joined(parts);
  return start({.call = "reduce_scatter",
                .type = c10d::OpType::REDUCE_SCATTER,
                .inputs = {flat},
                .outputs = outputs,
                .post =
                    [=, this](Communicator& group) {
                      return group.post_reduce_scatter_v(view(flat), view(result.memory()), counts, reduction, call_options());
                    },
                .finish = [=] { result.finish(); }});
}

WorkPtr TsprunGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  check("reduce_scatter_tensor", output);
  check("reduce_scatter_tensor", input);
  check_alike("reduce_scatter_tensor", output, input);
  TORCH_CHECK(input.numel() == output.numel() * getSize(),
              "reduce_scatter_tensor: input tensor must be the same size as output size times world size, it has ", input.numel(),
              " elements, the output ", output.numel());
  const Reduction reduction = reduction_of("reduce_scatter_tensor", options.reduceOp, output);
  const Result result(output, false);
  const at::Tensor all = input.contiguous();
  return start({.call = "reduce_scatter",
                .type = c10d::OpType::_REDUCE_SCATTER_BASE,
                .inputs = {all},
                .outputs = {output},
                .post =
                    [=, this](Communicator& group) {
                      return group.post_reduce_scatter(view(all), view(result.memory()), reduction, call_options());
                    },
                .finish = [=] { result.finish(); }});
}

WorkPtr TsprunGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                   std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  check("all_to_all_single", output);
  check("all_to_all_single", input);
  check_alike("all_to_all_single", output, input);
  const std::vector<std::size_t> out = split_counts("input", input, input_splits, getSize());
  const std::vector<std::size_t> in = split_counts("output", output, output_splits, getSize());
  const Result result(output, false);
  const at::Tensor all = input.contiguous();
  return start({.call = "all_to_all",
                .type = c10d::OpType::ALLTOALL_BASE,
                .inputs = {all},
                .outputs = {output},
                .post =
                    [=, this](Communicator& group) {
                      return group.post_all_to_all_v(view(all), out, view(result.memory()), in, call_options());
                    },
                .finish = [=] { result.finish(); }});
}

WorkPtr TsprunGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  const Tensors to = only_list("all_to_all", "inputs", {inputs}, getSize());
  const Tensors from = only_list("all_to_all", "outputs", {outputs}, getSize());
  for (const Tensors* list : {&to, &from}) {
    for (const at::Tensor& tensor : *list) check_alike("all_to_all", tensor, to.front());
  }
  const at::Tensor all = joined(to);
  const at::Tensor flat = room_for(from);
  return start({.call = "all_to_all",
                .type = c10d::OpType::ALLTOALL,
                .inputs = {all},
                .outputs = outputs,
                .post =
                    [=, this](Communicator& group) {
                      return group.post_all_to_all_v(view(all), counts_of(to), view(flat), counts_of(from), call_options());
                    },
                .finish = [=] { spread(flat, from); }});
}

WorkPtr TsprunGroup::send(Tensors& tensors, int to, int tag) {
  const at::Tensor tensor = only("send", "tensor", tensors).contiguous();
  return start({.call = "send",
                .type = c10d::OpType::SEND,
                .inputs = {tensor},
                .outputs = tensors,
                .post = [=, this](Communicator& group) {
                  return group.post_send(view(tensor), to, {.stream = message_stream(getRank(), to), .tag = tag});
                }});
}

WorkPtr TsprunGroup::recv(Tensors& tensors, int from, int tag) {
  const Result result(only("recv", "tensor", tensors), false);
  return start({.call = "recv",
                .type = c10d::OpType::RECV,
                .inputs = tensors,
                .outputs = tensors,
                .post =
                    [=, this](Communicator& group) {
                      return group.post_recv(view(result.memory()), from,
                                             {.stream = message_stream(from, getRank()), .tag = tag});
                    },
                .finish = [=] { result.finish(); },
                .source = from});
}

WorkPtr TsprunGroup::barrier(const c10d::BarrierOptions&) {
  return start(
      {.call = "barrier", .type = c10d::OpType::BARRIER, .inputs = {}, .outputs = {}, .post = [this](Communicator& group) {
         return group.post_barrier(call_options());
       }});
}

}  // namespace tsprun::torch_binding
