// Plays three steps, and draws a line through them.
#include "layers/theory/few_layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

namespace tsprun::detail::theory {

namespace {

constexpr std::size_t kFewest = 2;  ///< layers of the first step; one more if their number is odd
constexpr std::size_t kMore = 2;    ///< layers by which each step has more
constexpr double kUneven = 2e-2;    ///< part of its growth by which a step's may differ from that before

/// Three steps and the number of times that the last one has to grow.
struct Line {
  const std::array<Simulated, 3>& steps;
  std::size_t times;

  /// Returns where a figure is at the end; `of` gives that of a step.
  template <class Figure>
  double operator()(Figure&& of) const {
    return of(steps[2]) + static_cast<double>(times) * (of(steps[2]) - of(steps[0])) / 2;
  }
};

std::size_t fewest_of(const MeshSetting& of) { return kFewest + of.setting.model.layers % kMore; }

/// Returns the part by which the growth to the last step differs from that to the one before.
double difference_of(const std::array<Simulated, 3>& steps) {
  const double first = steps[1].seconds - steps[0].seconds;
  const double second = steps[2].seconds - steps[1].seconds;
  return second > 0 ? std::abs(second - first) / second : 1;
}

bool use_the_same_links(const std::array<Simulated, 3>& steps) {
  const auto same = [](const Simulated& one, const Simulated& other) {
    return std::ranges::equal(one.links, other.links, {}, &LinkUse::kind, &LinkUse::kind);
  };
  return same(steps[0], steps[1]) && same(steps[1], steps[2]);
}

}  // namespace

MeshSetting with_layers(MeshSetting of, std::size_t layers) {
  of.setting.model.layers = layers;
  return of;
}

bool may_have_few_layers(const MeshSetting& of) {
  const ModelConfig& model = of.setting.model;
  return model.specs.alike() && of.layout.stages() == 1 && model.layers > 2 * (fewest_of(of) + 2 * kMore);
}

Growth growth_of(const MeshSetting& of) {
  const std::size_t fewest = fewest_of(of);
  const std::size_t more = fewest + 2 * kMore;
  return {.fewest = fewest, .few = fewest + kMore, .more = more, .times = (of.setting.model.layers - more) / kMore};
}

std::optional<FromFewLayers> from_few_layers(const MeshSetting& of, kernels::Pool& on,
                                             const std::function<Simulated(std::size_t layers)>& play) {
  const Growth growth = growth_of(of);
  std::array<Simulated, 3> steps;
  on.run(steps.size(), [&](std::size_t task, std::size_t) {
    const std::size_t step = steps.size() - 1 - task;  // the one with most layers begins first, since it takes longest
    steps[step] = play(growth.fewest + step * kMore);
  });
  const double difference = difference_of(steps);
  if (difference > kUneven || !use_the_same_links(steps)) return std::nullopt;
  const Line line{steps, growth.times};

  Simulated all;
  all.played = steps[2].played;
  all.layers = growth.more;
  all.layers_difference = difference;
  all.seconds = line([](const Simulated& step) { return step.seconds; });
  all.compute_seconds = line([](const Simulated& step) { return step.compute_seconds; });
  all.exposed_seconds = line([](const Simulated& step) { return step.exposed_seconds; });
  all.messages = steps[2].messages + line.times * (steps[2].messages - steps[1].messages);
  for (std::size_t i = 0; i < steps[2].links.size(); ++i) {
    const double busy = line([&](const Simulated& step) { return step.links[i].busy * step.seconds; });
    all.links.push_back({.kind = steps[2].links[i].kind,
                         .busy = all.seconds == 0 ? 0 : busy / all.seconds,
                         .bytes = line([&](const Simulated& step) { return step.links[i].bytes; })});
  }
  return FromFewLayers{.step = std::move(all),
                       .fewest_seconds = steps[0].seconds,
                       .seconds_by_first_growth = seconds_by_first_growth(of, steps[0].seconds, steps[1].seconds)};
}

double seconds_by_first_growth(const MeshSetting& of, double fewest_seconds, double few_seconds) {
  const Growth growth = growth_of(of);
  return few_seconds + static_cast<double>(growth.times + 1) * (few_seconds - fewest_seconds);
}

}  // namespace tsprun::detail::theory
