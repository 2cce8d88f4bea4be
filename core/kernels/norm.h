// RMSNorm and LayerNorm over the last dim.
//
// Statistics aren't kept: backward computes them again from x, which every recomputation mode keeps. Shapes: x, y, dx, dy [...,
// h]; gain, bias [h]; dgain, dbias [h] in the type of sums. x, y, dx, dy, gain and bias may mix bf16 and f32; f64 goes only with
// f64. Rows are dense. Views that don't fit throw std::invalid_argument. A row whose squares overflow gives NaN.
//
// RMSNorm of rows of which other ranks have other elements: row_sums() of each rank's part, their sum over the ranks, and the
// norm of the part with it (WholeRows).
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::detail::kernels {

/// Use of a norm's gain w. The effective gain g is w, or 1 + w, and the whole result is multiplied.
struct NormForm {
  bool gain_from_one = false;  ///< g = 1 + w
  double multiplier = 1;       ///< y = multiplier·(g ∘ x̂ + bias)

  bool operator==(const NormForm&) const = default;
};

/// Sums over whole rows for an RMSNorm whose x, y, gain and so on have a part of each.
struct WholeRows {
  std::size_t width = 0;      ///< elements of a whole row; 0: x has whole rows, and nothing else counts
  ConstTensor squares = {};   ///< [rows], the sum of a row's x², in the type of sums
  ConstTensor products = {};  ///< backward: [rows], the sum of a row's dx̂ ∘ x; without dims: 0
};

/// Computes y = gain ∘ x̂ with x̂ = x / √(mean(x²) + epsilon). `y` may be `x`. A gain without dims: 1.
void rms_norm(const Compute& on, const Tensor& y, const ConstTensor& x, const ConstTensor& gain, double epsilon,
              const NormForm& form = {}, const WholeRows& whole = {});

/// Computes, with dx̂ = gain ∘ dy, dx = (dx̂ − x̂·mean(dx̂ ∘ x̂)) / √(mean(x²) + epsilon), which replaces `dx` or is added to it,
/// and adds the sum over rows of dy ∘ x̂, in the order of rows, to dgain. `dx` may be `dy`. A gain without dims is 1, and dgain
/// has none either. Needs norm_backward_workspace() bytes of workspace.
void rms_norm_backward(const Compute& on, const Tensor& dx, const Tensor& dgain, const ConstTensor& dy, const ConstTensor& x,
                       const ConstTensor& gain, double epsilon, Write write = Write::replace, const NormForm& form = {},
                       const WholeRows& whole = {});

/// Computes, of each row, the sum of dx̂ ∘ x, with dx̂ = gain ∘ dy, or of x² if `dy` has no dims, into `sums` [rows] in the type of
/// sums. `x` may have no elements: then all sums are 0.
void row_sums(const Compute& on, const Tensor& sums, const ConstTensor& x, const ConstTensor& dy = {},
              const ConstTensor& gain = {}, const NormForm& form = {});

/// Computes y = gain ∘ x̂ + bias with x̂ = (x − mean(x)) / √(var(x) + epsilon). `y` may be `x`. A bias without dims: none.
void layer_norm(const Compute& on, const Tensor& y, const ConstTensor& x, const ConstTensor& gain, const ConstTensor& bias,
                double epsilon, const NormForm& form = {});

/// Computes, with dx̂ = gain ∘ dy, dx = (dx̂ − mean(dx̂) − x̂·mean(dx̂ ∘ x̂)) / √(var(x) + epsilon), which replaces `dx` or is
/// added to it, and adds the sums over rows of dy ∘ x̂ to dgain and of dy to dbias, in the order of rows. A dbias without dims:
/// there is no bias. Needs norm_backward_workspace() bytes of workspace.
void layer_norm_backward(const Compute& on, const Tensor& dx, const Tensor& dgain, const Tensor& dbias, const ConstTensor& dy,
                         const ConstTensor& x, const ConstTensor& gain, double epsilon, Write write = Write::replace,
                         const NormForm& form = {});

/// Returns the bytes of workspace that either backward needs, whatever the shape.
std::size_t norm_backward_workspace();

}  // namespace tsprun::detail::kernels
