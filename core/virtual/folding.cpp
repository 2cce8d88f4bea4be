// Compares programs, operation by operation.
#include "core/virtual/folding.h"

#include "core/collectives/registry.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <tuple>
#include <vector>

namespace tsprun::detail {

namespace {

/// Part of an operation's bytes by which they may differ; and as many bytes, where that is more.
constexpr double kSlackOfBytes = 1e-4;
constexpr std::uint64_t kBytesOfSlack = 64;

/// Bytes of all ranks' parts of a call that takes about as long by any algorithm.
constexpr std::uint64_t kSmall = std::uint64_t{64} << 10;

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

bool are_the_same_ranks(std::vector<int> one, std::vector<int> other) {
  std::ranges::sort(one);
  std::ranges::sort(other);
  return one == other;
}

/// Properties that two calls must share, whatever their ranks.
auto kind_of(const ProgramCall& call) {
  return std::tuple(call.op, call.dtype, call.reduction, call.purpose, call.relayed, call.tag, call.algorithm);
}

/// Compares the calls of a rank with those of the rank in its place of unit 0. Programs name a call often: each pair is compared
/// once.
class Calls {
 public:
  Calls(const Program& of_first_unit, const Program& other, int number, const sim::UnitGrid& grid)
      : first_(of_first_unit), other_(other), number_(number), grid_(grid), same_as_(of_first_unit.calls.size(), kNone) {}

  bool are_the_same(std::uint32_t one, std::uint32_t other) {
    if (same_as_[one] == other) return true;
    if (!compare(first_.calls[one], other_.calls[other])) return false;
    same_as_[one] = other;
    return true;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  int shifted(int rank) const { return rank < 0 ? rank : grid_.shifted(rank, number_); }

  bool compare(const ProgramCall& first, const ProgramCall& call) const {
    const std::vector<int>& members = first_.groups.at(first.group);
    const std::vector<int>& others = other_.groups.at(call.group);
    std::vector<int> moved;
    for (const int rank : members) moved.push_back(shifted(rank));
    const bool circle = is_circle(members, grid_);
    const bool is_folded = std::ranges::any_of(members, [&](int rank) { return rank >= grid_.unit; });
    return kind_of(first) == kind_of(call) && is_as_large(first.bytes, call.bytes) && shifted(first.root) == call.root &&
           shifted(first.source) == call.source && (circle ? is_rotated(moved, others) : are_the_same_ranks(moved, others)) &&
           (!is_folded || folded_algorithm(first, members.size(), circle) != nullptr) &&
           have_equal_chunks(first.arguments.chunks, call.arguments.chunks, first, moved, others) &&
           have_equal_chunks(first.arguments.send_chunks, call.arguments.send_chunks, first, moved, others);
  }

  /// Returns whether chunks have as many bytes for each rank; `moved`: where those of the first are shifted to.
  static bool have_equal_chunks(const Chunks& first, const Chunks& chunks, const ProgramCall& call, const std::vector<int>& moved,
                                const std::vector<int>& others) {
    if (first.total() == 0 || chunks.total() == 0) return first.total() == chunks.total();
    std::map<int, int> place;  // by rank
    for (std::size_t i = 0; i < others.size(); ++i) place[others[i]] = static_cast<int>(i);
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const std::uint64_t one = first.count(static_cast<int>(i)) * size_of(call.dtype);
      if (!is_as_large(one, chunks.count(place.at(moved[i])) * size_of(call.dtype))) return false;
    }
    return true;
  }

  const Program& first_;
  const Program& other_;
  int number_;
  const sim::UnitGrid& grid_;
  std::vector<std::uint32_t> same_as_;  // by call of the first: the last that was found to be the same
};

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

bool is_circle(const std::vector<int>& members, const sim::UnitGrid& grid) {
  int next = grid.units();
  for (const int size : grid.along) {
    next /= size;  // the unit after unit 0 along this axis
    std::vector<int> moved;
    for (const int rank : members) moved.push_back(grid.shifted(rank, next));
    if (!is_rotated(moved, members) && are_the_same_ranks(moved, members)) return false;
  }
  return true;
}

Start* folded_algorithm(const ProgramCall& call, std::size_t ranks, bool circle) {
  if (circle && !row_of(call.op, call.algorithm).has_root) return call.algorithm;
  const AlgorithmRow* const alike = find_algorithm(call.op, Algorithm::direct);
  return alike != nullptr && !alike->has_root && (circle || call.bytes * ranks <= kSmall) ? alike->start : nullptr;
}

std::optional<double> differs_by(const Program& of_first_unit, const Program& other, int number, const sim::UnitGrid& grid,
                                 const std::function<double(const KernelCost&)>& price) {
  const std::vector<double> first_seconds = priced(of_first_unit, price);
  const std::vector<double> seconds = priced(other, price);
  Calls calls(of_first_unit, other, number, grid);
  Walk first{of_first_unit, first_seconds};
  Walk walk{other, seconds};
  double seconds_apart = 0;
  for (;;) {
    const ProgramItem* const one = first.step();
    const ProgramItem* const item = walk.step();
    seconds_apart += std::abs(walk.kernels - first.kernels);
    if (one == nullptr && item == nullptr) return seconds_apart;
    if (one == nullptr || item == nullptr) return std::nullopt;
    if (one->kind != item->kind || one->stream != item->stream || one->amount != item->amount) return std::nullopt;
    if (one->kind != ItemKind::wait && !calls.are_the_same(one->index, item->index)) return std::nullopt;
  }
}

}  // namespace tsprun::detail
