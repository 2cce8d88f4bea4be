// Makes a subgroup of the world for every slice of the mesh that has this rank.
#include "layers/layout/mesh.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
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

Mesh::Mesh(Communicator& world, Layout layout)
    : world_(world),
      layout_(checked(world, std::move(layout))),
      data_(group({layout_.data_axis()})),
      tensor_(group({layout_.tensor_axis()})),
      sequence_(group({layout_.token_axis()})) {
  if (layout_.slices_tokens()) tokens_.emplace(group({layout_.token_axis(), layout_.tensor_axis()}));
  if (layout_.data() > 1) replica_.emplace(group({layout_.tensor_axis(), layout_.token_axis()}));
}

/// Returns the group of the ranks that stand elsewhere than this one on these axes alone. Of two axes the last varies fastest.
Communicator Mesh::group(std::initializer_list<AxisKind> axes) const {
  int first = world_.rank();
  for (const AxisKind axis : axes) first -= layout_.place(axis, world_.rank()) * layout_.stride(axis);
  std::vector<int> members = {first};
  for (const AxisKind axis : axes) {
    std::vector<int> wider;
    for (const int member : members) {
      for (int place = 0; place < layout_.degree(axis); ++place) wider.push_back(member + place * layout_.stride(axis));
    }
    members = std::move(wider);
  }
  return world_.subgroup(members);
}

}  // namespace tsprun::detail
