// What calls of an operation can have, and calls that are drawn at random from that.
#include "core/collectives/communicator_state.h"
#include "tests/support/calls.h"

#include <algorithm>

namespace tsprun::detail::test {

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
