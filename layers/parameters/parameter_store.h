// The parameters that one rank holds, with their gradients and optimizer states.
//
// Parameters lie in *packs* (place.h): stacks of rows of one width that lie together in memory, so that a shard travels as one
// message. A pack consists of *parts*: rectangles of the model's parameters, in natural order or transposed. Code that deals with
// parameters as such (fresh weights, files, norms, the optimizer) iterates over parts and doesn't depend on the strategy.
//
//   pack of TSP attention on rank r, width h          parts
//   ┌─────────────────────────────┐
//   │ W_K  rows of its K/V heads  │   k_proj [rows, h]
//   │ W_V  rows of its K/V heads  │   v_proj [rows, h]
//   │ W_Q  rows of its heads      │   q_proj [rows, h]
//   │ W_Oᵀ rows of its heads      │   o_proj [h, columns], transposed
//   └─────────────────────────────┘
#pragma once

#include "core/rank/rank.h"
#include "layers/io/read_ahead.h"
#include "layers/io/safetensors.h"
#include "layers/parameters/model_folder.h"
#include "layers/parameters/place.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tsprun::detail {

/// A part and its memory: views [rows, width]. Without training only `value` has memory; `master` exists only if parameters are
/// bf16. Where optimizer states are cut over replicas, `m`, `v` and `master` have no memory: see states().
struct ParameterPart {
  PartPlan plan;
  Tensor value;     ///< in the model's dtype
  Tensor gradient;  ///< in the type of sums, as are m, v and master
  Tensor m;
  Tensor v;
  Tensor master;
};

/// Lists the parts of a pack that a rank holds: all, or, of one that is cut over replicas, the rectangles that are its elements.
std::vector<PartPlan> held_parts(const PackPlan& pack);

/// Lists which bytes of which files ParameterStore::load() reads, in its order. Throws Error(refused) as ModelFolder::range_of().
std::vector<file::Range> ranges_to_load(const ModelFolder& weights, const std::vector<PackPlan>& packs);

/// The memory of one rank's packs.
class ParameterStore {
 public:
  /// Allocates all memory. Throws Error(out_of_memory).
  ParameterStore(Rank& rank, DType dtype, const std::vector<PackPlan>& packs, bool training);

  /// Returns what this rank holds: the parts of its packs, and of packs that are cut over replicas (is_cut()) the rectangles of
  /// parts that are this rank's elements.
  std::span<const ParameterPart> parts() const { return parts_; }
  /// Returns what this rank updates, and counts if it is counted: parts() or, where replicas share optimizer states, the
  /// rectangles of them of which it has the states. `value` and `gradient` view those of the whole part.
  std::span<const ParameterPart> states() const { return shares_states() ? states_ : parts_; }
  /// Returns the states() of a pack.
  std::span<const ParameterPart> states(std::size_t pack) const;
  /// Returns whether optimizer states are cut over replicas.
  bool shares_states() const { return training_ && !packs_.empty() && packs_.front().plan.sharers > 1; }
  /// Returns whether this rank holds only a part of the pack's elements, and the replicas the others.
  bool is_cut(std::size_t pack) const { return plan(pack).cuts_weights; }
  /// Returns how the elements of a pack are cut over the replicas.
  Chunks states_cut(std::size_t pack) const { return detail::states_cut(plan(pack).sharers, pack_elements(plan(pack))); }
  const PackPlan& plan(std::size_t pack) const { return packs_.at(pack).plan; }
  /// Returns the elements of a pack that this rank holds, in one dim: all, or its part of a pack that is cut.
  Tensor held_values(std::size_t pack) const { return held(values_, pack); }
  Tensor held_gradients(std::size_t pack) const { return held(gradients_, pack); }
  /// Returns the rows of parts [first, first + count) of a pack, stacked: [rows, width]. A pack that is cut has no rows here
  /// (std::logic_error); those of the others are gathered: layers/schedules/own_packs.h.
  Tensor values(std::size_t pack, std::size_t first, std::size_t count) const { return stacked(values_, pack, first, count); }
  Tensor gradients(std::size_t pack, std::size_t first, std::size_t count) const {
    return stacked(gradients_, pack, first, count);
  }
  std::size_t packs() const { return packs_.size(); }
  /// Returns all rows of a pack.
  Tensor values(std::size_t pack) const { return stacked(values_, pack, 0, plan(pack).parts.size()); }
  Tensor gradients(std::size_t pack) const { return stacked(gradients_, pack, 0, plan(pack).parts.size()); }
  DType dtype() const { return dtype_; }
  bool training() const { return training_; }

  /// Fills the parameters with fresh weights (layers/parameters/init.h), which depend on seed, name and element only. `layers`:
  /// of the whole model. Master weights become the values, moments zero.
  void fill_fresh(std::size_t layers, std::uint64_t seed);
  /// Reads this rank's slices of the parameters. Master weights are read from the file, too, so that they keep digits that the
  /// values can't hold. Moments become zero. Returns whether all that was read is finite. `ahead`: what reads the same ahead, if
  /// anything does: see ranges_to_load(). Throws Error(refused).
  bool load(const ModelFolder& weights, file::ReadAhead* ahead = nullptr);
  /// Sets master weights to the values and moments to zero. Call it after filling the values in another way.
  void begin_optimizer();

 private:
  struct Pack {
    PackPlan plan;
    std::size_t first_part;
    std::size_t parts;
    std::size_t offset;  // elements
    std::size_t held = 0;
    std::size_t first_state = 0;
    std::size_t states = 0;
  };
  void cut_states();
  Tensor held(const OwnedTensor& memory, std::size_t pack) const {
    return memory->slice(0, packs_.at(pack).offset, packs_.at(pack).held);
  }
  Tensor stacked(const OwnedTensor& memory, std::size_t pack, std::size_t first, std::size_t count) const;
  using Source = std::function<void(const PartPlan&, const safetensors::Rectangle&, Buffer)>;
  void fill(const Source& source);
  void fill_part(const ParameterPart& part, const Tensor& tensor, const Source& source);

  Rank& rank_;
  DType dtype_;
  bool training_;
  std::vector<ParameterPart> parts_;
  std::vector<ParameterPart> states_;  // if they are cut
  std::vector<Pack> packs_;
  OwnedTensor values_;  // one dim: all packs, one after another; likewise the others
  OwnedTensor gradients_;
  OwnedTensor m_;  // of the elements whose states this rank has, pack after pack
  OwnedTensor v_;
  OwnedTensor master_;
};

/// Calls body(block within the whole parameter, contiguous [rows, columns] in natural order) for pieces of a part's tensor, one
/// of its `value`, `gradient`, `m`, `v` or `master`, and ticks after each. Pieces are whole rows, of 1 MiB, but at least
/// one. On a phantom the scratch is booked and body isn't called.
void for_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                        const std::function<void(const safetensors::Rectangle&, ConstBuffer)>& body);
/// Fills a part's tensor from pieces in natural order, which body provides: the reverse of for_natural_blocks(), but all threads
/// of the rank call body at a time, each for pieces of their share of those bytes.
void fill_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                         const std::function<void(const safetensors::Rectangle&, Buffer)>& body);

}  // namespace tsprun::detail
