// Derives from a kind's row and the job's options which ranks it may connect.
#include "transport/factory.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

namespace {

std::string option_of(bootstrap::Demand demanded, Factory::Distance distance) {
  const std::string_view name = kFactories[static_cast<std::size_t>(demanded) - 1]->name;
  return distance == Factory::Distance::job ? fmt::format("--inter {}", name) : fmt::format("same node, but --intra {}", name);
}

}  // namespace

Factory::Claim Factory::claim(bootstrap::Demand demanded, Distance distance) const {
  using enum Claim::Answer;
  const Use here = use(distance);
  if (here == Use::never) return {};
  const bool free = demanded == bootstrap::Demand::automatic || distance == Distance::none;
  if (!free && demanded != demand_for(name)) return {no, option_of(demanded, distance)};
  if (here == Use::always) return {yes};
  return free ? Claim{if_reachable, std::string(missing)} : Claim{or_not_at_all, option_of(demanded, distance)};
}

bootstrap::Demand demand_for(std::string_view name) {
  const auto place = std::ranges::find(kFactories, name, &Factory::name);
  return place == kFactories.end() ? bootstrap::Demand::automatic
                                   : static_cast<bootstrap::Demand>(place - kFactories.begin() + 1);
}

const Factory& within_node(bootstrap::Demand intra) {
  return **std::ranges::find_if(kFactories, [&](const Factory* kind) {
    return kind->claim(intra, Factory::Distance::node).answer == Factory::Claim::Answer::yes;
  });
}

}  // namespace tsprun::detail
