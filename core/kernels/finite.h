// Whether tensors hold numbers alone.
#pragma once

#include "core/tensor/tensor.h"

#include <cstddef>
#include <optional>
#include <string>

namespace tsprun::kernels {

/// The number, counted in row-major order of the indices, of the view's first element that is infinite or NaN; nothing if all are
/// numbers. bf16, f32 or f64, with dense rows; any sizes. About as fast as memory is read.
std::optional<std::size_t> first_not_finite(const ConstTensor& view);

/// "nan at [0, 17, 5]": element `number` of the view.
std::string describe_element(const ConstTensor& view, std::size_t number);

}  // namespace tsprun::kernels
