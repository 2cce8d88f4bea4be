// Makes a subgroup of the world for every set of axes that is asked for.
#include "layers/layout/mesh.h"

#include "core/collectives/communicator_state.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail {

namespace {

Layout checked(const Communicator& world, Layout layout) {
  if (const std::string why = layout.why_not(); !why.empty()) throw Error(Cause::refused, why);
  const bool none = std::ranges::any_of(layout.axes, [](const Axis& axis) { return axis.degree < 1; });
  if (none || layout.ranks() != world.size()) {
    throw Error(Cause::refused, fmt::format("a mesh {} doesn't fit a world of {} ranks", layout.print(), world.size()));
  }
  return layout;
}

}  // namespace

Mesh::Mesh(Communicator& world, Layout layout) : world_(world), layout_(checked(world, std::move(layout))) {}

Communicator& Mesh::group(const std::vector<AxisKind>& axes) {
  std::vector<AxisKind> several;
  for (const AxisKind axis : axes) {
    if (layout_.degree(axis) > 1) several.push_back(axis);
  }
  if (const auto found = groups_.find(several); found != groups_.end()) return found->second;
  int first = world_.rank();
  for (const AxisKind axis : several) first -= place(axis) * layout_.stride(axis);
  std::vector<int> members = {first};
  for (const AxisKind axis : several) {
    std::vector<int> wider;
    for (const int member : members) {
      for (int place = 0; place < layout_.degree(axis); ++place) wider.push_back(member + place * layout_.stride(axis));
    }
    members = std::move(wider);
  }
  Communicator made = world_.subgroup(members);
  std::string name;
  for (const AxisKind axis : several) name += fmt::format("{}{}", name.empty() ? "" : ",", detail::name(axis));
  if (!name.empty()) CommunicatorState::give_name(made, std::move(name));
  return groups_.emplace(std::move(several), std::move(made)).first->second;
}

}  // namespace tsprun::detail
