// The process group's operations: each checks its tensors, and posts one operation of the communicator.
#include "process_group.h"
#include "tensors.h"
#include "work.h"

#include <ATen/ThreadLocalState.h>

#include <atomic>
#include <utility>

namespace tsprun::torch_binding {

using std::chrono::milliseconds;

namespace {

/// This process's groups, by stream.
std::atomic<int> groups_on[kStreams];

}  // namespace

TsprunGroup::TsprunGroup(std::shared_ptr<Member> member, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                         const std::vector<int>& members, std::optional<Stream> stream, milliseconds timeout, std::string name)
    : GroupBase(rank, size),
      name_(std::move(name)),
      member_(std::move(member)),
      store_(std::move(store)),
      stream_(stream),
      timeout_(timeout),
      life_(store_->add("lives/" + std::to_string(rank), 1)) {
  std::vector<int> ranks = members;
  for (int r = 0; members.empty() && r < size; ++r) ranks.push_back(r);
  member_->progress()->use([&](Context& context) {
    const Channel channel = stream ? Channel::streams : Channel::own;
    communicator_ = std::make_unique<Communicator>(context.world().subgroup(ranks, channel));
  });
  if (stream_ && size > 1) ++groups_on[static_cast<std::size_t>(*stream_)];
}

TsprunGroup::~TsprunGroup() {
  if (stream_ && getSize() > 1) --groups_on[static_cast<std::size_t>(*stream_)];
  member_->drop(std::move(communicator_));
}

bool TsprunGroup::uses(Stream stream) { return groups_on[static_cast<std::size_t>(stream)] != 0; }

CallOptions TsprunGroup::call_options() const { return {.stream = stream_.value_or(Stream::control)}; }

/// Posts an operation. `finish` runs after it: copies results to where they belong, as the caller's thread could.
WorkPtr TsprunGroup::start(Job job, std::function<void()> finish, const std::function<tsprun::Work(Communicator&)>& post) {
  const bool inner = job.inner;
  auto work = c10::make_intrusive<TsprunWork>(member_, getRank(), job.type, name_ + ":" + job.call,
                                              c10::optional<Tensors>(job.shown.empty() ? job.inputs : job.shown),
                                              std::move(job.outputs), timeout_);
  // A program may post a receive long before it waits for it.
  const bool is_message =
      job.type == c10d::OpType::SEND || job.type == c10d::OpType::RECV || job.type == c10d::OpType::RECVANYSOURCE;
  const std::chrono::milliseconds limit = is_message ? std::chrono::milliseconds(0) : timeout_.load();
  ++posted_;
  if (finish) {
    // Whichever thread finds the end writes what the caller may write: into a leaf that requires grad, as gloo does, and in
    // inference mode into tensors made in it.
    finish = at::wrapPropagateTLSState([copy_results = std::move(finish)] {
      const at::NoGradGuard results_have_no_history;
      copy_results();
    });
  }
  try {
    Posted posted = member_->progress()->post([&](Context&) { return post(*communicator_); },
                                              [work, inputs = std::move(job.inputs), finish = std::move(finish),
                                               received = job.received](const std::exception_ptr& failure) {
                                                std::exception_ptr error = failure;
                                                try {
                                                  if (!error && finish) finish();
                                                  if (!error && received) work->set_source(received->source);
                                                } catch (...) {
                                                  error = std::current_exception();
                                                }
                                                work->over(error);
                                              },
                                              limit);
    work->looked_after(std::move(posted));
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error(name_ + ":" + job.call, std::current_exception()));
  }
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  if (coalescing_ && !inner) coalescing_->push_back(work);
  return work;
}

void TsprunGroup::startCoalescing() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  coalescing_.emplace();
}

WorkPtr TsprunGroup::coalesced() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  TORCH_CHECK(coalescing_, name_, ": endCoalescing() without startCoalescing() before it");
  auto all = c10::make_intrusive<WorkOfSeveral>(getRank(), std::move(*coalescing_));
  coalescing_.reset();
  return all;
}

WorkPtr TsprunGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Result result(only("broadcast", "tensor", tensors));
  const int root = static_cast<int>(options.rootRank);
  return start({"broadcast", c10d::OpType::BROADCAST, tensors, tensors}, result.finish(),
               [=, this](Communicator& group) { return group.post_broadcast(view(result.memory()), root, call_options()); });
}

WorkPtr TsprunGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors.front().defined() && tensors.front().layout() == at::kSparse)
    return allreduce_of_sparse(tensors.front(), options.reduceOp);
  const Result result(only("all_reduce", "tensor", tensors));
  const Reduction reduction = reduction_of("all_reduce", options.reduceOp, tensors.front());
  return start({"all_reduce", c10d::OpType::ALLREDUCE, tensors, tensors}, result.finish(), [=, this](Communicator& group) {
    const Buffer all = view(result.memory());
    return group.post_all_reduce(all, all, reduction, call_options());
  });
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
      {"all_reduce", c10d::OpType::ALLREDUCE_COALESCED, tensors, tensors}, [=] { spread(flat, parts); },
      [=, this](Communicator& group) { return group.post_all_reduce(view(flat), view(flat), reduction, call_options()); });
}

