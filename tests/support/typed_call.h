// What all calls of collectives share: the place in the group, buffers with holes and guards, and comparisons with the oracle.
#pragma once

#include "core/context.h"
#include "tests/support/calls.h"
#include "tests/support/guarded.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <utility>

namespace tsprun::detail::test {

using Counts = std::vector<std::size_t>;

inline std::size_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::size_t{0}); }

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
  /// Checks that a send buffer still holds what this rank put there, if the call has one of its own.
  void expect_unchanged(const std::optional<Guarded<T>>& send) const {
    if (!send) return;
    expect_samples("send", send->elements(), call_.seed, p_);
    expect_guards(*send, "send");
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

}  // namespace tsprun::detail::test
