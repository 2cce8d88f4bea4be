// Makes the call of an operation and dtype.
#include "tests/support/calls.h"

#include "tests/support/moving_calls.h"
#include "tests/support/reducing_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace tsprun::detail::test {

namespace {

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

}  // namespace tsprun::detail::test
