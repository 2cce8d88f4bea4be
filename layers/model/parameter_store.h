// The parameters that one rank holds, with their gradients and optimizer states.
//
// A strategy plans *packs*: stacks of rows of one width that lie together, so that a shard travels as one message. A pack is made
// of *parts*: rectangles of the model's parameters, in natural order or transposed. Everything that deals with parameters as such
// (fresh weights, files, norms, the optimizer) walks the parts and needs to know no strategy.
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
#include "layers/model/parameters.h"
#include "layers/model/safetensors.h"
#include "layers/model/weights.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tsprun {

/// Where a rectangle of a parameter belongs.
struct PartPlan {
  Parameter parameter;
  safetensors::Block block{};  ///< of the whole parameter as it is stored; a vector is one row
  bool transposed = false;     ///< lies as [block.columns, block.rows]
  /// Ranks that hold the same rectangle hold copies; one of them counts it in norms and writes it to files.
  bool counted = true;
  /// Width of the pack's rows.
  std::size_t width() const { return transposed ? block.rows : block.columns; }
  std::size_t rows() const { return transposed ? block.columns : block.rows; }
};

/// Parts of one width, first row to last.
struct PackPlan {
  std::vector<PartPlan> parts;
};

/// A part and its memory: views [rows, width], all of one shape. Without training only `value` has memory; `master` only where
/// parameters are bf16.
struct ParameterPart {
  PartPlan plan;
  Tensor value;     ///< in the model's dtype
  Tensor gradient;  ///< in the type of sums, as m, v and master
  Tensor m;
  Tensor v;
  Tensor master;
};

class ParameterStore {
 public:
  /// All memory is taken here. Throws Error(out_of_memory).
  ParameterStore(Rank& rank, DType dtype, const std::vector<PackPlan>& packs, bool training);

  std::span<const ParameterPart> parts() const { return parts_; }
  /// Rows of a pack's parts [first, first + count), stacked: [rows, width].
  Tensor values(std::size_t pack, std::size_t first, std::size_t count) const { return stacked(values_, pack, first, count); }
  Tensor gradients(std::size_t pack, std::size_t first, std::size_t count) const {
    return stacked(gradients_, pack, first, count);
  }
  std::size_t packs() const { return packs_.size(); }
  /// All values, all gradients of a pack.
  Tensor values(std::size_t pack) const { return stacked(values_, pack, 0, packs_.at(pack).parts); }
  Tensor gradients(std::size_t pack) const { return stacked(gradients_, pack, 0, packs_.at(pack).parts); }
  DType dtype() const { return dtype_; }
  bool training() const { return training_; }

  /// Fresh weights of page "Defaults": a function of seed, name and element. `layers`: of the whole model. Moments become zero.
  void fill_fresh(std::size_t layers, std::uint64_t seed);
  /// Reads this rank's slices. Master weights are the file's own, rounded to f32 at most; moments become zero. Throws
  /// Error(refused).
  void load(const Weights& weights);
  /// Master weights from values, moments zero. To be called by whoever fills values in another way.
  void begin_optimizer();

 private:
  struct Pack {
    std::size_t first_part;
    std::size_t parts;
    std::size_t offset;  // elements
  };
  Tensor stacked(const OwnedTensor& memory, std::size_t pack, std::size_t first, std::size_t count) const;
  using Source = std::function<void(const PartPlan&, const safetensors::Block&, Buffer)>;
  void fill(const Source& source);
  void fill_part(const ParameterPart& part, const Tensor& tensor, const Source& source);

  Rank& rank_;
  DType dtype_;
  bool training_;
  std::vector<ParameterPart> parts_;
  std::vector<Pack> packs_;
  OwnedTensor values_;  // one dim; all packs, one after another, as the others
  OwnedTensor gradients_;
  OwnedTensor m_;
  OwnedTensor v_;
  OwnedTensor master_;
};

/// Calls body(block of the whole parameter, contiguous [rows, columns] in natural order) for pieces of a part's tensor, one of
/// its `value`, `m`, `v` or `master`. The pieces of a transposed part are turned in scratch, some 256 KiB at a time.
void for_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                        const std::function<void(const safetensors::Block&, ConstBuffer)>& body);
/// The other way: body fills each piece, in natural order.
void fill_natural_blocks(Rank& rank, const PartPlan& plan, const Tensor& tensor,
                         const std::function<void(const safetensors::Block&, Buffer)>& body);

}  // namespace tsprun
