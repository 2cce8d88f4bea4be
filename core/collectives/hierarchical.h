// Algorithms for groups that span nodes: direct within a node, along rails between nodes. A *rail* is the i-th member of every
// node. Rails work side by side, each with a network adapter of its own if there are enough, and every byte crosses between two
// nodes once. The group must form a Grid.
//
// Gathers and broadcasts don't affect results. Reductions add first within the node, then along the rail, so the bits of their
// results depend on which rank is on which node: they run only with --reassociate.
#pragma once

#include "core/collectives/operations.h"
#include "core/collectives/relay.h"

#include <optional>

namespace tsprun::detail {

/// all_gather(_v): chunks travel along their rail, each node passing them to the next; a rank that gets a chunk also sends it to
/// the other members of its node.
class HierarchicalAllGather final : public Collective {
 public:
  HierarchicalAllGather(const Call& call, ConstBuffer send, Buffer recv, const Chunks& chunks);
  bool step(Engine& engine) override;

 private:
  ConstBuffer send_;
  std::span<std::byte> own_place_;
  std::size_t own_copied_ = 0;
  Relay relay_;
};

/// broadcast: the buffer is cut into one part per rail. The root sends all parts to the members of its node, and each of them
/// sends its part along its rail; on the other nodes, the rank that gets a part sends it to the other members of its node.
class HierarchicalBroadcast final : public Collective {
 public:
  HierarchicalBroadcast(const Call& call, Buffer buffer, int root);
  bool step(Engine& engine) override;

 private:
  Relay relay_;
};

/// reduce_scatter(_v): for every node of the group, in turn, each node runs a direct reduce_scatter among its members of that
/// node's chunks, so that member i gets its node's sums of the chunks of rail i; then a ring reduce_scatter along the rail adds
/// the nodes' sums. A node's sums are rounded to the dtype.
class HierarchicalReduceScatter final : public Collective {
 public:
  HierarchicalReduceScatter(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks);
  bool step(Engine& engine) override;

 private:
  void begin_within();
  void begin_across();

  ConstBuffer send_;
  Buffer recv_;
  Chunks chunks_;
  Chunks rail_chunks_ = Chunks::uniform(1, 0);  // places in sums_, by node
  HeapBlock sums_;                              // this node's sums for the members of this rail
  int node_ = 0;                                // node whose chunks are being summed
  std::optional<DirectReduceScatter> within_;
  std::optional<RingReduceScatter> across_;
};

/// all_reduce: a direct reduce_scatter within the node, a ring all_reduce along each rail, and a direct all_gather within the
/// node.
class HierarchicalAllReduce final : public Collective {
 public:
  HierarchicalAllReduce(const Call& call, ConstBuffer send, Buffer recv);
  bool step(Engine& engine) override;

 private:
  enum class Phase : std::uint8_t { reduce, across, gather };
  Phase phase_ = Phase::reduce;
  ConstBuffer send_;
  Buffer recv_;
  Chunks chunks_;  // one per rail
  std::optional<DirectReduceScatter> reduce_;
  std::optional<RingAllReduce> across_;
  std::optional<DirectAllGather> gather_;
};

/// barrier: a barrier within the node, then one along each rail. A message from a node means that all its members have arrived.
class HierarchicalBarrier final : public Collective {
 public:
  explicit HierarchicalBarrier(const Call& call);
  bool step(Engine& engine) override;

 private:
  std::optional<Barrier> within_;
  std::optional<Barrier> across_;
};

}  // namespace tsprun::detail
