// Walks through programs item by item.
#include "layers/theory/lone_walk.h"

#include "layers/theory/call_price.h"
#include "layers/theory/kernel_price.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace tsprun::detail::theory {

namespace {

constexpr std::size_t index_of(Resource resource) { return static_cast<std::size_t>(resource); }

/// Prices of a program's kernels and operations.
struct Prices {
  std::vector<double> kernels;
  std::vector<CallPrice> calls;
  double slowed = 1;  // factor of kernels while messages are under way

  Prices(const Program& program, const Machine& machine, const PriceFacts& facts) : slowed(machine.copies_slow_kernels) {
    for (const KernelCost& cost : program.costs) kernels.push_back(kernel_seconds(cost, machine, facts));
    for (const ProgramCall& call : program.calls) calls.push_back(call_price(call, program.groups.at(call.group), machine));
  }
};

/// The links of a rank, and the operations on them: of each stream the first that hasn't ended. Those that use the same link
/// share it evenly.
class SharedLinks {
 public:
  explicit SharedLinks(double& now) : now_(now) {}

  void post(std::uint8_t stream, const CallPrice& price) {
    queues_[stream].posted.push_back(price);
    settle();
  }
  bool is_moving() const { return users_[within] + users_[across] > 0; }
  bool has_ended(std::uint8_t stream, std::uint64_t number) const { return number <= queues_[stream].complete_at.size(); }
  /// Returns when the result of an operation that has ended is there. One that was posted before the program begins has number 0.
  double complete_at(std::uint8_t stream, std::uint64_t number) const {
    return number == 0 ? 0 : queues_[stream].complete_at[number - 1];
  }

  /// Returns the seconds until an operation is done with a link; infinite if none moves.
  double until_change() const {
    double least = std::numeric_limits<double>::infinity();
    if (!is_moving()) return least;
    for (const Queue& queue : queues_) {
      for (const Link link : {within, across}) least = std::min(least, seconds_left(queue, link));
    }
    return least;
  }
  /// Lets time pass, no more than until_change().
  void pass(double seconds) {
    if (!is_moving()) {
      now_ += seconds;
      return;
    }
    std::array<std::array<double, 2>, kQueues> left{};
    for (std::size_t i = 0; i < kQueues; ++i) left[i] = {seconds_left(queues_[i], within), seconds_left(queues_[i], across)};
    for (std::size_t i = 0; i < kQueues; ++i) {
      for (const Link link : {within, across}) {
        if (left[i][link] == std::numeric_limits<double>::infinity()) continue;
        double& work = link == within ? queues_[i].first().within : queues_[i].first().across;
        work = left[i][link] <= seconds ? 0 : work * (1 - seconds / left[i][link]);
      }
    }
    now_ += seconds;
    settle();
  }

 private:
  enum Link { within, across };
  struct Queue {
    std::vector<CallPrice> posted;    // less what is done
    std::vector<double> complete_at;  // of those that have ended

    bool is_moving() const { return complete_at.size() < posted.size(); }
    CallPrice& first() { return posted[complete_at.size()]; }
    const CallPrice& first() const { return posted[complete_at.size()]; }
    bool uses(Link link) const {
      if (!is_moving()) return false;
      return link == within ? first().within > 0 : first().across > 0 && !(first().ordered && first().within > 0);
    }
  };

  double seconds_left(const Queue& queue, Link link) const {
    if (!queue.uses(link)) return std::numeric_limits<double>::infinity();
    return (link == within ? queue.first().within : queue.first().across) * users_[link];
  }
  /// Lets operations go on to what comes after, and ends those that have nothing left.
  void settle() {
    users_ = {};
    for (Queue& queue : queues_) {
      while (queue.is_moving() && queue.first().within == 0 && queue.first().across == 0) {
        if (queue.first().after > 0) queue.first().within = std::exchange(queue.first().after, 0);
        else queue.complete_at.push_back(now_ + queue.first().delay);
      }
      for (const Link link : {within, across}) users_[link] += queue.uses(link) ? 1 : 0;
    }
  }

  double& now_;
  std::array<Queue, kQueues> queues_;
  std::array<double, 2> users_{};  // of each link
};

/// A rank on its way through its program.
class Walker {
 public:
  explicit Walker(const Prices& prices) : prices_(prices) {}

