// Makes a subgroup of the world for every slice of the mesh that has this rank.
#include "layers/layout/mesh.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tsprun::detail {

namespace {

/// Place on an axis that means all ranks of the axis.
constexpr int kAll = -1;

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
      data_rank_(layout_.place(layout_.data_axis(), world.rank())),
      tensor_rank_(layout_.place(layout_.tensor_axis(), world.rank())),
      sequence_rank_(layout_.place(layout_.token_axis(), world.rank())),
      data_(group(kAll, tensor_rank_, sequence_rank_)),
      tensor_(group(data_rank_, kAll, sequence_rank_)),
      sequence_(group(data_rank_, tensor_rank_, kAll)) {
  if (layout_.slices_tokens()) tokens_.emplace(group(data_rank_, kAll, kAll));
}

/// Returns the group of the ranks with these places on the axes, ordered by (data, sequence, tensor).
Communicator Mesh::group(int data, int tensor, int sequence) const {
  std::vector<int> members = {0};
  const auto widen = [&](AxisKind axis, int place) {
    const int stride = layout_.stride(axis);
    std::vector<int> wider;
    for (const int member : members) {
      for (int i = place == kAll ? 0 : place; i < (place == kAll ? layout_.degree(axis) : place + 1); ++i)
        wider.push_back(member + i * stride);
    }
    members = std::move(wider);
  };
  widen(layout_.data_axis(), data);
  widen(layout_.token_axis(), sequence);
  widen(layout_.tensor_axis(), tensor);
  return world_.subgroup(members);
}

}  // namespace tsprun::detail
