// Algorithms for groups that span nodes: direct within a node, along rails between nodes. A *rail* is the i-th member of every
// node: with an adapter each, they work side by side, and every byte crosses between two nodes once. They need a Grid.
//
// Gathers and broadcasts reorder nothing. Reductions add first within the node, then along the rail, so their bits depend on
// which rank sits where: they run only with --reassociate.
#pragma once

#include "core/collectives/operations.h"
#include "core/collectives/relay.h"

#include <optional>

namespace tsprun {

/// Chunks travel along their rail, each node passing them to the next; whoever has a chunk shows it to its node.
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

/// The buffer is cut into a part a rail. The root shows all of it to its node, each of whom sends its part along its rail; on
/// the other nodes whoever gets a part shows it to its node.
class HierarchicalBroadcast final : public Collective {
 public:
  HierarchicalBroadcast(const Call& call, Buffer buffer, int root);
  bool step(Engine& engine) override;

 private:
  Relay relay_;
};

/// A direct reduce_scatter within the node for every node, rail i getting the chunks of all members of rail i; then a ring
/// reduce_scatter along the rail. Sums of a node are rounded to the dtype.
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
  Chunks rail_chunks_ = Chunks::uniform(1, 0);  // in sums_, by node
  HeapBlock sums_;                              // of this node, for the members of this rail
  int node_ = 0;                                // whose chunks are summed
  std::optional<DirectReduceScatter> within_;
  std::optional<RingReduceScatter> across_;
};

/// A direct reduce_scatter within the node, a ring all_reduce along each rail, and a direct all_gather within the node.
class HierarchicalAllReduce final : public Collective {
 public:
  HierarchicalAllReduce(const Call& call, ConstBuffer send, Buffer recv);
  bool step(Engine& engine) override;

 private:
  enum class Phase : std::uint8_t { reduce, across, gather };
  Phase phase_ = Phase::reduce;
  ConstBuffer send_;
  Buffer recv_;
  Chunks chunks_;  // one a rail
  std::optional<DirectReduceScatter> reduce_;
  std::optional<RingAllReduce> across_;
  std::optional<DirectAllGather> gather_;
};

/// A barrier within the node, then one along each rail: who hears from a node knows that all of it has come.
class HierarchicalBarrier final : public Collective {
 public:
  explicit HierarchicalBarrier(const Call& call);
  bool step(Engine& engine) override;

 private:
  std::optional<Barrier> within_;
  std::optional<Barrier> across_;
};

}  // namespace tsprun
