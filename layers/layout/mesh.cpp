#include "layers/layout/mesh.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <vector>

namespace tsprun {

namespace {

/// Place on an axis that means all ranks of the axis.
constexpr int kAll = -1;

const MeshShape& checked(const Communicator& world, const MeshShape& shape) {
  if (shape.data < 1 || shape.tensor < 1 || shape.sequence < 1 || shape.ranks() != world.size()) {
    throw Error(Cause::refused, fmt::format("a mesh of {} × {} × {} ranks doesn't fit a world of {}", shape.data, shape.tensor,
                                            shape.sequence, world.size()));
  }
  return shape;
}

}  // namespace

Mesh::Mesh(Communicator& world, const MeshShape& shape)
    : world_(world),
      shape_(checked(world, shape)),
      data_rank_(world.rank() / (shape.tensor * shape.sequence)),
      tensor_rank_(shape.sequence_outside ? world.rank() % shape.tensor : world.rank() / shape.sequence % shape.tensor),
      sequence_rank_(shape.sequence_outside ? world.rank() / shape.tensor % shape.sequence : world.rank() % shape.sequence),
      data_(group(kAll, tensor_rank_, sequence_rank_)),
      tensor_(group(data_rank_, kAll, sequence_rank_)),
      sequence_(group(data_rank_, tensor_rank_, kAll)) {
  if (shape.slices_tokens()) tokens_.emplace(group(data_rank_, kAll, kAll));
}

int Mesh::world_rank(int data, int tensor, int sequence) const {
  const int within = shape_.sequence_outside ? sequence * shape_.tensor + tensor : tensor * shape_.sequence + sequence;
  return data * shape_.tensor * shape_.sequence + within;
}

/// Returns the group of the ranks with these places on the axes, ordered by (data, sequence, tensor).
Communicator Mesh::group(int data, int tensor, int sequence) const {
  std::vector<int> members;
  const auto each = [](int place, int degree, auto&& body) {
    for (int i = place == kAll ? 0 : place; i < (place == kAll ? degree : place + 1); ++i) body(i);
  };
  each(data, shape_.data, [&](int d) {
    each(sequence, shape_.sequence,
         [&](int s) { each(tensor, shape_.tensor, [&](int t) { members.push_back(world_rank(d, t, s)); }); });
  });
  return world_.subgroup(members);
}

}  // namespace tsprun
