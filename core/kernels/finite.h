// Search for the first infinite or NaN element of a tensor.
#pragma once

#include "core/tensor/tensor.h"

#include <cstddef>
#include <optional>
#include <string>

namespace tsprun::detail::kernels {

/// Returns the row-major index of the view's first element that is infinite or NaN, or nothing if all elements are finite. The
/// view may be bf16, f32 or f64 and of any size, with dense rows. Runs about as fast as memory can be read.
std::optional<std::size_t> first_not_finite(const ConstTensor& view);

/// Returns the value and the indices of element `number` (in row-major order) as text, such as "nan at [0, 17, 5]".
std::string describe_element(const ConstTensor& view, std::size_t number);

}  // namespace tsprun::detail::kernels