  void walk(const Program& program) {
    for (const ProgramItem& item : program.items) {
      if (item.kind == ItemKind::kernel) compute(prices_.kernels[item.index]);
      if (item.kind == ItemKind::post || item.kind == ItemKind::call) post(item);
      if (item.kind == ItemKind::wait || item.kind == ItemKind::call) wait(item);
    }
    // What nobody waits for must have moved, too, before the next step.
    while (links_.is_moving()) links_.pass(links_.until_change());
  }
  double seconds() const { return now_; }
  double kernels() const { return kernels_; }
  /// Returns the seconds of links within nodes, and of the NIC.
  const std::array<double, 2>& busy() const { return busy_; }

 private:
  /// Lets a kernel run that takes `left` seconds where nothing moves.
  void compute(double left) {
    kernels_ += left;
    while (true) {
      const double factor = links_.is_moving() ? prices_.slowed : 1;
      const double change = links_.until_change();
      if (left * factor <= change) {
        links_.pass(left * factor);
        return;
      }
      links_.pass(change);
      left -= change / factor;
    }
  }

  void post(const ProgramItem& item) {
    const CallPrice& price = prices_.calls[item.index];
    busy_[0] += price.within + price.after;
    busy_[1] += price.across;
    links_.post(item.stream, price);
  }

  void wait(const ProgramItem& item) {
    while (!links_.has_ended(item.stream, item.amount)) {
      if (!links_.is_moving())
        throw Error(Cause::refused, fmt::format("a program waits for operation {}, which it hasn't posted", item.amount));
      links_.pass(links_.until_change());
    }
    const double there = links_.complete_at(item.stream, item.amount);
    while (now_ < there) {
      const double left = there - now_;
      const double change = links_.until_change();
      links_.pass(std::min(left, change));
      if (left <= change) return;
    }
  }

  const Prices& prices_;
  double now_ = 0;
  double kernels_ = 0;
  SharedLinks links_{now_};
  std::array<double, 2> busy_{};
};

double kernel_sum(const Program& program, const Prices& prices) {
  double sum = 0;
  for (const ProgramItem& item : program.items) {
    if (item.kind == ItemKind::kernel) sum += prices.kernels[item.index];
  }
  return sum;
}

void make_infinite(Machine& machine, Resource resource) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  switch (resource) {
    case Resource::compute:
      for (std::optional<double>* flops : {&machine.flops_bf16, &machine.flops_f32, &machine.flops_f64}) {
        if (*flops) *flops = kInfinite;
      }
      break;
    case Resource::memory: machine.memory_bytes_per_s = kInfinite; break;
    case Resource::within_node:
      machine.within_bytes_per_s = kInfinite;
      machine.within_latency = 0;
      break;
    case Resource::across_nodes:
      machine.nic_bytes_per_s = kInfinite;
      machine.nic_latency = 0;
      break;
  }
}

}  // namespace

StepTime walk(const Program& program, const Machine& machine, const PriceFacts& facts) {
  const Prices prices(program, machine, facts);
  Walker walker(prices);
  walker.walk(program);
  StepTime time{.seconds = walker.seconds(), .exposed = walker.seconds() - walker.kernels()};
  time.busy[index_of(Resource::within_node)] = walker.busy()[0];
  time.busy[index_of(Resource::across_nodes)] = walker.busy()[1];
  // What would shorten the step most; a resource without which kernels still take too long to gain more needs no walk.
  struct WhatIf {
    Resource resource;
    Prices prices;
    double most;  // that it can gain
  };
  std::vector<WhatIf> candidates;
  for (int i = 0; i < kResources; ++i) {
    Machine without = machine;
    make_infinite(without, static_cast<Resource>(i));
    Prices free(program, without, facts);
    const double kernels = kernel_sum(program, free);
    // Compute and memory each work for as long as kernels take if the other one costs nothing.
    if (static_cast<Resource>(i) == Resource::memory) time.busy[index_of(Resource::compute)] = kernels;
    if (static_cast<Resource>(i) == Resource::compute) time.busy[index_of(Resource::memory)] = kernels;
    candidates.push_back({static_cast<Resource>(i), std::move(free), time.seconds - kernels});
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), &WhatIf::most);
  double gain = -1;
  for (const WhatIf& candidate : candidates) {
    if (candidate.most <= gain) break;
    Walker faster(candidate.prices);
    faster.walk(program);
    if (time.seconds - faster.seconds() <= gain) continue;
    gain = time.seconds - faster.seconds();
    time.binds = candidate.resource;
  }
  return time;
}

}  // namespace tsprun::detail::theory
