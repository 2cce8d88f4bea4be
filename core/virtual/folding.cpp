// Compares programs, operation by operation.
#include "core/virtual/folding.h"

#include "core/collectives/registry.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <vector>

namespace tsprun::detail {

namespace {

/// Part of their time by which kernels between operations may take longer or shorter.
constexpr double kElsewhere = 2e-3;
/// Part of an operation's bytes by which they may differ; and as many bytes, where that is more.
constexpr double kSlackOfBytes = 1e-4;
constexpr std::uint64_t kBytesOfSlack = 64;

/// Bytes of a call that takes about as long by any algorithm.
constexpr std::uint64_t kSmall = 4096;

bool is_as_large(std::uint64_t one, std::uint64_t other) {
  const std::uint64_t differs = one < other ? other - one : one - other;
  return differs <= std::max(kBytesOfSlack, static_cast<std::uint64_t>(kSlackOfBytes * static_cast<double>(one)));
}

/// Returns whether a list of ranks is another one that begins elsewhere.
bool is_rotated(const std::vector<int>& one, const std::vector<int>& other) {
  if (one.size() != other.size()) return false;
  const auto begin = std::ranges::find(other, one.front());
  return std::equal(begin, other.end(), one.begin()) && std::equal(other.begin(), begin, one.begin() + (other.end() - begin));
}

/// What must be equal of two calls.
auto kind_of(const ProgramCall& call) {
  return std::tuple(call.op, call.dtype, call.reduction, call.purpose, call.relayed, call.tag, call.algorithm);
}

/// A program, of which one operation or wait after another is taken.
struct Walk {
  const Program& program;
  const std::vector<double>& seconds;  // of each cost
  std::size_t next = 0;
  double kernels = 0;  // seconds since the last one

  /// Returns the next operation or wait; null after the last.
  const ProgramItem* step() {
    kernels = 0;
    for (; next < program.items.size(); ++next) {
      const ProgramItem& item = program.items[next];
      if (item.kind == ItemKind::kernel) kernels += seconds[item.index];
      if (item.kind != ItemKind::post && item.kind != ItemKind::call && item.kind != ItemKind::wait) continue;
      ++next;
      return &item;
    }
    return nullptr;
  }
};

std::vector<double> priced(const Program& program, const std::function<double(const KernelCost&)>& price) {
  std::vector<double> seconds;
  std::ranges::transform(program.costs, std::back_inserter(seconds), price);
  return seconds;
}

}  // namespace

bool is_circle(const std::vector<int>& members, const sim::Turns& turns) {
  int next = turns.units();
  for (const int size : turns.along) {
    next /= size;  // the unit behind the first along this axis
    std::vector<int> turned;
    for (const int rank : members) turned.push_back(turns.turned(rank, next));
    if (!is_rotated(turned, members) && std::ranges::is_permutation(turned, members)) return false;
  }
  return true;
}

Start* folded_algorithm(const ProgramCall& call, bool circle) {
  if (circle && !row_of(call.op, call.algorithm).has_root) return call.algorithm;
  const AlgorithmRow* const alike = find_algorithm(call.op, Algorithm::direct);
  return alike != nullptr && !alike->has_root && (circle || call.bytes <= kSmall) ? alike->start : nullptr;
}

bool does_the_same(const Program& of_first_unit, const Program& other, int number, const sim::Turns& turns,
                   const std::function<double(const KernelCost&)>& price) {
  const auto turned = [&](int rank) { return rank < 0 ? rank : turns.turned(rank, number); };
  const auto is_same_call = [&](const ProgramCall& first, const ProgramCall& call) {
    std::vector<int> members = of_first_unit.groups.at(first.group);
    const bool is_folded = std::ranges::any_of(members, [&](int rank) { return rank >= turns.unit; });
    const bool circle = is_circle(members, turns);
    std::ranges::transform(members, members.begin(), turned);
    const std::vector<int>& others = other.groups.at(call.group);
    return kind_of(first) == kind_of(call) && is_as_large(first.bytes, call.bytes) && turned(first.root) == call.root &&
           turned(first.source) == call.source &&
           (circle ? is_rotated(members, others) : std::ranges::is_permutation(members, others)) &&
           (!is_folded || folded_algorithm(first, circle) != nullptr);
  };
  const std::vector<double> first_seconds = priced(of_first_unit, price);
  const std::vector<double> seconds = priced(other, price);
  Walk first{of_first_unit, first_seconds};
  Walk walk{other, seconds};
  double all = 0;
  double elsewhere = 0;
  for (;;) {
    const ProgramItem* const one = first.step();
    const ProgramItem* const item = walk.step();
    all += first.kernels;
    elsewhere += std::abs(walk.kernels - first.kernels);
    if (one == nullptr || item == nullptr) return one == item && elsewhere <= kElsewhere * all;
    if (one->kind != item->kind || one->stream != item->stream || one->amount != item->amount) return false;
    if (one->kind != ItemKind::wait && !is_same_call(of_first_unit.calls[one->index], other.calls[item->index])) return false;
  }
}

}  // namespace tsprun::detail