WorkPtr TsprunGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only("reduce", "tensor", tensors);
  const Reduction reduction = reduction_of("reduce", options.reduceOp, tensor);
  const int root = static_cast<int>(options.rootRank);
  const bool mine = root == getRank();
  const Result result(tensor);
  return start({"reduce",
                c10d::OpType::REDUCE,
                {result.memory()} /* which nothing else keeps elsewhere than on the root */,
                tensors,
                tensors},
               mine ? result.finish() : nullptr, [=, this](Communicator& group) {
                 const Buffer all = view(result.memory());
                 return group.post_reduce(all, mine ? all : Buffer(), reduction, root, call_options());
               });
}

WorkPtr TsprunGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  const at::Tensor input = plain(only("all_gather", "input", inputs));
  const Tensors parts = only_list("all_gather", "outputs", outputs, getSize());
  for (const at::Tensor& part : parts) check_alike("all_gather", part, input);
  const std::vector<std::size_t> counts = counts_of(parts);
  TORCH_CHECK(counts[static_cast<std::size_t>(getRank())] == view(input).count, "all_gather: this rank's output tensor, number ",
              getRank(), ", has ", parts[static_cast<std::size_t>(getRank())].sizes(), " elements, its input ", input.sizes());
  const at::Tensor flat = room_for(parts);
  return start(
      {"all_gather", c10d::OpType::ALLGATHER, {input}, parts}, [=] { spread(flat, parts); },
      [=, this](Communicator& group) {
        if (all_equal(counts)) return group.post_all_gather(view(input), view(flat), call_options());
        return group.post_all_gather_v(view(input), view(flat), counts, call_options());
      });
}

WorkPtr TsprunGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  check("all_gather_into_tensor", output);
  check("all_gather_into_tensor", input);
  check_alike("all_gather_into_tensor", output, input);
  TORCH_CHECK(output.numel() == input.numel() * getSize(),
              "all_gather_into_tensor: output tensor size must be equal to world_size times input tensor size, it has ",
              output.numel(), " elements, the input ", input.numel());
  const Result result(output, false);
  const at::Tensor own = plain(input);
  return start({"all_gather", c10d::OpType::_ALLGATHER_BASE, {own}, {output}}, result.finish(), [=, this](Communicator& group) {
    return group.post_all_gather(view(own), view(result.memory()), call_options());
  });
}

WorkPtr TsprunGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  TORCH_CHECK(!inputs.empty(), "all_gather_coalesced: needs at least one input tensor");
  TORCH_CHECK(outputs.size() == static_cast<std::size_t>(getSize()), "all_gather_coalesced: needs a list of outputs for each of ",
              getSize(), " ranks, got ", outputs.size());
  for (const at::Tensor& input : inputs) check("all_gather_coalesced", input);
  const auto bytes = [](const Tensors& tensors) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(plain(tensor).reshape({-1}).view(at::kByte));
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
  Tensors results;
  for (const Tensors& list : lists) results.insert(results.end(), list.begin(), list.end());
  return start(
      {"all_gather", c10d::OpType::ALLGATHER_COALESCED, {mine}, std::move(results), inputs},
      [=] {
        std::int64_t at = 0;
        for (const Tensors& list : lists) {
          for (const at::Tensor& tensor : list) {
            const auto n = static_cast<std::int64_t>(bytes_of(tensor));
            tensor.copy_(all.narrow(0, at, n).clone().view(tensor.scalar_type()).view(tensor.sizes()));
            at += n;
          }
        }
      },
      [=, this](Communicator& group) { return group.post_all_gather(view(mine), view(all), call_options()); });
}

#if TORCH_VERSION_MAJOR >= 2
WorkPtr TsprunGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const char* const call = "all_gather_into_tensor_coalesced";
  check_parts(call, "output", outputs, "input", inputs, getSize());
  if (inputs.size() == 1) return _allgather_base(outputs.front(), inputs.front(), options);
  std::vector<Tensors> of_ranks(static_cast<std::size_t>(getSize()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(outputs[i].is_contiguous(), call, ": output tensor ", i, " isn't contiguous");
    const Tensors parts = parts_of(outputs[i], inputs[i].sizes(), getSize());
    for (std::size_t r = 0; r < parts.size(); ++r) of_ranks[r].push_back(parts[r]);
  }
  return allgather_coalesced(of_ranks, inputs, options);
}

