// AdamW (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019), and the parts of clipping by global norm.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail::kernels {

/// Hyperparameters of one update.
struct AdamW {
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;    ///< 0 for parameters that don't decay
  std::uint64_t step = 1;     ///< number of this update, from 1
  double gradient_scale = 1;  ///< factor applied to gradients first: the result of clip_factor()
};

/// Updates contiguous tensors of one size, with g = gradient_scale·gradient:
///   m = β1·m + (1 − β1)·g,  v = β2·v + (1 − β2)·g²,
///   p = p·(1 − lr·decay) − lr·(m / (1 − β1^step)) / (√(v / (1 − β2^step)) + ε).
/// gradient, m and v are in the type of sums. bf16 parameters have an f32 `master` copy, which is updated and then rounded into
/// them. f32 and f64 parameters are updated directly, and `master` is an empty view. Throws std::invalid_argument if the views
/// don't fit.
void adamw(const Compute& on, const AdamW& options, const Tensor& parameters, const Tensor& master, const Tensor& m,
           const Tensor& v, const ConstTensor& gradient);

/// Returns the sum of squares of a contiguous tensor, in f64. It adds, in order, the sums of blocks whose bounds depend on the
/// element count alone, so the number of threads changes no bit. Needs sum_of_squares_workspace() bytes of workspace.
double sum_of_squares(const Compute& on, const ConstTensor& x);
/// Returns the bytes of workspace that sum_of_squares() needs for this many elements.
std::size_t sum_of_squares_workspace(std::size_t elements);

/// Elements of a block of sum_of_squares().
inline constexpr std::size_t kSquaresBlock = kTaskElements;
/// Sums of squares of a block's elements, each in the lane of the vectors in which sum_of_squares() would add it. So a block can
/// be summed piece by piece, by several ranks, with the same bits. Zeros before the first piece.
using SquareLanes = std::array<double, 8>;
/// Adds the squares of a contiguous tensor of f32 or f64, which is elements `first`, first + 1, … of a longer one, to the lanes
/// of the blocks of that one that it has elements of. Pieces of a block must be added in order.
void add_squares(const Compute& on, std::span<SquareLanes> blocks, const ConstTensor& x, std::size_t first);
/// Returns the sum that sum_of_squares() has of a block, all of whose elements have been added.
double sum_of(const SquareLanes& lanes);

/// Returns the factor that clips gradients of this norm: min(1, limit/(norm + 1e-6)), as PyTorch's clip_grad_norm_. Returns 1 if
/// `limit` is 0.
double clip_factor(double norm, double limit);

}  // namespace tsprun::detail::kernels
