// Copies with conversion, sums and fills of strided views: what schedules need between the larger kernels.
//
// f64 goes with f64 only; bf16 and f32 mix, with arithmetic in f32 and results rounded once.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

namespace tsprun::kernels {

/// to = from, element by element, converted where the dtypes differ. Same shape, dense rows. No overlap.
void convert(const Compute& on, const Tensor& to, const ConstTensor& from);

/// out = a + b. Same shape, dense rows. `out` may be `a` or `b`: accumulation is add(on, sum, sum, term).
void add(const Compute& on, const Tensor& out, const ConstTensor& a, const ConstTensor& b);

/// out = factor·a, the factor rounded to the type of the arithmetic first. `out` may be `a`.
void scale(const Compute& on, const Tensor& out, const ConstTensor& a, double factor);

/// out = 0, for any dtype.
void fill_zero(const Compute& on, const Tensor& out);

}  // namespace tsprun::kernels