WorkPtr TsprunGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  const char* const call = "reduce_scatter_tensor_coalesced";
  check_parts(call, "input", inputs, "output", outputs, getSize());
  if (inputs.size() == 1) return _reduce_scatter_base(outputs.front(), inputs.front(), options);
  for (const at::Tensor& output : outputs) check_alike(call, output, outputs.front());
  const Reduction reduction = reduction_of(call, options.reduceOp, outputs.front());
  std::vector<Tensors> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) parts.push_back(parts_of(inputs[i], outputs[i].sizes(), getSize()));
  Tensors by_rank;  // what each rank gets, one rank's tensors after the other's
  for (std::size_t r = 0; r < static_cast<std::size_t>(getSize()); ++r) {
    for (const Tensors& of_input : parts) by_rank.push_back(of_input[r]);
  }
  const at::Tensor all = joined(by_rank);
  const at::Tensor mine = room_for(outputs);
  const Tensors results = outputs;
  return start(
      {"reduce_scatter", c10d::OpType::COALESCED, {all}, outputs, inputs}, [=] { spread(mine, results); },
      [=, this](Communicator& group) { return group.post_reduce_scatter(view(all), view(mine), reduction, call_options()); });
}
#endif

WorkPtr TsprunGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor input = plain(only("gather", "input", inputs));
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
  return start(
      {"gather", c10d::OpType::GATHER, {input}, parts},
      [=] {
        if (flat.defined()) spread(flat, parts);
      },
      [=, this](Communicator& group) {
        return group.post_gather(view(input), flat.defined() ? view(flat) : Buffer(), root, call_options());
      });
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
  return start({"scatter", c10d::OpType::SCATTER, flat.defined() ? Tensors{flat} : Tensors{}, outputs,
                inputs.empty() ? Tensors{} : inputs.front()},
               result.finish(), [=, this](Communicator& group) {
                 return group.post_scatter(flat.defined() ? view(flat) : Buffer(), view(result.memory()), root, call_options());
               });
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
  return start({"reduce_scatter", c10d::OpType::REDUCE_SCATTER, {flat}, outputs, parts}, result.finish(),
               [=, this](Communicator& group) {
                 return group.post_reduce_scatter_v(view(flat), view(result.memory()), counts, reduction, call_options());
               });
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
  const at::Tensor all = plain(input);
  return start({"reduce_scatter", c10d::OpType::_REDUCE_SCATTER_BASE, {all}, {output}}, result.finish(),
               [=, this](Communicator& group) {
                 return group.post_reduce_scatter(view(all), view(result.memory()), reduction, call_options());
               });
}

WorkPtr TsprunGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                   std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  check("all_to_all_single", output);
  check("all_to_all_single", input);
  check_alike("all_to_all_single", output, input);
  const std::vector<std::size_t> out = split_counts("input", input, input_splits, getSize());
  const std::vector<std::size_t> in = split_counts("output", output, output_splits, getSize());
  const Result result(output, false);
  const at::Tensor all = plain(input);
  return start({"all_to_all", c10d::OpType::ALLTOALL_BASE, {all}, {output}}, result.finish(), [=, this](Communicator& group) {
    return group.post_all_to_all_v(view(all), out, view(result.memory()), in, call_options());
  });
}

WorkPtr TsprunGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  const Tensors to = only_list("all_to_all", "inputs", {inputs}, getSize());
  const Tensors from = only_list("all_to_all", "outputs", {outputs}, getSize());
  for (const Tensors* list : {&to, &from}) {
    for (const at::Tensor& tensor : *list) check_alike("all_to_all", tensor, to.front());
  }
  const at::Tensor all = joined(to);
  const at::Tensor flat = room_for(from);
  return start(
      {"all_to_all", c10d::OpType::ALLTOALL, {all}, outputs, to}, [=] { spread(flat, from); },
      [=, this](Communicator& group) {
        return group.post_all_to_all_v(view(all), counts_of(to), view(flat), counts_of(from), call_options());
      });
}

WorkPtr TsprunGroup::send(Tensors& tensors, int to, int tag) {
  check_tag("send", tag);
  const at::Tensor tensor = plain(only("send", "tensor", tensors));
  return start({"send", c10d::OpType::SEND, {tensor}, tensors}, {},
               [=](Communicator& group) { return group.post_send(view(tensor), to, {.tag = tag}); });
}

WorkPtr TsprunGroup::recv(Tensors& tensors, int from, int tag) { return receive("recv", c10d::OpType::RECV, tensors, from, tag); }

WorkPtr TsprunGroup::recvAnysource(Tensors& tensors, int tag) {
  return receive("recvAnySource", c10d::OpType::RECVANYSOURCE, tensors, kAnySource, tag);
}

WorkPtr TsprunGroup::receive(const char* call, c10d::OpType type, Tensors& tensors, int from, int tag) {
  check_tag("recv", tag);
  const Result result(only("recv", "tensor", tensors), false);
  const auto received = std::make_shared<MessageInfo>();
  return start({call, type, tensors, tensors, {}, received}, result.finish(), [=](Communicator& group) {
    return group.post_recv(view(result.memory()), from, {.tag = tag, .received = received.get()});
  });
}

WorkPtr TsprunGroup::barrier(const c10d::BarrierOptions&) {
  return start({"barrier", c10d::OpType::BARRIER, {}, {}}, {},
               [this](Communicator& group) { return group.post_barrier(call_options()); });
}

}  // namespace tsprun::torch_binding
