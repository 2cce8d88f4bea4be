// Searches all tensors of all ranks, and runs a failed pass again under a FiniteWatch.
#include "layers/parameters/not_finite.h"

#include "core/kernels/finite.h"
#include "core/rank/finite_watch.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/agreement.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace tsprun::detail {

namespace {

struct Kind {
  Tensor ParameterPart::*member;
  std::string_view name;
};
constexpr std::array<Kind, 4> kKinds = {{{&ParameterPart::value, "tensor"},
                                         {&ParameterPart::master, "master copy of tensor"},
                                         {&ParameterPart::m, "AdamW's first moment of tensor"},
                                         {&ParameterPart::v, "AdamW's second moment of tensor"}}};

/// Returns "nan at [3, 17]" for an element of a part's view, with indices in the whole parameter as files store it.
std::string natural_place(const ParameterPart& part, const ConstTensor& view, std::size_t number) {
  std::size_t row = number / view.size(1);
  std::size_t column = number % view.size(1);
  if (part.plan.transposed) std::swap(row, column);
  row += part.plan.block.first_row;
  column += part.plan.block.first_column;
  const std::string described = kernels::describe_element(view, number);
  const std::string value = described.substr(0, described.find(" at "));
  return part.plan.parameter.is_matrix() ? fmt::format("{} at [{}, {}]", value, row, column)
                                         : fmt::format("{} at [{}]", value, row + column);
}

/// Does as kernels::first_not_finite(), on all threads of the rank.
std::optional<std::size_t> first_not_finite(Rank& rank, const ConstTensor& view) {
  if (view.empty()) return std::nullopt;
  const std::size_t width = view.size(1);
  const std::size_t step = std::max<std::size_t>((std::size_t{1} << 20) / width, 1);
  std::atomic<std::size_t> first = view.elements();
  rank.compute().run_tasks(kernels::pieces(view.size(0), step), [&](std::size_t task, std::size_t) {
    const std::size_t row = task * step;
    const auto found = kernels::first_not_finite(view.slice(0, row, std::min(step, view.size(0) - row)));
    if (!found) return;
    std::size_t known = first;
    while (row * width + *found < known && !first.compare_exchange_weak(known, row * width + *found)) {
    }
  });
  return first < view.elements() ? std::optional(first.load()) : std::nullopt;
}

}  // namespace

void check_finite(Rank& rank, Communicator& ranks, const ParameterStore& store,
                  const std::function<std::string(const Parameter&)>& where, bool known) {
  if (rank.is_phantom()) return;
  agree(ranks, [&] {
    if (known) return;
    const auto check = [&](const ParameterPart& part, const Kind& kind) {
      const ConstTensor view = part.*kind.member;
      rank.tick();
      const std::optional<std::size_t> at = first_not_finite(rank, view);
      if (!at) return;
      const Parameter& parameter = part.plan.parameter;
      throw Error(Cause::refused, fmt::format("{}{} \"{}\" {} holds {} (as {}, on rank {})", where(parameter), kind.name,
                                              parameter.name, safetensors::describe(parameter.shape),
                                              natural_place(part, view, *at), name(view.dtype()), rank.rank()));
    };
    for (const ParameterPart& part : store.parts()) {
      for (const Kind& kind : kKinds) check(part, kind);
    }
    if (!store.shares_states()) return;
    for (const ParameterPart& part : store.states()) {
      for (const Kind& kind : std::span(kKinds).subspan(1)) check(part, kind);
    }
  });
}

void blame_not_finite(Rank& rank, Communicator& ranks, const ParameterStore& store, const FailedPass& pass) {
  check_finite(rank, ranks, store, [&](const Parameter&) { return fmt::format("{}; {}: ", pass.what, pass.advice); });
  FiniteWatch watch;
  rank.watch(&watch);
  pass.run();
  rank.watch(nullptr);
  if (pass.gradients) {
    watch.enter("backward");
    std::uint64_t order = 0;
    for (const ParameterPart& part : store.parts()) {
      watch.look(order++, fmt::format("gradient of \"{}\"", part.plan.parameter.name), part.gradient);
    }
  }

  // Ranks hold different parts, so gradients of different ranks have no common order: any of them may be named.
  constexpr double kNothing = std::numeric_limits<double>::max();
  const double mine = watch.found() ? static_cast<double>(watch.found()->order) : kNothing;
  double first = mine;
  ranks.all_reduce(std::span(&first, 1), Reduction::min);
  agree(ranks, [&] {
    if (first == kNothing) {
      throw Error(Cause::refused, fmt::format("{}; run again, the same pass had nothing that isn't finite: this machine computes "
                                              "unreliably, or memory was overwritten",
                                              pass.what));
    }
    if (mine != first) return;
    throw Error(Cause::refused, fmt::format("{}; the first tensor that isn't finite: rank {}, {}; {}", pass.what, rank.rank(),
                                            watch.found()->text, pass.advice));
  });
  throw Error(Cause::refused, pass.what);
}

}  // namespace tsprun::detail
