// Elementwise operations on strided views: copies with conversion, sums, multiples and zeroing.
//
// bf16 and f32 may be mixed: arithmetic is in f32 and each result is rounded once. f64 goes only with f64.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::detail::kernels {

/// Copies `from` to `to`, converting where the dtypes differ. Both have the same shape and dense rows, and must not overlap.
void convert(const Compute& on, const Tensor& to, const ConstTensor& from);

/// Computes out = a + b. All have the same shape and dense rows. `out` may be `a` or `b`: add(on, sum, sum, term) accumulates.
void add(const Compute& on, const Tensor& out, const ConstTensor& a, const ConstTensor& b);

/// Computes out = a + factor·b, rounded once. Views as in add().
void add_multiple(const Compute& on, const Tensor& out, const ConstTensor& a, const ConstTensor& b, double factor);

/// Computes out = factor·a. Both have the same shape and dense rows. `out` may be `a`.
void multiply(const Compute& on, const Tensor& out, const ConstTensor& a, double factor);

/// Writes zeros to `out`, which may have any dtype.
void fill_zero(const Compute& on, const Tensor& out);

}  // namespace tsprun::detail::kernels
